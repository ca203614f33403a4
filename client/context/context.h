// Contexts: what a sequence attends, resolved once and used for every layer of every step.
//
//   ckv::ContextPart part = {.corpus = corpus};  // all chunks, where they stand
//   CKV_ASSIGN_OR_RETURN(ckv::Context context,
//                        requester->Open({.parts = {&part, 1}}, deadline));
//   for (uint32_t layer = 0; layer < corpus->geometry.layers; ++layer) {
//     ... q of this layer ...
//     CKV_RETURN_IF_ERROR(requester->Attend(context, layer, q, out, deadline));
//   }
//
// A decode step of many sequences attends all of them by one LayerCall a layer: a segment each.

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

// The caller's knowledge of its future. Nothing is required, and nothing here changes an answer.
struct ContextExpectation {
  std::optional<uint32_t> steps;    // decode steps that will attend the context
  std::optional<uint32_t> agents;   // sequences here that will attend the same chunks
  std::optional<Instant> deadline;  // when the last answer is wanted
};

// How the rows of a context are attended. If the requester's backend does not reach rows in host
// memory, every policy is kRoute.
enum class ContextPolicy : uint8_t {
  kRoute = 0,  // every query is routed to the holders
  kNear = 1,   // all rows are pulled while the context is opened, and attended here
  // The requester decides for each run of chunks, and pulls in the background what pays
  // (client/act/actor.h).
  kAuto = 2,
};

// Asks for the rows of a range of chunks, to be made anew: their tokens are prefilled behind those
// of the chunks before them.
struct RecomputeCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk_begin = 0, chunk_end = 0;  // ordinals, [begin, end)
  // Returns where a layer of a chunk goes: [token_count][row_bytes], as a chunk stores them, at
  // canonical positions. All of them are to be written. The memory is valid until the call returns.
  std::function<std::span<std::byte>(uint32_t chunk, uint32_t layer)> rows;
  // Says no once nobody waits for the rows any more. Look now and then.
  std::function<bool()> wanted;
};

// How the caller makes rows anew, if it can.
struct Recompute {
  // Called on a thread of the requester's, for one range at a time of a context and for up to two
  // contexts at once. It must stay callable until the context's last copy of it is gone, which may
  // be a while after Close.
  //   Any error           the rows are pulled, and this context's are not made anew again.
  std::function<absl::Status(const RecomputeCall&)> make;
  // Time of a token over all layers, in microseconds. It counts until one range was made, which is
  // timed. If it is 0, the profile's cost of prefill counts (client/decide/profile.h), and without
  // one nothing is made anew.
  double us_per_token = 0;
};

// Borrowed until Open returns.
struct ContextSpec {
  // One or many corpora of one geometry, each with the chunks to attend. Answers merge one tree for
  // each corpus, in this order.
  std::span<const ContextPart> parts;
  ContextExpectation expect = {};
  ContextPolicy policy = ContextPolicy::kAuto;
  // If false, Open does not wait for holders that are away: calls over the context do.
  bool await_holders = true;
  // Only for policy auto. Rows made anew have this process' last bits and not the holders', so a
  // call of f32 partials does not use them. Other contexts see only those rows if they can
  // recompute too.
  Recompute recompute = {};
};

// Made by Requester::Open; a default one is closed. Movable. Thread-safe but for moves and
// destruction: any calls may use it at once. Calls in progress go on after Close; later ones are
// refused. It may outlive its requester.
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

  // Ends the context: calls that begin later are FailedPrecondition. Destruction does the same.
  void Close();
  bool is_open() const;

  // Only of a context that Open made.
  const Geometry& geometry() const;
  // Rows of all its chunks, as selections count them.
  uint64_t token_count() const;
  const ContextExpectation& expect() const { return expect_; }

 private:
  friend class Requester;
  friend struct LayerCallSegments;  // client/context/layer_call.h
  Context(std::shared_ptr<ContextState> state, const ContextExpectation& expect)
      : state_(std::move(state)), expect_(expect) {}

  std::shared_ptr<ContextState> state_;
  ContextExpectation expect_;
};

}  // namespace ckv
