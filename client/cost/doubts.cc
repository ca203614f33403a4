#include "client/cost/doubts.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ckv {
namespace {

// Kernels are compared over so many tokens, whatever part of them a holder has.
constexpr double kComparedTokens = 1024;

double KernelUs(const DecisionInput& input, Candidate candidate) {
  Workload work;
  work.rows = input.query_rows;
  work.tokens = work.attended = kComparedTokens;
  candidate.token_share = 1;
  candidate.in_flight = candidate.concurrent = 0;
  return RouteRound(work, candidate).compute_us;
}

struct Named {
  double us = 0;
  std::string name;
};

void AddUnlike(const DecisionInput& input, std::span<const DoubtedHolder> holders,
               std::vector<std::string>& doubts) {
  std::map<KernelTargetId, std::pair<Named, Named>> ranges;  // the cheapest and the dearest
  for (size_t i = 0; i < holders.size(); ++i) {
    if (holders[i].target == KernelTargetId::kUnknown) continue;
    const Named one = {KernelUs(input, input.candidates[i]), holders[i].name};
    if (!(one.us > 0)) continue;
    auto& [least, most] = ranges.try_emplace(holders[i].target, one, one).first->second;
    if (one.us < least.us) least = one;
    if (one.us > most.us) most = one;
  }
  for (const auto& [target, range] : ranges) {
    const auto& [least, most] = range;
    if (!(most.us > kAlikeFactor * least.us)) continue;
    doubts.push_back(absl::StrFormat(
        "%s takes %.1f x as long as %s for the same rows, and both have kernels of %s: it is "
        "loaded, or it was when it was measured. If its replies disagree, it is measured again",
        most.name, most.us / least.us, least.name, KernelTargetName(target)));
  }
}

void AddShared(const DecisionInput& input, std::span<const DoubtedHolder> holders,
               std::vector<std::string>& doubts) {
  struct Host {
    std::set<std::string> names;
    uint32_t processors = 0;
    std::map<std::string, uint32_t> threads;
  };
  std::map<uint16_t, Host> hosts;
  for (size_t i = 0; i < holders.size(); ++i) {
    const HostSeat& seat = input.candidates[i].seat;
    if (!seat.known()) continue;
    Host& host = hosts[seat.host];
    host.names.insert(holders[i].name);
    host.threads[holders[i].name] = seat.threads;
    host.processors = std::max(host.processors, seat.processors);
  }
  for (const auto& [number, host] : hosts) {
    const bool here = number == kThisHost;
    uint64_t threads = here ? 1 : 0;  // the requester's own, which sends, merges and waits
    for (const auto& [name, count] : host.threads) threads += count;
    if (threads <= host.processors) continue;
    // HostLoads knows of turns only if there are more holders than processors.
    const bool counted = host.names.size() > host.processors;
    doubts.push_back(absl::StrFormat(
        "%s share %d %s of %s: %s, so calls take longer",
        absl::StrJoin(host.names, ", ") + (here ? " and this requester" : ""), host.processors,
        host.processors == 1 ? "processor" : "processors", here ? "one host" : "their host",
        counted ? "the holders take turns, which is counted. Whatever else runs there is not"
                : "that is not counted"));
  }
}

}  // namespace

std::vector<std::string> Doubts(const DecisionInput& input,
                                std::span<const DoubtedHolder> holders) {
  std::vector<std::string> doubts;
  holders = holders.first(std::min(holders.size(), input.candidates.size()));
  AddUnlike(input, holders, doubts);
  AddShared(input, holders, doubts);
  std::set<std::string> reported;
  for (const DoubtedHolder& holder : holders) {
    if (!holder.model_error || !(*holder.model_error > kModelErrorMax)) continue;
    if (!reported.insert(holder.name).second) continue;
    doubts.push_back(absl::StrFormat(
        "%s: the model is off by %.0f %% lately: run ckvctl calibrate --profile FILE, name the "
        "file as requester.profile, and restart the requester",
        holder.name, 100 * *holder.model_error));
  }
  return doubts;
}

}  // namespace ckv
