// The forward pass of the reference model. Append cuts tokens into blocks. RunBlock, for each
// layer:
//   Project  normalises, projects, writes the rows of the tokens, and absorbs the queries
//   Attend   attends the own rows and the context's, and merges both in this order
//   output   projects the result back and adds it
//   RunMlp   normalises, and adds the feed-forward part
// Append then computes the logits of the last token. One thread; the pool computes inside each
// step.

#include "client/tools/reference_engine/reference_sequence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/bf16.h"
#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr int kContext = 0, kOwn = 1, kMerged = 2;

// out = x / rms(x), `width` values; sums in order, so the bits depend on the row alone.
void RmsNorm(const float* x, float* out, uint32_t width) {
  double sum = 0;
  for (uint32_t i = 0; i < width; ++i) sum += double{x[i]} * x[i];
  const auto scale = static_cast<float>(1.0 / std::sqrt(sum / width + 1e-6));
  for (uint32_t i = 0; i < width; ++i) out[i] = x[i] * scale;
}

void Add(const std::vector<float>& branch, size_t count, std::vector<float>& x) {
  for (size_t i = 0; i < count; ++i) x[i] += branch[i];
}

}  // namespace

ReferenceSequence::ReferenceSequence(const ReferenceEngine* engine, SequenceOptions options)
    : engine_(*engine),
      config_(engine->config()),
      options_(std::move(options)),
      rows_(engine->config().layers) {}

RowView ReferenceSequence::rows(uint32_t layer) const {
  CKV_CHECK(layer < rows_.size());
  return {reinterpret_cast<const std::byte*>(rows_[layer].data()), token_count_,
          config_.d_row() * 2};
}

void ReferenceSequence::Reserve(uint32_t tokens) {
  if (tokens <= block_capacity_) return;
  block_capacity_ = tokens;
  const size_t n = tokens;
  const size_t query_rows = n * config_.heads;
  for (std::vector<float>* buffer : {&work_.x, &work_.normed, &work_.branch}) {
    buffer->resize(n * config_.hidden);
  }
  work_.query.resize(query_rows * config_.d_query());
  work_.latent.resize(n * config_.d_row());
  work_.absorbed.resize(query_rows * config_.d_row());
  work_.q.resize(query_rows * config_.d_row());
  work_.value.resize(query_rows * config_.d_value);
  work_.gate.resize(n * config_.mlp);
  work_.up.resize(n * config_.mlp);
  work_.limits.resize(query_rows);
  for (int which = 0; which < 3; ++which) {
    work_.o[which].resize(query_rows * config_.d_latent);
    work_.m[which].resize(query_rows);
    work_.l[which].resize(query_rows);
  }
}

absl::Status ReferenceSequence::Append(std::span<const int32_t> tokens, std::span<float> logits) {
  if (failed_) return absl::FailedPreconditionError("sequence: an earlier append failed");
  if (tokens.empty()) return absl::InvalidArgumentError("sequence: no token to append");
  if (!logits.empty() && logits.size() != config_.vocabulary) {
    return absl::InvalidArgumentError(absl::StrFormat("sequence: room for %d logits, need %d",
                                                      logits.size(), config_.vocabulary));
  }
  if (tokens.size() > options_.token_count_max - token_count_) {
    return absl::ResourceExhaustedError(absl::StrFormat("sequence: %d tokens after %d, limit %d",
                                                        tokens.size(), token_count_,
                                                        options_.token_count_max));
  }
  for (const int32_t token : tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= config_.vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrFormat("sequence: token %d, vocabulary of %d", token, config_.vocabulary));
    }
  }
  size_t last_row = 0;
  while (!tokens.empty()) {
    const size_t count = std::min<size_t>(kBlockTokens, tokens.size());
    if (absl::Status status = RunBlock(tokens.first(count)); !status.ok()) {
      failed_ = true;
      return status;
    }
    tokens = tokens.subspan(count);
    last_row = count - 1;
  }
  if (logits.empty()) return absl::OkStatus();
  const float* last = work_.x.data() + last_row * config_.hidden;
  RmsNorm(last, work_.normed.data(), config_.hidden);
  const LinearJob job = {&engine_.logits(), work_.normed.data(), config_.hidden, logits.data(),
                         config_.vocabulary};
  RunLinears({&job, 1}, 1, *options_.pool);
  return absl::OkStatus();
}

