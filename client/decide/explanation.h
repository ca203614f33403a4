// The answer of Requester::Explain: the predicate's decision and its grounds.

#pragma once

#include <array>
#include <optional>
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
  // The time of this requester's last attends over their predicted time, a median. One is of those
  // that asked a holder, the other of those of near rows alone. Unset before 16 of them. `decision`
  // is made without them.
  std::optional<double> route_ratio, near_ratio;
};

}  // namespace ckv
