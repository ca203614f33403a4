// Measures the recent errors of predictions of whole attends.

#pragma once

#include "client/cost/live_error.h"

namespace ckv {

// Belongs to one requester. A call counts if its first attempt succeeded and its caller did nothing
// else meanwhile. The times of its holders, and of the rows that it attended itself, must have been
// predicted.
//
// Predictions use the least times measured recently (BestWindow), so that replicas and primitives
// are compared fairly. A call takes longer if the machine is disturbed. LiveError::Ratio returns by
// how much.
struct LiveCalls {
  LiveError routed;  // calls that queried a holder; they may also have attended rows themselves
  LiveError cached;  // calls that attended all rows themselves
};

}  // namespace ckv
