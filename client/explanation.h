// The result of Requester::Explain: the predicate's decision and the reasons for it.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cost/predicate.h"
#include "client/cost/what_if.h"
#include "proto/ids.h"

namespace ckv {

struct Explanation {
  DecisionInput input;
  std::vector<HolderId> holders;    // the holder of each of input.candidates
  Decision decision;                // if nothing is chosen, each cost says why_not
  std::vector<Flip> flips;          // the nearest changes that would change it
  std::string summary;              // DescribeDecision, one line
  std::vector<std::string> doubts;  // Doubts (client/cost/doubts.h)
  // The median of measured / predicted over this requester's recent attends. `route_ratio` covers
  // attends that queried a holder, `cached_ratio` those of locally cached rows alone. Each is unset
  // before 16 attends. `decision` does not use them.
  std::optional<double> route_ratio, cached_ratio;
};

}  // namespace ckv
