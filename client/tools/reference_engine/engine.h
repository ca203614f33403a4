// The interface of an inference engine to ckv: a geometry, rows to share, and sequences. Attention
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

// Writes the partial of one layer's query rows `q` over the whole shared context to `out` (f32).
// The thread that appends calls it, one layer at a time. A layer's queries need the previous
// layer's merge, so a step is `layers` calls, one after another.
using ContextAttention =
    std::function<absl::Status(uint32_t layer, const QueryView& q, const PartialView& out)>;

// The rows of a sequence's own tokens at one layer. Valid until the callback returns.
struct SequenceRows {
  RowView rows;
  const uint32_t* visible = nullptr;  // u32 [q.count]: each query row sees the rows before this one
};

// Writes the partial over the whole shared context, followed by the sequence's own rows. For a
// requester that attends the own rows while it waits for the partials of the context
// (client/requester.h).
using WholeAttention = std::function<absl::Status(uint32_t layer, const QueryView& q,
                                                  const SequenceRows& own, const PartialView& out)>;

struct SequenceOptions {
  // Canonical position of the sequence's first own token. With a context, it is the number of the
  // context's tokens.
  uint64_t position = 0;
  // Attends the shared context; the sequence attends its own tokens and merges. If unset, the
  // sequence attends its own tokens only.
  ContextAttention context = {};
  // If set, attends both instead; `context` is not used.
  WholeAttention whole = {};
  // Threads that compute, used only inside Append. The pool must outlive the sequence.
  WorkerPool* pool = nullptr;
  uint32_t token_count_max = 1u << 20;
};

// One sequence in progress: the rows of its own tokens, after a shared context if there is one.
// Used by one thread at a time. The engine must outlive it.
class Sequence {
 public:
  virtual ~Sequence() = default;

  // Computes `tokens` after the existing ones. Every token attends the context and the sequence's
  // own tokens up to itself. Writes the last token's logits, [vocabulary], unless `logits` is
  // empty. The same tokens in one call or in several give the same bits.
  //   InvalidArgument     a token is outside the vocabulary, or there is no token.
  //   ResourceExhausted   more than token_count_max; nothing was appended.
  //   Other errors are those of the context. The sequence can then only be destroyed.
  virtual absl::Status Append(std::span<const int32_t> tokens, std::span<float> logits) = 0;

  // Counts the sequence's own tokens, without the context.
  virtual uint32_t token_count() const = 0;
  // Returns the rows of the own tokens at `layer` in the format of a chunk, valid until the next
  // Append.
  virtual RowView rows(uint32_t layer) const = 0;
};

// Called after every block of a prefill with the number of tokens done. An error ends the prefill.
using PrefillProgress = absl::FunctionRef<absl::Status(uint32_t tokens_done)>;

// A model ready to run. Immutable, so any thread may use it.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const Geometry& geometry() const = 0;
  virtual uint32_t heads() const = 0;
  virtual uint32_t vocabulary() const = 0;

  // Starts a sequence.
  //   InvalidArgument     there is no pool, or the position is past the engine's last.
  virtual absl::StatusOr<std::unique_ptr<Sequence>> Start(SequenceOptions options) const = 0;

  // Computes the rows of `tokens` as the start of a text at `position`. This is the cost T_local of
  // the predicate, and how the rows of a corpus are made. Cut the rows into chunks by rows(layer).
  //   InvalidArgument     as Start and Append.
  //   Other errors are those of `progress`.
  absl::StatusOr<std::unique_ptr<Sequence>> Prefill(std::span<const int32_t> tokens,
                                                    uint64_t position, WorkerPool& pool,
                                                    PrefillProgress progress) const;
};

}  // namespace ckv
