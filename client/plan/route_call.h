// The router's form of a call: segments over resolved contexts.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "attention/backend.h"
#include "attention/partial.h"
#include "attention/precision.h"
#include "client/calls.h"
#include "client/context/context_state.h"
#include "client/context/local_rows.h"
#include "client/context/row_choice_state.h"
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
  // A choice of the context's rows; the tokens from choice_token on, each of choice_group_rows
  // query rows. May be null.
  const RowChoiceState* choice = nullptr;
  uint32_t choice_token = 0;
  uint32_t choice_group_rows = 1;
  std::span<const OwnRows> own = {};
  // The context's locally cached rows, attended locally; null if all rows are routed.
  const LocalRowTable* cached = nullptr;

  // The rows that a query row attends at most; 0 means all.
  uint32_t selected_count() const { return choice == nullptr ? selection.k : choice->query().k; }
};

// All pointers must outlive the call.
struct RouteCall {
  uint32_t layer = 0;
  QueryView q = {};
  std::span<const RouteSegment> segments = {};  // at least one
  PartialDtype wire = PartialDtype::kBf16;
  Precision precision = Precision::kDefault;
  bool allow_approximate = false;
  TraceContext trace = {};
  Instant deadline = kInstantMax;
  MemoryKind out_memory = MemoryKind::kHost;  // the kind of memory to write the answer to
  // False if the thread does other work between polls. The call's times are then not used for
  // learning, unless `prompt` is set.
  bool polled_at_once = true;
  // True if the call ends soon after its answer arrives. A caller with other work between polls may
  // notice the answer late, which makes the call's time meaningless.
  bool prompt = true;
  // The requester's own measurement, excluded from the counters of callers' work.
  bool is_trial = false;
  // Records the call's previous attempts. If null, this attempt is the whole call.
  CallTries* tries = nullptr;

  const Geometry& geometry() const { return segments.front().context->geometry(); }
};

// Checks everything about a call that needs no holder, except the selected indices and the row
// limits (AttendPlan::Begin checks those).
//   InvalidArgument     A count, a width, the layer or the dtype is invalid. Segments omit rows or
//                       overlap. Contexts have different geometries. `backend` cannot access the
//                       memory of the query rows, of own rows or of the answer.
absl::Status CheckRouteCall(const RouteCall& call, const Backend& backend);

// The part of CheckRouteCall for the choice of one segment.
absl::Status CheckChoice(const RouteSegment& segment);

// Whether `backend` can attend locally cached rows, which are in host memory.
inline bool ReachesLocalRows(const Backend& backend) {
  return backend.reach().rows.Has(MemoryKind::kHost);
}

}  // namespace ckv
