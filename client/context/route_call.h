// A call as the router takes it: segments over resolved contexts.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "attention/backend.h"
#include "attention/grade.h"
#include "attention/partial.h"
#include "client/calls.h"
#include "client/context/context_state.h"
#include "client/near/near_rows.h"
#include "proto/base/clock.h"
#include "proto/base/trace_context.h"
#include "proto/selection.h"

namespace ckv {

struct CallTries;  // client/trace/call_tries.h

struct RouteSegment {
  uint32_t row_begin = 0;
  uint32_t row_count = 0;
  const ContextState* context = nullptr;
  Selection selection = {};
  RowLimits row_limits = {};
  std::span<const OwnRows> own = {};
  // The context's near rows, attended here; null if all are routed.
  const NearTable* near = nullptr;
};

// Everything it points to must outlive the call.
struct RouteCall {
  uint32_t layer = 0;
  QueryView q = {};
  std::span<const RouteSegment> segments = {};  // one at least
  PartialDtype wire = PartialDtype::kBf16;
  Grade grade = Grade::kDefault;
  bool allow_approximate = false;
  TraceContext trace = {};
  Instant deadline = kInstantMax;
  MemoryKind out_memory = MemoryKind::kHost;  // the kind of memory that the answer goes to
  // False if its thread does other things between its polls. Its times then teach nothing, unless
  // it is `prompt`.
  bool polled_at_once = true;
  // The call ends soon after its answer is there. A caller with work of its own between polls may
  // see it late, and its time says nothing.
  bool prompt = true;
  // The requester's own measurement, which counters of callers' work leave out.
  bool is_trial = false;
  // Tells of the call's attempts before this one. If null, this one is all of it.
  CallTries* tries = nullptr;

  const Geometry& geometry() const { return segments.front().context->geometry(); }
};

// Checks everything about a call that needs no holder but the selected
// indices and the row limits (AttendPlan::Begin).
//   InvalidArgument     A count, a width, the layer or the dtype is not valid. Segments leave
//                       rows out or overlap. Contexts have different geometries. `backend` does not
//                       reach the memory of the query rows, of own rows or of the answer.
absl::Status CheckRouteCall(const RouteCall& call, const Backend& backend);

// Whether `backend` can attend near rows, which are in host memory.
inline bool ReachesNearRows(const Backend& backend) {
  return backend.reach().rows.Has(MemoryKind::kHost);
}

}  // namespace ckv
