#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/ctl/doctor/fleet_checks.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv::ctl::doctor {
namespace {

Checks JudgeClocks(const FleetFacts& facts) {
  Checks found;
  Duration worst{0};
  for (const Told* told : facts.Telling()) {
    const Duration ahead = told->clock_ahead;
    const Duration size = ahead < Duration(0) ? -ahead : ahead;
    worst = std::max(worst, size);
    if (size <= kClockAheadMax + told->clock_error) continue;
    found.push_back(Warn(
        "clock",
        absl::StrFormat("the clock of %s at %s is %s %s this machine's", told->who, told->address,
                        FormatDuration(size), ahead < Duration(0) ? "behind" : "ahead of"),
        "on that host: timedatectl set-ntp true\nor apt-get install chrony"));
  }
  Checks checks;
  AddOr(
      checks, std::move(found),
      facts.Telling().empty()
          ? Skipped("clock", "no member reports its time")
          : Ok("clock",
               "within " + FormatDuration(std::max<Duration>(worst, std::chrono::milliseconds(1))) +
                   " of this machine's"));
  return checks;
}

struct HostLoad {
  uint64_t threads = 0;
  uint32_t processors = 0;  // the most that one of its processes may use
  std::vector<std::string> names;
};

// Processes of one host share its processors. A process with two roles is listed twice, and counted
// once.
std::map<std::string, HostLoad> LoadsOf(const FleetFacts& facts) {
  std::map<std::string, HostLoad> loads;
  std::set<std::pair<std::string, uint32_t>> seen;
  for (const Told* told : facts.Telling()) {
    const ProcessFacts& process = *told->process;
    if (!seen.emplace(process.host_identity, process.pid).second) continue;
    HostLoad& load = loads[process.host_identity];
    load.processors = std::max(load.processors, process.processor_count);
    if (process.spinning_thread_count == 0) continue;
    load.threads += process.spinning_thread_count;
    load.names.push_back(told->who);
  }
  return loads;
}

Checks JudgePolling(const FleetFacts& facts) {
  Checks found;
  size_t known = 0;
  for (const auto& [host, load] : LoadsOf(facts)) {
    if (load.processors == 0) continue;
    ++known;
    if (load.threads <= load.processors) continue;
    found.push_back(
        Warn("spin",
             absl::StrFormat("%d threads of %s poll on the %s of their host: they yield "
                             "to each other, and calls wait for wake-ups",
                             load.threads, JoinWho(load.names),
                             FormatCount(load.processors, "processor")),
             "run fewer of them there, or less compute_threads; or spin_us: 0 in those "
             "that may answer late"));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        known == 0 ? Skipped("spin", "no member reports its processors")
                   : Ok("spin", "no host has more threads that poll than processors"));
  return checks;
}

// Those that run have what they need, or may lock memory without limit.
Checks JudgeLocks(const FleetFacts& facts) {
  const uint64_t needed = VerbsOptions{}.region_bytes.total_max;
  Checks found;
  size_t known = 0;
  for (const Told* told : facts.Telling()) {
    const auto& fabrics = told->process->fabrics;
    if (std::find(fabrics.begin(), fabrics.end(), "verbs") == fabrics.end()) continue;
    ++known;
    if (told->process->memlock_bytes_max >= needed) continue;
    found.push_back(Warn("memlock",
                         absl::StrFormat("%s may lock %s, and verbs pins up to %s: it runs because "
                                         "it has CAP_IPC_LOCK, and does not start without",
                                         told->who, FormatBytes(told->process->memlock_bytes_max),
                                         FormatBytes(needed)),
                         "in its unit: LimitMEMLOCK=infinity"));
  }
  Checks checks;
  AddOr(checks, std::move(found),
        known == 0 ? Skipped("memlock", "no member has verbs among its fabrics")
                   : Ok("memlock", "enough for verbs, everywhere"));
  return checks;
}

}  // namespace

Checks JudgeHosts(const FleetFacts& facts) {
  Checks checks = JudgeClocks(facts);
  for (Check& check : JudgePolling(facts)) checks.push_back(std::move(check));
  for (Check& check : JudgeLocks(facts)) checks.push_back(std::move(check));
  return checks;
}

}  // namespace ckv::ctl::doctor
