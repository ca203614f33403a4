// What an inference engine offers to ckv: a geometry, rows to share, and sequences whose attention
// over a shared context goes through one callback.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "attention/worker_pool.h"
#include "proto/geometry.h"

namespace ckv {

// The partial of the query rows `q` of one layer over the whole shared context, written to `out`
// (f32). Called by the thread that appends, one layer at a time: a layer's queries need the merge
// of the layer before, so a step is `layers` of these calls, one after another.
using ContextAttention =
    std::function<absl::Status(uint32_t layer, const QueryView& q, const PartialView& out)>;

struct SequenceOptions {
  // Canonical position of the sequence's first own token. With a context, the number of its tokens.
  uint64_t position = 0;
  // Absent: the sequence attends its own tokens only.
  ContextAttention context;
  // Computes; used only inside Append. Must outlive the sequence.
  WorkerPool* pool = nullptr;
  uint32_t token_count_max = 1u << 20;
};

// One sequence in progress: its own tokens' rows, behind a shared context or none. One thread at a
// time; the engine must outlive it.
class Sequence {
 public:
  virtual ~Sequence() = default;

  // Computes `tokens` after those there are: every token attends the context and the own tokens up
  // to itself. Writes the last token's logits, [vocabulary], unless `logits` is empty. The same
  // tokens in one call or in several give the same bits.
  //   InvalidArgument     a token outside the vocabulary, or no token.
  //   ResourceExhausted   more than token_count_max; nothing was appended.
  //   the context's error; the sequence is then unusable but for its destruction.
  virtual absl::Status Append(std::span<const int32_t> tokens, std::span<float> logits) = 0;

  // Own tokens, the context not counted.
  virtual uint32_t token_count() const = 0;
  // Rows of the own tokens at `layer`, as a chunk stores them; valid until the next Append.
  virtual RowView rows(uint32_t layer) const = 0;
};

// Told after every block of a prefill how many tokens are done; its error ends the prefill.
using PrefillProgress = absl::FunctionRef<absl::Status(uint32_t tokens_done)>;

// A model ready to run. Immutable, so any thread may use it.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const Geometry& geometry() const = 0;
  virtual uint32_t heads() const = 0;
  virtual uint32_t vocabulary() const = 0;

  //   InvalidArgument     no pool, or a position past the engine's last.
  virtual absl::StatusOr<std::unique_ptr<Sequence>> Start(SequenceOptions options) const = 0;

  // The rows of `tokens` as the start of a text at `position`: what T_local of the predicate buys,
  // and what a corpus is loaded from. Cut them into chunks by rows(layer).
  //   InvalidArgument     as Start and Append.
  //   the error of `progress`.
  absl::StatusOr<std::unique_ptr<Sequence>> Prefill(std::span<const int32_t> tokens,
                                                    uint64_t position, WorkerPool& pool,
                                                    PrefillProgress progress) const;
};

}  // namespace ckv
