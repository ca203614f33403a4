// Measures how far predictions of whole attends were off lately.

#pragma once

#include "client/learn/live_error.h"

namespace ckv {

// One requester's. A call counts if its first attempt answered and its caller did nothing else
// meanwhile. The times of its holders, and of what it attended itself, must have been predicted.
//
// Predictions are made of the least times that were seen lately (BestWindow), so that replicas and
// primitives are compared fairly. A call takes longer if the machine is disturbed. LiveError::Ratio
// says by how much.
struct LiveCalls {
  LiveError routed;  // calls that asked a holder, whatever they attended themselves beside it
  LiveError near;    // calls that attended all rows themselves
};

}  // namespace ckv
