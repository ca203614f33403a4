// Lists the reasons to doubt a prediction, as sentences for people.

#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/cost/predicate.h"
#include "proto/kernel_target.h"

namespace ckv {

// Facts, other than costs, about the holder of one candidate.
struct DoubtedHolder {
  std::string name;
  KernelTargetId target = KernelTargetId::kUnknown;
  // LiveError's median: the relative error of recent predictions.
  std::optional<double> model_error;
};

// Kernel times of holders with the same kernel target are expected to be within this factor. Beyond
// it, one of them is loaded, or was loaded when it was measured.
inline constexpr double kAlikeFactor = 4;
// A model with a larger error may choose wrongly.
inline constexpr double kModelErrorMax = 0.25;

// Returns one sentence for each reason to doubt the prediction for `input`. `holders` has an entry
// for each of its candidates. The reasons are:
//   * the slowest holder of a kernel target takes more than kAlikeFactor x as long as the fastest
//   * the holders on a host have more threads than it has processors; on this host the requester's
//     thread counts too. The prediction includes only the turns that the holders take if they
//     outnumber the processors
//   * predictions for a holder were off by more than kModelErrorMax
std::vector<std::string> Doubts(const DecisionInput& input, std::span<const DoubtedHolder> holders);

}  // namespace ckv
