#include "client/call/late_rounds.h"

#include <algorithm>
#include <optional>

#include "client/holders/holder_peer.h"

namespace ckv {

void LateRounds::Begin(Instant posted) {
  const RouteCall& call = planned_.call;
  on_ = !call.is_trial;
  begun_ = posted;
  if (!on_ || planned_.peers.empty()) return;
  rounds_.assign(planned_.peers.size(), Round{});
  for (const PlannedUnit& unit : planned_.plan.units()) {
    const auto chunks = call.segments[unit.segment].context->chunks();
    for (const AttendedChunk& attended : planned_.plan.AttendedBy(unit)) {
      if (attended.peer_index == kCachedPeerIndex) continue;
      const uint32_t rows = attended.row_count(chunks[attended.context_index].token_count);
      rounds_[attended.peer_index].pairs += uint64_t{unit.row_count} * rows;
    }
  }
  Duration longest{0};
  for (uint32_t i = 0; i < rounds_.size(); ++i) {
    const auto p95 = exchange_.link(i).peer().round_times.P95(rounds_[i].pairs);
    if (!p95) return;
    longest = std::max(longest, *p95);
  }
  late_at_ = posted + longest;
}

void LateRounds::End(Instant now) {
  if (!on_) return;
  on_ = false;
  if (!planned_.call.polled_at_once && !planned_.call.prompt) return;
  for (uint32_t i = 0; i < planned_.peers.size(); ++i) {
    const Round& round = rounds_[i];
    const bool answered = round.answered != Instant() && exchange_.outstanding(i) == 0;
    const Instant end = answered ? round.answered : now;
    exchange_.link(i).peer().round_times.Observe(round.pairs, end - begun_);
  }
}

}  // namespace ckv
