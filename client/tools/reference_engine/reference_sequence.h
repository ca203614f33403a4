// One sequence of the reference engine: its rows, and the forward pass over a block of tokens.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/partial.h"
#include "attention/rope.h"
#include "client/tools/reference_engine/reference_engine.h"

namespace ckv {

class ReferenceSequence final : public Sequence {
 public:
  // `engine` must outlive the sequence; `options` are checked by ReferenceEngine::Start.
  ReferenceSequence(const ReferenceEngine* engine, SequenceOptions options);

  absl::Status Append(std::span<const int32_t> tokens, std::span<float> logits) override;
  uint32_t token_count() const override { return token_count_; }
  RowView rows(uint32_t layer) const override;

 private:
  // 64 tokens x 16 heads = 1024 query rows. That is 8 blocks of 128 for the kernel's threads, and
  // one cKV row is read once per block.
  static constexpr uint32_t kBlockTokens = 64;

  // Scratch of one block, sized for kBlockTokens at most; grown by the first large Append.
  struct Workspace {
    std::vector<float> x;           // [tokens][hidden], the residual stream
    std::vector<float> normed;      // [tokens][hidden]
    std::vector<float> branch;      // [tokens][hidden]
    std::vector<float> query;       // [tokens][heads][d_query]
    std::vector<float> latent;      // [tokens][d_row]
    std::vector<float> absorbed;    // [tokens][heads][d_row]
    std::vector<uint16_t> q;        // the same in bf16
    std::vector<float> value;       // [tokens][heads][d_value]
    std::vector<float> gate, up;    // [tokens][mlp]
    std::vector<uint32_t> limits;   // [tokens][heads]
    std::vector<float> o[3];        // [tokens][heads][d_latent]: context, own, merged
    std::vector<float> m[3], l[3];  // [tokens][heads]
  };

  void Reserve(uint32_t tokens);
  absl::Status RunBlock(std::span<const int32_t> tokens);
  absl::Status RunLayer(uint32_t layer, uint32_t tokens);
  // Projects the block: writes its own rows, leaves the absorbed queries in work_.q.
  void Project(uint32_t layer, uint32_t tokens);
  void WriteRows(uint32_t layer, uint32_t tokens);
  // Computes the merged attention output of the block; returns the entry of work_.o that has it.
  absl::StatusOr<const float*> Attend(uint32_t layer, uint32_t tokens);
  void RunMlp(uint32_t layer, uint32_t tokens);
  PartialView Partial(int which) {
    return {work_.o[which].data(), work_.m[which].data(), work_.l[which].data(),
            PartialDtype::kF32};
  }

  const ReferenceEngine& engine_;
  const ReferenceConfig& config_;
  const SequenceOptions options_;
  uint32_t token_count_ = 0;
  uint32_t block_capacity_ = 0;
  bool failed_ = false;
  std::vector<std::vector<uint16_t>> rows_;  // [layer][token][d_row]
  std::vector<RopeRotation> rotations_;      // rotations of the block's tokens
  Workspace work_;
};

}  // namespace ckv
