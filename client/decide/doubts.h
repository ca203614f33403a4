// Says in sentences what speaks against a prediction.

#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/decide/predicate.h"
#include "proto/kernel_target.h"

namespace ckv {

// Facts of the holder of one candidate beside its costs.
struct DoubtedHolder {
  std::string name;
  KernelTargetId target = KernelTargetId::kUnknown;
  // LiveError's median: how far predictions were off lately.
  std::optional<double> model_error;
};

// Holders of one kernel target are taken to be alike within this factor. Beyond it one of them is
// loaded, or was when it was measured.
inline constexpr double kAlikeFactor = 4;
// A model that is off by more may well choose wrongly.
inline constexpr double kModelErrorMax = 0.25;

// Returns what speaks against the prediction for `input`, a sentence each. `holders` has an entry
// for each of its candidates:
//   * the dearest holder of a kernel target takes more than kAlikeFactor x as long as the cheapest
//   * the holders of a host have more threads than it has processors; on this host the requester's
//     thread counts too. The prediction counts only turns of more holders than processors
//   * predictions for a holder were off by more than kModelErrorMax
std::vector<std::string> Doubts(const DecisionInput& input, std::span<const DoubtedHolder> holders);

}  // namespace ckv
