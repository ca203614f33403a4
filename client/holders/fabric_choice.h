// Chooses the fabric to a holder: among those that both sides have, the one that answers a nominal
// request soonest by its measured constants. Reasons: deploy/adr/0011-choice-of-fabric.md.

#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cost/profile.h"
#include "client/holders/holder_peer.h"
#include "client/holders/lane_opener.h"

namespace ckv {

// The request that fabrics are compared by: one token's queries of the narrowest model, both ways.
// For DeepSeek q + p is 1152 + 1032 bytes per row. Its time is T_probe + bytes / BW. The holder's
// kernel is left out, because it is the same behind every fabric. If the bandwidth is not known,
// the time is T_probe alone.
inline constexpr uint64_t kNominalExchangeBytes = 16 * 2184;
double ExchangeUs(const FabricConstants& constants);

// A fabric later in the order of preference is chosen only if it is clearly faster. Its median
// exchange must be shorter than the preferred one's best by more than this share. Between two
// choices on idle processors, one fabric's exchange differed by at most a sixth in nine of ten
// cases. So a smaller difference means nothing. If threads wait for processors, every fabric takes
// hundreds of microseconds at the median and a few at best. Median and best then differ so much
// that preference decides.
inline constexpr double kExchangeTieShare = 0.2;

// How long a fallback from verbs to tcp is used. The first lane opened after this tries verbs
// again. Lanes that are up stay as they are.
inline constexpr Duration kFallbackAgeMax = std::chrono::seconds(60);

// Opens a session with one lane on the fabric that reaches `peer` soonest. The first call context
// finds that fabric, while others wait for it. It opens a lane on every fabric that both sides
// have, one after another, and probes each for some milliseconds. If processors are short of time,
// a probe takes at most half of the fabric's share of the time. The best lane is kept.
//
// Later contexts use that fabric at once, until one of its lanes cannot be opened, a fallback
// expires, or the holder restarts with other fabrics. If there is only one fabric, or one is
// forced, nothing is probed.
//   Unavailable         no fabric reaches the holder; gives the reason for each. Or the forced one
//                       does not, though the holder may have it. Or it would be tcp instead of
//                       verbs, which rdma_fallback refuses.
//   FailedPrecondition  the forced fabric does not reach the holder, which has others; names them.
//   DeadlineExceeded    also: another call context was still probing. Other errors as OpenLane.
absl::StatusOr<OpenedLane> OpenChosenLane(const LaneRequest& request, HolderPeer& peer);

}  // namespace ckv
