// Converts the caller's segments into the router's.

#pragma once

#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "client/calls.h"
#include "client/context.h"
#include "client/context/context_state.h"
#include "client/plan/route_call.h"
#include "client/row_choice.h"

namespace ckv {

// Keeps the contexts of a call alive, even if their owner closes them meanwhile. Reuses its memory
// between calls.
struct LayerCallSegments {
  std::vector<RouteSegment> segments;
  std::vector<std::shared_ptr<const ContextState>> contexts;
  std::vector<std::shared_ptr<const LocalRowTable>> cached;  // keeps locally cached rows alive
  std::vector<std::shared_ptr<const RowChoiceState>> choices;

  // Fills the vectors and returns the router's call, whose answer goes to memory of kind
  // `out_memory`. `again` marks a later attempt of a call, which continues even if a context was
  // closed meanwhile. If `whole` is not null, it is the context of all segments, and theirs are not
  // read. It must outlive the call.
  //   InvalidArgument     a segment has no context, or an empty choice.
  //   FailedPrecondition  a context is closed.
  absl::StatusOr<RouteCall> Take(const LayerCall& call, MemoryKind out_memory, bool again = false,
                                 const ContextState* whole = nullptr);
  // Whether candidates of choices are attended, which may be gone.
  bool HasCandidates() const;
  // Attends the rows of choices that have been found again (RowChoiceState::rows) by index.
  void UseKeptRows();
  void Clear() {
    segments.clear();
    contexts.clear();
    cached.clear();
    choices.clear();
  }

 private:
  absl::Status TakeChoice(const SegmentChoice& choice);
  absl::Status TakeContext(const Segment& segment, PartialDtype wire, bool again);
};

// Returns a call over one part as a call of one segment, which has no context. `segment` must
// outlive the result.
LayerCall LayerCallOf(const AttendCall& call, Segment& segment);

// The corpora of a call. One may occur several times.
using CallCorpora = absl::InlinedVector<const Corpus*, 8>;
CallCorpora CorporaOf(const RouteCall& call);

}  // namespace ckv
