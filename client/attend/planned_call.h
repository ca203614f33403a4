// The call in progress: what its caller passed, and the plan of it.

#pragma once

#include <vector>

#include "client/plan/attend_plan.h"
#include "client/plan/route_call.h"

namespace ckv {

// The router writes it. The other parts of a router read it.
struct PlannedCall {
  // Its queries name no stream once the call's stream is ordered after theirs.
  RouteCall call;
  AttendPlan plan;
  std::vector<PlannedPeer> peers;  // by peer index
};

}  // namespace ckv
