// The answer of Requester::Explain: the predicate's decision and its grounds.

#pragma once

#include <array>
#include <string>
#include <vector>

#include "client/decide/predicate.h"
#include "client/decide/what_if.h"
#include "proto/ids.h"

namespace ckv {

struct Explanation {
  DecisionInput input;
  std::vector<HolderId> holders;  // the holder of each of input.candidates
  Decision decision;              // if nothing is chosen, each cost says why_not
  std::vector<Flip> flips;        // the nearest changes that would turn it
  std::array<double, kKnobCount> sensitivities{};
  std::string summary;              // DescribeDecision, one line
  std::vector<std::string> doubts;  // Doubts (client/decide/doubts.h)
};

}  // namespace ckv
