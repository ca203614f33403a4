#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/doctor/host_checks.h"
#include "store/memory/huge_pages.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv::ctl::doctor {
namespace {

constexpr char kMeminfo[] = "/proc/meminfo";
constexpr char kTransparent[] = "/sys/kernel/mm/transparent_hugepage/enabled";

uint64_t MeminfoBytes(const HostView& view, const char* key) {
  return view.files.ReadField(kMeminfo, key).value_or(0) * 1024;
}

bool IsHolder(const DaemonSettings& settings) { return settings.MayHave("holder"); }

// "8GiB", "1536MiB": as the configuration takes it, rounded down.
std::string SizeOption(uint64_t bytes) {
  const uint64_t gib = bytes >> 30;
  return gib >= 4 ? absl::StrFormat("%dGiB", gib) : absl::StrFormat("%dMiB", bytes >> 20);
}

Checks JudgeRoom(const HostView& view) {
  Checks found;
  const uint64_t total = MeminfoBytes(view, "MemTotal:");
  if (total == 0) return {Skipped("memory", "/proc/meminfo has no MemTotal")};
  uint64_t needed = 0;
  std::vector<std::string> names;
  for (const DaemonSettings* settings : view.AllSettings()) {
    needed += settings->MemoryBytes();
    if (IsHolder(*settings)) names.push_back(settings->origin);
  }
  const auto usable = static_cast<uint64_t>(static_cast<double>(total) * kMemoryShareMax);
  if (needed > usable && !names.empty()) {
    const Verdict verdict = needed > total ? Verdict::kFail : Verdict::kWarn;
    found.push_back(
        {"memory", verdict,
         absl::StrFormat("full stores take %s, this machine has %s: %s", FormatBytes(needed),
                         FormatBytes(total), absl::StrJoin(names, ", ")),
         absl::StrFormat("store.capacity: %s  # at most, of each holder here",
                         SizeOption(usable / names.size() / 100 * 90))});
  }
  for (const HostDaemon& daemon : view.daemons) {
    const uint64_t own = daemon.settings.MemoryBytes();
    if (!daemon.memory_bytes_max || own <= *daemon.memory_bytes_max) continue;
    found.push_back(
        Fail("memory",
             absl::StrFormat("%s takes %s once its store is full, and its control group allows %s",
                             daemon.settings.origin, FormatBytes(own),
                             FormatBytes(*daemon.memory_bytes_max)),
             absl::StrFormat("systemctl set-property UNIT MemoryMax=%d\nor store.capacity: %s",
                             own / 100 * 110, SizeOption(*daemon.memory_bytes_max / 100 * 80))));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        names.empty()
            ? Skipped("memory", "no holder runs here, and no configuration of one is named")
            : Ok("memory", absl::StrFormat("full stores take %s of %s", FormatBytes(needed),
                                           FormatBytes(total))));
  return checks;
}

std::string ReserveRemedy(uint64_t pages) {
  return absl::StrFormat(
      "sysctl -w vm.nr_hugepages=%d\nand for the next start of the machine, in "
      "/etc/sysctl.d/ckv.conf: vm.nr_hugepages = %d",
      pages, pages);
}

uint64_t PagesOf(const DaemonSettings& settings) {
  return (settings.store_capacity_bytes + kHugePageBytes - 1) / kHugePageBytes;
}

// Running daemons have the pages that they requested: without its reserved pages, one does not
// start.
Checks JudgeReservedPages(const HostView& view) {
  const uint64_t total = view.files.ReadField(kMeminfo, "HugePages_Total:").value_or(0);
  const uint64_t free = view.files.ReadField(kMeminfo, "HugePages_Free:").value_or(0);
  const uint64_t page_bytes = MeminfoBytes(view, "Hugepagesize:");
  const std::string there = absl::StrFormat("%d of %d reserved pages of %s are free", free, total,
                                            FormatBytes(page_bytes));
  if (view.planned && IsHolder(*view.planned) && view.planned->store_pages != "small") {
    const uint64_t needed = PagesOf(*view.planned);
    const bool reserved = view.planned->store_pages == "reserved";
    if (page_bytes != 0 && page_bytes != kHugePageBytes && (reserved || total > 0)) {
      return {Warn(
          "huge_pages",
          absl::StrFormat("%s, and stores take pages of %s", there, FormatBytes(kHugePageBytes)),
          "boot with default_hugepagesz=2M, or store.pages: auto")};
    }
    if (free < needed && (reserved || total > 0)) {
      Check check{
          "huge_pages", reserved ? Verdict::kFail : Verdict::kWarn,
          absl::StrFormat("%s, and the store of %s takes %d for %s%s", there, view.planned->origin,
                          needed, FormatBytes(view.planned->store_capacity_bytes),
                          reserved ? ": it will not start" : ": it will take none of them"),
          ReserveRemedy(total - std::min(free, total) + needed)};
      if (reserved) check.remedy += "\nor store.pages: auto";
      return {std::move(check)};
    }
  }
  const bool anybody =
      std::any_of(view.daemons.begin(), view.daemons.end(), [](const HostDaemon& daemon) {
        return IsHolder(daemon.settings) && daemon.settings.store_pages != "small";
      });
  if (total > 0 && free == total && anybody && !view.planned) {
    return {Warn(
        "huge_pages", there + ": no store took any, and nothing else can use that memory",
        "give a holder fewer or equal bytes: store.capacity: " + SizeOption(total * page_bytes) +
            "\nor give them back: sysctl -w vm.nr_hugepages=0")};
  }
  if (total > 0) return {Ok("huge_pages", there)};
  return {Skipped("huge_pages", "none are reserved, and no store asks for reserved ones")};
}

Checks JudgeTransparentPages(const HostView& view) {
  const auto settings = view.AllSettings();
  const bool wanted = std::any_of(settings.begin(), settings.end(), [](const DaemonSettings* s) {
    return IsHolder(*s) && s->store_pages == "auto";
  });
  const auto mode = view.files.Read(kTransparent);
  if (!wanted) return {Skipped("thp", "no holder with store.pages auto is here")};
  if (!mode) return {Skipped("thp", "this kernel has no transparent huge pages")};
  if (mode->find("[never]") == std::string::npos) return {Ok("thp", *mode)};
  return {Warn("thp",
               "transparent huge pages are off: a store of small pages is slower to read, by the "
               "misses of its translations",
               absl::StrFormat("echo madvise > %s\nand for the next start of the machine, on the "
                               "kernel's command line: transparent_hugepage=madvise",
                               kTransparent))};
}

Checks JudgeSwap(const HostView& view) {
  Checks found;
  for (const HostDaemon& daemon : view.daemons) {
    if (daemon.swapped_bytes.value_or(0) == 0) continue;
    found.push_back(
        Warn("swap",
             absl::StrFormat("%s has %s in swap: a row there costs a read of the disk",
                             daemon.settings.origin, FormatBytes(*daemon.swapped_bytes)),
             "swapoff -a\nor for its unit alone: systemctl set-property UNIT "
             "MemorySwapMax=0, and restart it"));
  }
  const uint64_t total = MeminfoBytes(view, "SwapTotal:");
  const auto swappiness = view.files.ReadNumber("/proc/sys/vm/swappiness");
  if (found.empty() && total > 0 && swappiness.value_or(60) > 10) {
    found.push_back(Warn(
        "swap",
        absl::StrFormat("%s of swap and vm.swappiness %d: the kernel may swap rows that are rarely "
                        "read",
                        FormatBytes(total), swappiness.value_or(60)),
        "sysctl -w vm.swappiness=1\nand in /etc/sysctl.d/ckv.conf: vm.swappiness = 1"));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        Ok("swap", total == 0 ? std::string("none")
                              : absl::StrFormat("%s, vm.swappiness %d", FormatBytes(total),
                                                swappiness.value_or(60))));
  return checks;
}

// Only verbs registers memory. A ckvd with verbs refuses to start below this limit.
Checks JudgeLocking(const HostView& view) {
  const uint64_t needed = VerbsOptions{}.region_bytes.total_max;
  constexpr char kRemedy[] =
      "in the daemon's unit: LimitMEMLOCK=infinity, and restart it\nby hand: ulimit -l unlimited\n"
      "in a container: --ulimit memlock=-1";
  Checks found;
  std::vector<std::string> fine;
  bool wanted = false;
  const auto judge = [&](const DaemonSettings& settings, std::optional<uint64_t> limit,
                         const std::string& who) {
    if (!settings.HasFabric("verbs")) return;
    wanted = true;
    if (limit && *limit >= needed) fine.push_back(settings.origin);
    if (!limit || *limit >= needed) return;
    found.push_back(Fail(
        "memlock",
        absl::StrFormat("%s may lock %s, and verbs pins up to %s: a store of %s once for each lane",
                        who, FormatBytes(*limit), FormatBytes(needed),
                        FormatBytes(settings.store_capacity_bytes)),
        kRemedy));
  };
  for (const HostDaemon& daemon : view.daemons)
    judge(daemon.settings, daemon.memlock_bytes_max, daemon.settings.origin);
  if (view.planned) {
    judge(*view.planned, SoftLimit(view.files, "self", "Max locked memory"),
          "a process of this shell");
  }
  Checks checks;
  AddOr(checks, std::move(found),
        !wanted ? Skipped("memlock",
                          "no ckvd here has verbs among its fabrics, and nothing else "
                          "locks memory")
        : fine.empty()
            ? Skipped("memlock", "the limits of other users' processes cannot be read: run as root")
            : Ok("memlock", absl::StrFormat("enough for verbs: %s", absl::StrJoin(fine, ", "))));
  return checks;
}

Checks JudgeFiles(const HostView& view) {
  Checks found;
  size_t known = 0;
  const auto judge = [&](const DaemonSettings& settings, std::optional<uint64_t> limit,
                         const std::string& who) {
    if (!limit) return;
    ++known;
    const uint64_t needed = kFilesOfDaemon + kFilesPerSession * settings.session_count_max;
    if (!IsHolder(settings) || *limit >= needed) return;
    found.push_back(Warn(
        "nofile",
        absl::StrFormat("%s may open %d files, and %d sessions (session_count_max) may take %d",
                        who, *limit, settings.session_count_max, needed),
        absl::StrFormat("in the daemon's unit: LimitNOFILE=65536, and restart it\nby hand: "
                        "ulimit -n %d",
                        std::max<uint64_t>(needed, 65536))));
  };
  for (const HostDaemon& daemon : view.daemons) {
    if (daemon.file_count && daemon.file_count_max && *daemon.file_count_max != kUnlimited &&
        *daemon.file_count * 10 > *daemon.file_count_max * 9) {
      found.push_back(
          Fail("nofile",
               absl::StrFormat("%s has %d of at most %d files open", daemon.settings.origin,
                               *daemon.file_count, *daemon.file_count_max),
               "in the daemon's unit: LimitNOFILE=65536, and restart it\nnow: prlimit "
               "--nofile=65536 --pid " +
                   std::to_string(daemon.pid)));
      continue;
    }
    judge(daemon.settings, daemon.file_count_max, daemon.settings.origin);
  }
  if (view.planned) {
    judge(*view.planned, SoftLimit(view.files, "self", "Max open files"),
          "a process of this shell");
  }
  Checks checks;
  AddOr(checks, std::move(found),
        known == 0 ? Skipped("nofile", "no limit of a daemon can be read here")
                   : Ok("nofile", "enough for every session"));
  return checks;
}

}  // namespace

Checks JudgeMemory(const HostView& view) {
  Checks checks;
  for (const auto judge : {&JudgeRoom, &JudgeReservedPages, &JudgeTransparentPages, &JudgeSwap,
                           &JudgeLocking, &JudgeFiles}) {
    for (Check& check : judge(view)) checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace ckv::ctl::doctor
