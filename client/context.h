// Contexts: the chunks that a sequence attends, resolved once and used for every layer of every
// step.
//
//   ckv::ContextPart part = {.corpus = corpus};  // all chunks, at canonical positions
//   CKV_ASSIGN_OR_RETURN(ckv::Context context,
//                        requester->Open({.parts = {&part, 1}}, deadline));
//   for (uint32_t layer = 0; layer < corpus->geometry.layers; ++layer) {
//     ... q of this layer ...
//     CKV_RETURN_IF_ERROR(requester->Attend(context, layer, q, out, deadline));
//   }
//
// A decode step of many sequences attends all of them with one LayerCall per layer, which has one
// segment per sequence.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "client/calls.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv {

class ContextState;  // client/context/context_state.h

// The caller's expectations. No field is required, and none changes an answer.
struct ContextExpectation {
  std::optional<uint32_t> steps;    // decode steps that will attend the context
  std::optional<uint32_t> agents;   // sequences here that will attend the same chunks
  std::optional<Instant> deadline;  // when the last answer is needed
};

// How the rows of a context are attended. If the requester's backend cannot read rows in host
// memory, every policy acts as kRoute.
enum class ContextPolicy : uint8_t {
  kRoute = 0,  // every query is routed to the holders
  kCache = 1,  // Open fetches all rows to the local row cache; they are attended there
  // The requester decides for each chunk range, and prefetches those for which that pays
  // (client/prefetch/prefetcher.h).
  kAuto = 2,
};

// A request to recompute the rows of a range of chunks: prefill their tokens after those of the
// chunks before them.
struct RecomputeCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk_begin = 0, chunk_end = 0;  // ordinals, [begin, end)
  // Returns the destination of one tensor of a chunk: [token_count][tensor_row_bytes(tensor)], in
  // the layout of a stored chunk, at canonical positions. Write all of it. The memory is valid
  // until the call returns.
  std::function<std::span<std::byte>(uint32_t chunk, uint32_t tensor)> rows;
  // Returns false once the rows are no longer needed. Call it from time to time.
  std::function<bool()> wanted;
};

// How the caller recomputes rows, if it can.
struct Recompute {
  // Recomputes the rows of one range. Called on a thread of the requester, for one range of a
  // context at a time and for up to two contexts at once. Must stay callable until the context
  // destroys its last copy, which may be some time after Close.
  //   Any error           the rows are fetched instead, and `make` is not called again for this
  //                       context.
  std::function<absl::Status(const RecomputeCall&)> make;
  // The time to recompute one token over all layers, in microseconds. Used until the requester has
  // recomputed and timed a range of the same model. If 0, the cost that the engine reported
  // (Requester::ReportPrefill) or the profile's applies; if there is none, nothing is recomputed.
  double us_per_token = 0;
};

// Borrowed until Open returns.
struct ContextSpec {
  // One or more corpora of one geometry, each with the chunks to attend. Answers merge one tree per
  // corpus, in this order.
  std::span<const ContextPart> parts;
  ContextExpectation expect = {};
  ContextPolicy policy = ContextPolicy::kAuto;
  // If false, Open does not wait for unreachable holders; calls over the context still do.
  bool await_holders = true;
  // Only for policy auto. Recomputed rows may differ from the holders' in their last bits, so calls
  // with f32 partials do not use them. Contexts that cannot recompute do not use them either.
  Recompute recompute = {};
};

// Made by Requester::Open; a default-constructed context is closed. Movable. Thread-safe except for
// moves and destruction: any number of calls may use one context at once. Calls in progress
// continue after Close; later ones are refused. A context may outlive its requester.
class Context {
 public:
  Context() = default;
  Context(Context&& other) noexcept = default;
  Context& operator=(Context&& other) noexcept {
    Close();
    state_ = std::move(other.state_);
    expect_ = other.expect_;
    return *this;
  }
  ~Context() { Close(); }

  // Closes the context: calls that begin later return FailedPrecondition. Destruction does the
  // same.
  void Close();
  bool is_open() const;

  // Call only on a context that Open made.
  const Geometry& geometry() const;
  // The number of rows of all its chunks, as selections count them.
  uint64_t token_count() const;
  const ContextExpectation& expect() const { return expect_; }

 private:
  friend class Requester;
  friend struct LayerCallSegments;  // client/plan/layer_call.h
  Context(std::shared_ptr<ContextState> state, const ContextExpectation& expect)
      : state_(std::move(state)), expect_(expect) {}

  std::shared_ptr<ContextState> state_;
  ContextExpectation expect_;
};

}  // namespace ckv
