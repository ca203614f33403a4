#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/doctor/host_checks.h"

namespace ckv::ctl::doctor {
namespace {

constexpr char kNodes[] = "/sys/devices/system/node";

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
  const auto online = view.files.Read("/sys/devices/system/cpu/online");
  const size_t processors = online ? ListedNumbers(*online).size() : 0;
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
        threads == 0 ? Skipped("spin", "no ckvd here polls")
                     : Ok("spin", absl::StrFormat("%s poll on %s", FormatCount(threads, "thread"),
                                                  FormatCount(processors, "processor"))));
  return checks;
}

// The nodes of a machine and their processors.
std::vector<std::pair<uint32_t, std::set<uint32_t>>> NodesOf(const HostFiles& files) {
  std::vector<std::pair<uint32_t, std::set<uint32_t>>> nodes;
  for (const uint32_t node :
       ListedNumbers(files.Read(std::string(kNodes) + "/online").value_or(""))) {
    const auto list = files.Read(absl::StrFormat("%s/node%d/cpulist", kNodes, node));
    const auto numbers = ListedNumbers(list.value_or(""));
    nodes.emplace_back(node, std::set<uint32_t>(numbers.begin(), numbers.end()));
  }
  return nodes;
}

Checks JudgeNodes(const HostView& view) {
  const auto nodes = NodesOf(view.files);
  if (nodes.size() < 2) return {Skipped("numa", "this machine has one node")};
  Checks found;
  size_t known = 0;
  for (const HostDaemon& daemon : view.daemons) {
    if (!daemon.settings.MayHave("holder") || daemon.processors.empty()) continue;
    ++known;
    std::vector<uint32_t> on;
    for (const auto& [node, processors] : nodes) {
      const auto& mine = daemon.processors;
      const auto& here = processors;  // clang 14 captures no structured binding
      if (std::any_of(mine.begin(), mine.end(), [&](uint32_t p) { return here.contains(p); }))
        on.push_back(node);
    }
    const std::string device = daemon.settings.verbs_device;
    const auto near =
        device.empty() || !daemon.settings.HasFabric("verbs")
            ? std::nullopt
            : view.files.ReadNumber("/sys/class/infiniband/" + device + "/device/numa_node");
    const auto bind = [](uint64_t node) {
      return absl::StrFormat(
          "in its unit: NUMAPolicy=bind, NUMAMask=%d and CPUAffinity=numa\nby hand: numactl "
          "--cpunodebind=%d --membind=%d ckvd ...",
          node, node, node);
    };
    if (near && std::find(on.begin(), on.end(), *near) == on.end()) {
      found.push_back(
          Warn("numa",
               absl::StrFormat("%s runs on node %s, and its device %s is on node %d: "
                               "every message crosses between them",
                               daemon.settings.origin, absl::StrJoin(on, ", "), device, *near),
               bind(*near)));
    } else if (on.size() > 1) {
      found.push_back(Warn("numa",
                           absl::StrFormat("%s may run on nodes %s: rows of one are read from the "
                                           "other",
                                           daemon.settings.origin, absl::StrJoin(on, ", ")),
                           bind(near.value_or(on.front()))));
    }
  }
  Checks checks;
  AddOr(checks, std::move(found),
        known == 0
            ? Skipped("numa", absl::StrFormat("%d nodes, and no holder runs", nodes.size()))
            : Ok("numa", absl::StrFormat("every holder stays on one of %d nodes", nodes.size())));
  return checks;
}

Checks JudgeClock(const HostView& view) {
  if (!view.clock.known)
    return {Skipped("clock", "the kernel does not report the state of its clock")};
  if (view.clock.synchronised) {
    return {Ok("clock", absl::StrFormat("synchronised, to %s at worst",
                                        FormatDuration(view.clock.error_max)))};
  }
  return {Warn("clock",
               "no service keeps this machine's clock: lines of several hosts' logs do not compare",
               "timedatectl set-ntp true\nor apt-get install chrony")};
}

Checks JudgeBinaries(const HostView& view) {
  Checks found;
  for (const HostDaemon& daemon : view.daemons) {
    if (!daemon.binary_replaced) continue;
    found.push_back(Warn("binary",
                         absl::StrFormat("%s runs a program that was replaced since it started",
                                         daemon.settings.origin),
                         "restart it: systemctl restart its unit, or kill -TERM " +
                             std::to_string(daemon.pid) + " and start it again"));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        view.daemons.empty() ? Skipped("binary", "no ckvd runs here")
                             : Ok("binary", "every ckvd here runs the program that is installed"));
  return checks;
}

}  // namespace

Checks JudgeProcessors(const HostView& view) {
  Checks checks;
  for (const auto judge : {&JudgeSpin, &JudgeNodes, &JudgeClock, &JudgeBinaries}) {
    for (Check& check : judge(view)) checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace ckv::ctl::doctor
