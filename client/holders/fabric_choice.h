// Which fabric a holder is spoken to over: among those that both sides have, the one whose measured
// constants answer a nominal request soonest. deploy/adr/0011-choice-of-fabric.md says why.

#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/holder_peer.h"
#include "client/lane_opener.h"
#include "client/profile.h"

namespace ckv {

// What a fabric is judged by: one token's queries of the narrowest model, there and back (q + p of
// DeepSeek: 1152 + 1032 bytes a row). T_probe + bytes / BW, without the holder's kernel, which is
// the same behind every fabric; where the bandwidth could not be told, T_probe alone.
inline constexpr uint64_t kNominalExchangeBytes = 16 * 2184;
double ExchangeUs(const FabricConstants& constants);

// A fabric further down in the order of preference is taken only where its median exchange takes
// less than the best of the preferred one, by more than this share. Between two choices on idle
// processors one fabric's exchange differed by a sixth at most in nine of ten, so a difference of
// less tells nothing. Where threads wait for processors, all fabrics take hundreds of microseconds
// at the median and a few at best: median and best then lie so far apart that preference decides.
inline constexpr double kExchangeTieShare = 0.2;

// A lane of tcp that should be of verbs: the first one opened so long after tcp was fallen back to
// tries verbs again. Lanes that are up stay what they are.
inline constexpr Duration kFallbackAgeMax = std::chrono::seconds(60);

// Opens a session with one lane on the fabric that `peer` was found to be reached over soonest. The
// first engine that comes finds that out, while others wait for it: it opens a lane on every fabric
// that both sides have, one after another, probes each for some milliseconds (where processors are
// short of time, for half of the fabric's share of it at most) and keeps the best. All later ones
// take that fabric at once, until the holder lives another life or a lane of it does not come up.
// With one fabric, or one that is forced, there is nothing to choose, and nothing is probed.
//   Unavailable         no fabric reaches the holder; says of each why. The one that is forced does
//                       not; says which the holder has. Or it would be tcp where it should be
//                       verbs, and rdma_fallback refuses that.
//   DeadlineExceeded    also: another engine was still probing.
//   else as OpenLane.
absl::StatusOr<OpenedLane> OpenChosenLane(const LaneRequest& request, HolderPeer& peer);

}  // namespace ckv
