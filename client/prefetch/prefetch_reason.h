// Why a chunk range is routed, prefetched or recomputed, and how often that was decided.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "client/cost/predicate.h"

namespace ckv {

enum class PrefetchReason : uint8_t {
  kUnknown = 0,     // routed: a constant is not known yet
  kSlower,          // routed: attending here takes longer than a round trip
  kOtherTarget,     // routed: the call needs bits that this host's kernels do not give
  kBelowThreshold,  // routed: it has not lost enough time yet
  kNever,           // routed: a prefetch for similar uses has not paid
  kNoRoom,          // routed: larger than the local row cache
  kTooSoon,         // routed: was evicted before its last prefetch had paid for itself
  kQueueFull,       // routed: too many ranges wait to be prefetched
  kLostEnough,      // prefetched or recomputed: routing has lost the threshold
  kHint,            // prefetched or recomputed: the caller expects enough steps
  kPolicy,          // prefetched: the context's policy is `cache`
  kHere,            // cached locally: its rows were here already
};
inline constexpr size_t kPrefetchReasonCount = 12;

inline std::string_view PrefetchReasonName(PrefetchReason reason) {
  constexpr std::array<std::string_view, kPrefetchReasonCount> kNames = {
      "constants_unknown",    "cached_is_slower", "other_kernel_target",   "below_threshold",
      "not_worth_a_prefetch", "no_room",          "prefetched_too_lately", "queue_full",
      "lost_enough",          "steps_reported",   "policy_cache",          "already_cached"};
  return kNames[static_cast<size_t>(reason)];
}

// Decisions on uses of ranges, [primitive][reason]. A use counts again when its decision changes.
using DecisionCounts = std::array<std::array<uint64_t, kPrefetchReasonCount>, kPrimitiveCount>;

}  // namespace ckv
