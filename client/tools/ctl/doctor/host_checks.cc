// LookAtHost finds the daemons of this machine, and adds the named configuration if none of them
// uses it yet. JudgeHost then checks memory, polling threads and durability, in this order. Each
// check lists its problems, or reports once that all is well or why it was skipped. They read files
// and change none, on the command's thread.

#include "client/tools/ctl/doctor/host_checks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/base/status.h"

namespace ckv::ctl::doctor {
namespace {

// 0 if unknown.
uint64_t MemoryBytes(const HostFiles& files) {
  return files.ReadField("/proc/meminfo", "MemTotal:").value_or(0) * 1024;
}

// 0 if unknown.
size_t ProcessorCount(const HostFiles& files) {
  const auto online = files.Read("/sys/devices/system/cpu/online");
  return online ? ListedNumbers(*online).size() : 0;
}

// "8GiB", "1536MiB": as the configuration takes it, rounded down.
std::string SizeOption(uint64_t bytes) {
  const uint64_t gib = bytes >> 30;
  return gib >= 4 ? absl::StrFormat("%dGiB", gib) : absl::StrFormat("%dMiB", bytes >> 20);
}

Checks JudgeMemory(const HostView& view) {
  Checks found;
  const uint64_t total = MemoryBytes(view.files);
  if (total == 0) return {Skipped("memory", "/proc/meminfo has no total")};
  uint64_t needed = 0;
  std::vector<std::string> names;
  for (const DaemonSettings* settings : view.AllSettings()) {
    needed += settings->MemoryBytes();
    if (settings->MayHave("holder")) names.push_back(settings->origin);
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

Checks JudgeSpin(const HostView& view) {
  Checks found;
  uint64_t threads = 0;
  std::vector<std::string> names;
  for (const DaemonSettings* settings : view.AllSettings()) {
    if (settings->SpinningThreads() == 0) continue;
    threads += settings->SpinningThreads();
    names.push_back(settings->origin);
  }
  for (const HostDaemon& daemon : view.daemons) {
    const double time = daemon.ProcessorTime();
    const uint32_t wanted = daemon.settings.SpinningThreads();
    if (wanted == 0 || time <= 0 || static_cast<double>(wanted) <= time) continue;
    found.push_back(
        Warn("spin",
             absl::StrFormat("%s has %d threads that poll and %.3g processors' time",
                             daemon.settings.origin, wanted, time),
             absl::StrFormat("compute_threads: %d\nor more processors: CPUQuota= and CPUAffinity= "
                             "of its unit",
                             std::max(1u, static_cast<uint32_t>(time)))));
  }
  const size_t processors = ProcessorCount(view.files);
  if (processors == 0) return {Skipped("spin", "the number of processors is unknown")};
  if (found.empty() && threads > processors) {
    found.push_back(Warn(
        "spin",
        absl::StrFormat("%d threads of %s poll on %s: they yield to each other, "
                        "and calls wait for wake-ups",
                        threads, absl::StrJoin(names, ", "), FormatCount(processors, "processor")),
        "run fewer daemons here, or less compute_threads; or spin_us: 0 in those "
        "that may answer late"));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        threads == 0 ? Skipped("spin", "no daemon here polls")
                     : Ok("spin", absl::StrFormat("%s poll on %s", FormatCount(threads, "thread"),
                                                  FormatCount(processors, "processor"))));
  return checks;
}

// A daemon whose variables cannot be read may have a folder.
Checks JudgeDurable(const HostView& view) {
  Checks found;
  size_t known = 0;
  for (const HostDaemon& daemon : view.daemons) {
    const DaemonSettings& settings = daemon.settings;
    if (daemon.settings_are_partial || settings.roles.empty()) continue;
    if (settings.MayHave("directory")) {
      ++known;
      if (settings.directory_path.empty()) {
        found.push_back(
            Warn("durable",
                 absl::StrFormat("%s keeps its corpora in memory: a restart loses all but what "
                                 "holders report",
                                 settings.origin),
                 "directory.path: /var/lib/ckv/directory"));
      }
    }
    if (settings.MayHave("holder")) {
      ++known;
      if (settings.store_path.empty()) {
        found.push_back(Warn(
            "durable",
            absl::StrFormat("a restart of %s loses its chunks: it keeps them in memory",
                            settings.origin),
            "store.path: /var/lib/ckv/NAME, a folder for each\nor load with --replicas 2, so that "
            "another has them"));
      }
    }
  }
  Checks checks;
  AddOr(checks, std::move(found),
        known == 0
            ? Skipped("durable", "no directory and no holder runs whose settings can be read")
            : Ok("durable", "corpora and chunks survive a restart"));
  return checks;
}

}  // namespace

std::vector<const DaemonSettings*> HostView::AllSettings() const {
  std::vector<const DaemonSettings*> all;
  for (const HostDaemon& daemon : daemons) all.push_back(&daemon.settings);
  if (planned) all.push_back(&*planned);
  return all;
}

absl::StatusOr<HostView> LookAtHost(const std::string& root, const std::string& config_path) {
  HostView view{HostFiles(root), {}, std::nullopt};
  view.daemons = FindDaemons(view.files);
  if (config_path.empty()) return view;
  CKV_ASSIGN_OR_RETURN(const SettingValues values, ReadSettingsFile(config_path));
  DaemonSettings planned = SettingsOf(values, config_path);
  const bool runs =
      std::any_of(view.daemons.begin(), view.daemons.end(), [&](const HostDaemon& daemon) {
        return daemon.config_path == config_path ||
               (!planned.name.empty() && daemon.settings.name == planned.name &&
                daemon.settings.listen == planned.listen);
      });
  if (!runs) view.planned = std::move(planned);
  return view;
}

std::string HostView::Title() const {
  const bool partial = std::any_of(daemons.begin(), daemons.end(), [](const HostDaemon& daemon) {
    return daemon.settings_are_partial;
  });
  return absl::StrFormat("%s, %s of memory, %s%s%s",
                         FormatCount(ProcessorCount(files), "processor"),
                         FormatBytes(MemoryBytes(files)), FormatCount(daemons.size(), "ckvd"),
                         planned ? " and " + planned->origin : std::string(),
                         partial ? "; root sees the variables of all" : "");
}

Checks JudgeHost(const HostView& view) {
  Checks checks;
  for (const auto judge : {&JudgeMemory, &JudgeSpin, &JudgeDurable}) {
    for (Check& check : judge(view)) checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace ckv::ctl::doctor
