// Why a run of chunks is routed, pulled or made anew, and how often that was decided.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "client/decide/predicate.h"

namespace ckv {

enum class ActReason : uint8_t {
  kUnknown = 0,     // routed: a constant is not known yet
  kSlower,          // routed: attending here takes longer than a round trip
  kOtherTarget,     // routed: the call wants bits that this host's kernels do not give
  kBelowThreshold,  // routed: it has not lost enough time yet
  kNever,           // routed: uses like this have not been worth a pull
  kNoRoom,          // routed: larger than the near store
  kTooSoon,         // routed: was evicted before its last pull had paid for itself
  kQueueFull,       // routed: too many runs wait to be pulled
  kLostEnough,      // pulled or made anew: routing has lost the threshold
  kHint,            // pulled or made anew: the steps that were told are worth it
  kPolicy,          // pulled: the context's policy is near
  kHere,            // near: its rows were here already
};
inline constexpr size_t kActReasonCount = 12;

inline std::string_view ActReasonName(ActReason reason) {
  constexpr std::array<std::string_view, kActReasonCount> kNames = {
      "constants_unknown", "near_is_slower", "other_kernel_target", "below_threshold",
      "not_worth_a_pull",  "no_room",        "pulled_too_lately",   "queue_full",
      "lost_enough",       "steps_told",     "policy_near",         "already_near"};
  return kNames[static_cast<size_t>(reason)];
}

// Decisions on uses of runs, [primitive][reason]. A use counts again when its decision changes.
using DecisionCounts = std::array<std::array<uint64_t, kActReasonCount>, kPrimitiveCount>;

}  // namespace ckv
