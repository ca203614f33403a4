// Greedy decoding, and a context of rows in this process: what a routed decode is compared with.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "attention/worker_pool.h"
#include "client/engine.h"
#include "proto/geometry.h"

namespace ckv {

// The best token, and by how much it is better than the next: a token chosen by less than the
// error of its logits may differ between two right computations.
struct GreedyChoice {
  int32_t token = 0;
  float margin = 0;
};
// The first of equals wins. `logits` has at least two values.
GreedyChoice ChooseGreedy(std::span<const float> logits);

// Appends `prompt`, then `token_count` greedy tokens; calls `on_token` after each, whose error ends
// the decode. The last token is chosen and not appended.
//   Errors of Append and of `on_token`.
absl::StatusOr<std::vector<GreedyChoice>> DecodeGreedy(
    Sequence& sequence, uint32_t vocabulary, std::span<const int32_t> prompt, uint32_t token_count,
    absl::FunctionRef<absl::Status(const GreedyChoice&)> on_token);

// A corpus in this process: chunks of rows, attended one by one and merged in their order. That is
// exactly what a per-chunk routed query computes, so the two agree bit for bit with f32 partials.
// One thread at a time; the rows must outlive it.
class LocalContext {
 public:
  LocalContext(const Geometry& geometry, WorkerPool* pool);

  // `layers` are the chunk's rows, one view a layer, all of one token count.
  void AddChunk(std::vector<RowView> layers);
  // Tokens [begin, begin + count) of a sequence as the next chunk; it must not grow meanwhile.
  void AddCut(const Sequence& sequence, uint32_t begin, uint32_t count);
  // All of it in chunks of `chunk_tokens`, the last one shorter.
  void AddCuts(const Sequence& sequence, uint32_t chunk_tokens);

  uint64_t token_count() const { return token_count_; }
  size_t chunk_count() const { return chunks_.size(); }

  // What SequenceOptions::context calls.
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
