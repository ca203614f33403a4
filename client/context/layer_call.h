// Converts the caller's segments into the router's.

#pragma once

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/calls.h"
#include "client/context/context.h"
#include "client/context/context_state.h"
#include "client/context/route_call.h"

namespace ckv {

// Keeps the contexts of a call alive, even if their owner closes them meanwhile. Reuses its memory
// between calls.
struct LayerCallSegments {
  std::vector<RouteSegment> segments;
  std::vector<std::shared_ptr<const ContextState>> contexts;
  std::vector<std::shared_ptr<const NearTable>> near;  // keeps locally cached rows alive

  // Fills the vectors and returns the router's call, whose answer goes to memory of kind
  // `out_memory`. `again` marks a later attempt of a call, which continues even if a context was
  // closed meanwhile.
  //   InvalidArgument     a segment has no context.
  //   FailedPrecondition  a context is closed.
  absl::StatusOr<RouteCall> Take(const LayerCall& call, MemoryKind out_memory, bool again = false);
  // Calls `visit` with every corpus of a call; may visit one corpus several times.
  static void ForEachCorpus(const LayerCall& call, absl::FunctionRef<void(const Corpus&)> visit);
  void Clear() {
    segments.clear();
    contexts.clear();
    near.clear();
  }
};

// Does the same for the router's call.
void ForEachCorpus(const RouteCall& call, absl::FunctionRef<void(const Corpus&)> visit);

}  // namespace ckv