absl::Status ReferenceSequence::RunBlock(std::span<const int32_t> tokens) {
  const auto count = static_cast<uint32_t>(tokens.size());
  Reserve(count);
  rotations_.clear();
  for (uint32_t t = 0; t < count; ++t) {
    std::memcpy(work_.x.data() + size_t{t} * config_.hidden, engine_.embedding(tokens[t]),
                config_.hidden * sizeof(float));
    rotations_.emplace_back(engine_.geometry().rope, config_.d_rope,
                            static_cast<int64_t>(options_.position + token_count_ + t));
    std::fill_n(work_.limits.data() + size_t{t} * config_.heads, config_.heads,
                token_count_ + t + 1);
  }
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    CKV_RETURN_IF_ERROR(RunLayer(layer, count));
  }
  token_count_ += count;
  return absl::OkStatus();
}

absl::Status ReferenceSequence::RunLayer(uint32_t layer, uint32_t tokens) {
  const ReferenceEngine::Layer& weights = engine_.layer(layer);
  Project(layer, tokens);
  CKV_ASSIGN_OR_RETURN(const float* o, Attend(layer, tokens));

  const size_t value_width = size_t{config_.heads} * config_.d_value;
  std::vector<LinearJob> jobs;
  for (uint32_t head = 0; head < config_.heads; ++head) {
    jobs.push_back({&weights.value_up[head], o + size_t{head} * config_.d_latent,
                    size_t{config_.heads} * config_.d_latent,
                    work_.value.data() + size_t{head} * config_.d_value, value_width});
  }
  RunLinears(jobs, tokens, *options_.pool);
  const LinearJob out = {&weights.attention_out, work_.value.data(), value_width,
                         work_.branch.data(), config_.hidden};
  RunLinears({&out, 1}, tokens, *options_.pool);
  Add(work_.branch, size_t{tokens} * config_.hidden, work_.x);

  RunMlp(layer, tokens);
  return absl::OkStatus();
}

void ReferenceSequence::Project(uint32_t layer, uint32_t tokens) {
  const ReferenceEngine::Layer& weights = engine_.layer(layer);
  const uint32_t heads = config_.heads, d_query = config_.d_query(), d_row = config_.d_row();
  for (uint32_t t = 0; t < tokens; ++t) {
    const size_t at = size_t{t} * config_.hidden;
    RmsNorm(work_.x.data() + at, work_.normed.data() + at, config_.hidden);
  }
  const std::array<LinearJob, 2> project = {
      LinearJob{&weights.query, work_.normed.data(), config_.hidden, work_.query.data(),
                size_t{heads} * d_query},
      LinearJob{&weights.latent, work_.normed.data(), config_.hidden, work_.latent.data(), d_row}};
  RunLinears(project, tokens, *options_.pool);
  WriteRows(layer, tokens);

  // q row = [W_uk^T q_nope | rope(q_rope)], so that its product with a cKV row is the logit.
  std::vector<LinearJob> absorb;
  for (uint32_t head = 0; head < heads; ++head) {
    absorb.push_back({&weights.key_up[head], work_.query.data() + size_t{head} * d_query,
                      size_t{heads} * d_query, work_.absorbed.data() + size_t{head} * d_row,
                      size_t{heads} * d_row});
  }
  RunLinears(absorb, tokens, *options_.pool);
  for (uint32_t t = 0; t < tokens; ++t) {
    float* query = work_.query.data() + size_t{t} * heads * d_query;
    float* absorbed = work_.absorbed.data() + size_t{t} * heads * d_row;
    RotateBandsF32(rotations_[t], query, heads, d_query, d_query);
    for (uint32_t head = 0; head < heads; ++head) {
      std::memcpy(absorbed + size_t{head} * d_row + config_.d_latent,
                  query + size_t{head} * d_query + config_.d_nope, config_.d_rope * sizeof(float));
    }
  }
  Bf16FromFloats(work_.absorbed.data(), work_.q.data(), size_t{tokens} * heads * d_row);
}

