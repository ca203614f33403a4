// Greedy decoding, and a context of rows in this process to compare a routed decode with.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "attention/worker_pool.h"
#include "client/tools/reference_engine/engine.h"
#include "proto/geometry.h"

namespace ckv {

// The best token and its margin over the next best. If the margin is less than the error of the
// logits, two correct computations may choose different tokens.
struct GreedyChoice {
  int32_t token = 0;
  float margin = 0;
};
// Returns the first of the best values. `logits` has at least two values.
GreedyChoice ChooseGreedy(std::span<const float> logits);

// Appends `prompt` and then `token_count` greedy tokens. It calls `on_token` after each; an error
// from it ends the decode. The last token is chosen but not appended.
//   Errors of Append and of `on_token`.
absl::StatusOr<std::vector<GreedyChoice>> DecodeGreedy(
    Sequence& sequence, uint32_t vocabulary, std::span<const int32_t> prompt, uint32_t token_count,
    absl::FunctionRef<absl::Status(const GreedyChoice&)> on_token);

// A corpus in this process: chunks of rows, attended one by one and merged in the fixed tree over
// their ordinals. A routed query computes exactly that, so with f32 partials of the same kernel
// target the two agree bit for bit. It may be used by one thread at a time. The rows must outlive
// it.
class LocalContext {
 public:
  LocalContext(const Geometry& geometry, WorkerPool* pool);

  // Adds a chunk. `layers` has one view per layer, all with the same token count.
  void AddChunk(std::vector<RowView> layers);
  // Adds tokens [begin, begin + count) of a sequence, which must not grow later, as the next chunk.
  void AddCut(const Sequence& sequence, uint32_t begin, uint32_t count);
  // Adds the whole sequence in chunks of `chunk_tokens`; the last one may be shorter.
  void AddCuts(const Sequence& sequence, uint32_t chunk_tokens);

  uint64_t token_count() const { return token_count_; }
  size_t chunk_count() const { return chunks_.size(); }

  // Attends all chunks; pass it as SequenceOptions::context.
  absl::Status Attend(uint32_t layer, const QueryView& q, const PartialView& out);

 private:
  const AttentionShape shape_;
  const uint32_t layers_;
  WorkerPool* const pool_;
  uint64_t token_count_ = 0;
  std::vector<std::vector<RowView>> chunks_;  // [chunk][layer]
  std::vector<float> parts_;                  // scratch: o, m, l of every chunk
};

}  // namespace ckv
