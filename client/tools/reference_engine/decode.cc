#include "client/tools/reference_engine/decode.h"

#include <algorithm>
#include <utility>

#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "proto/base/status.h"

namespace ckv {

GreedyChoice ChooseGreedy(std::span<const float> logits) {
  CKV_CHECK(logits.size() >= 2);
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  size_t second = best == 0 ? 1 : 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i != best && logits[i] > logits[second]) second = i;
  }
  return {static_cast<int32_t>(best), logits[best] - logits[second]};
}

absl::StatusOr<std::vector<GreedyChoice>> DecodeGreedy(
    Sequence& sequence, uint32_t vocabulary, std::span<const int32_t> prompt, uint32_t token_count,
    absl::FunctionRef<absl::Status(const GreedyChoice&)> on_token) {
  std::vector<float> logits(vocabulary);
  std::vector<GreedyChoice> choices;
  if (token_count == 0) return choices;
  CKV_RETURN_IF_ERROR(sequence.Append(prompt, logits));
  while (true) {
    choices.push_back(ChooseGreedy(logits));
    CKV_RETURN_IF_ERROR(on_token(choices.back()));
    if (choices.size() == token_count) return choices;
    CKV_RETURN_IF_ERROR(sequence.Append({&choices.back().token, 1}, logits));
  }
}

LocalContext::LocalContext(const Geometry& geometry, WorkerPool* pool)
    : shape_(AttentionShape::Of(geometry)), layers_(geometry.layers), pool_(pool) {}

void LocalContext::AddChunk(std::vector<RowView> layers) {
  CKV_CHECK(layers.size() == layers_);
  token_count_ += layers.front().count;
  chunks_.push_back(std::move(layers));
}

void LocalContext::AddCut(const Sequence& sequence, uint32_t begin, uint32_t count) {
  CKV_CHECK(begin + uint64_t{count} <= sequence.token_count());
  std::vector<RowView> layers;
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    RowView rows = sequence.rows(layer);
    rows.data += size_t{begin} * rows.stride_bytes;
    rows.count = count;
    layers.push_back(rows);
  }
  AddChunk(std::move(layers));
}

void LocalContext::AddCuts(const Sequence& sequence, uint32_t chunk_tokens) {
  CKV_CHECK(chunk_tokens > 0);
  for (uint32_t begin = 0; begin < sequence.token_count(); begin += chunk_tokens) {
    AddCut(sequence, begin, std::min(chunk_tokens, sequence.token_count() - begin));
  }
}

absl::Status LocalContext::Attend(uint32_t layer, const QueryView& q, const PartialView& out) {
  CKV_CHECK(layer < layers_);
  const size_t part_size = size_t{q.count} * (shape_.d_v + 2);
  parts_.resize(part_size * chunks_.size());
  std::vector<AttentionPiece> pieces(chunks_.size());
  std::vector<ConstPartialView> parts;
  std::vector<uint8_t> levels;
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    float* o = parts_.data() + chunk * part_size;
    float* m = o + size_t{q.count} * shape_.d_v;
    AttentionPiece& piece = pieces[chunk];
    piece.q = q;
    piece.rows = chunks_[chunk][layer];
    piece.out = {o, m, m + q.count, PartialDtype::kF32};
    parts.push_back(piece.out);
    const auto ordinal = static_cast<uint32_t>(chunk);
    levels.push_back(ordinal == 0 ? 0 : TreeLevel(ordinal - 1, ordinal));
  }
  AttendPartials(shape_, pieces, *pool_);
  MergeTree(parts, levels, q.count, shape_.d_v, out);
  return absl::OkStatus();
}

}  // namespace ckv