void ReferenceSequence::WriteRows(uint32_t layer, uint32_t tokens) {
  const uint32_t d_row = config_.d_row();
  std::vector<uint16_t>& rows = rows_[layer];
  rows.resize((size_t{token_count_} + tokens) * d_row);
  for (uint32_t t = 0; t < tokens; ++t) {
    float* latent = work_.latent.data() + size_t{t} * d_row;
    // Normalising the latent keeps cKV values near 1, where bf16 has the same relative step.
    RmsNorm(latent, latent, config_.d_latent);
    RotateBandsF32(rotations_[t], latent, 1, d_row, d_row);
    Bf16FromFloats(latent, rows.data() + (size_t{token_count_} + t) * d_row, d_row);
  }
}

absl::StatusOr<const float*> ReferenceSequence::Attend(uint32_t layer, uint32_t tokens) {
  const QueryView q = {work_.q.data(), tokens * config_.heads, config_.d_row()};
  AttentionPiece piece;
  piece.q = q;
  piece.rows = {reinterpret_cast<const std::byte*>(rows_[layer].data()), token_count_ + tokens,
                config_.d_row() * 2};
  piece.row_limits = work_.limits.data();
  if (options_.whole) {
    CKV_RETURN_IF_ERROR(options_.whole(layer, q, {piece.rows, piece.row_limits}, Partial(kMerged)));
    return work_.o[kMerged].data();
  }
  piece.out = Partial(kOwn);
  AttendPartials(AttentionShape::Of(engine_.geometry()), {&piece, 1}, *options_.pool);
  if (!options_.context) return work_.o[kOwn].data();

  CKV_RETURN_IF_ERROR(options_.context(layer, q, Partial(kContext)));
  // The context's tokens are first, so its partial is first: the order is part of the bits (I2).
  const std::array<ConstPartialView, 2> parts = {Partial(kContext), Partial(kOwn)};
  MergePartials(parts, q.count, config_.d_latent, Partial(kMerged));
  return work_.o[kMerged].data();
}

void ReferenceSequence::RunMlp(uint32_t layer, uint32_t tokens) {
  const ReferenceEngine::Layer& weights = engine_.layer(layer);
  for (uint32_t t = 0; t < tokens; ++t) {
    const size_t at = size_t{t} * config_.hidden;
    RmsNorm(work_.x.data() + at, work_.normed.data() + at, config_.hidden);
  }
  const std::array<LinearJob, 2> in = {
      LinearJob{&weights.gate, work_.normed.data(), config_.hidden, work_.gate.data(), config_.mlp},
      LinearJob{&weights.up, work_.normed.data(), config_.hidden, work_.up.data(), config_.mlp}};
  RunLinears(in, tokens, *options_.pool);
  for (size_t i = 0; i < size_t{tokens} * config_.mlp; ++i) {
    const float gate = work_.gate[i];
    work_.gate[i] = gate / (1.0f + std::exp(-gate)) * work_.up[i];
  }
  const LinearJob out = {&weights.down, work_.gate.data(), config_.mlp, work_.branch.data(),
                         config_.hidden};
  RunLinears({&out, 1}, tokens, *options_.pool);
  Add(work_.branch, size_t{tokens} * config_.hidden, work_.x);
}

}  // namespace ckv
