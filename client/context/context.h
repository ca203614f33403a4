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

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "client/calls.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"

namespace ckv {

class ContextState;  // client/context/context_state.h

// The caller's knowledge of its future. Nothing is required, and nothing here changes an answer.
struct ContextExpectation {
  std::optional<uint32_t> steps;    // decode steps that will attend the context
  std::optional<uint32_t> agents;   // sequences here that will attend the same chunks
  std::optional<Instant> deadline;  // when the last answer is wanted
};

// How the rows of a context are attended.
enum class ContextPolicy : uint8_t {
  kRoute = 0,  // every query is routed to the holders
  kNear = 1,   // all rows are pulled while the context is opened, and attended here
  // The requester decides for each run of chunks, and pulls in the background what pays
  // (client/act/actor.h).
  kAuto = 2,
};

// Borrowed until Open returns.
struct ContextSpec {
  // One or many corpora of one geometry, each with the chunks to attend. Answers merge one tree for
  // each corpus, in this order.
  std::span<const ContextPart> parts;
  ContextExpectation expect = {};
  ContextPolicy policy = ContextPolicy::kAuto;
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
