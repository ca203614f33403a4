// Turns the caller's segments into the router's.

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

// Keeps the contexts of a call alive, even if their owner closes them meanwhile. Keeps its memory
// between calls.
struct LayerCallSegments {
  std::vector<RouteSegment> segments;
  std::vector<std::shared_ptr<const ContextState>> contexts;
  std::vector<std::shared_ptr<const NearTable>> near;  // keeps near rows alive

  // Fills both, and returns the router's call, whose answer goes to memory of `out_memory`.
  //   InvalidArgument     a segment has no context.
  //   FailedPrecondition  a context is closed.
  // A later attempt of a call (`again`) goes on if a context was closed meanwhile.
  absl::StatusOr<RouteCall> Take(const LayerCall& call, MemoryKind out_memory, bool again = false);
  // Calls `visit` with every corpus of a call; one may come more than once.
  static void ForEachCorpus(const LayerCall& call, absl::FunctionRef<void(const Corpus&)> visit);
  void Clear() {
    segments.clear();
    contexts.clear();
    near.clear();
  }
};

// The same for the router's call.
void ForEachCorpus(const RouteCall& call, absl::FunctionRef<void(const Corpus&)> visit);

}  // namespace ckv
