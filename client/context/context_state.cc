#include "client/context/context_state.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Selections name rows by i32.
constexpr uint64_t kIndexedRowsMax = std::numeric_limits<int32_t>::max();
// Starts of one bucket that are searched one by one.
constexpr uint32_t kLinearMax = 8;

absl::Status CheckPart(const ContextPart& part) {
  if (part.corpus == nullptr) return absl::InvalidArgumentError("attend: no corpus");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ContextState>> ContextState::Make(
    std::span<const ContextPart> parts) {
  if (parts.empty() || parts.size() > kContextPartCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("a context of %d corpora, must be 1 to %d",
                                                      parts.size(), kContextPartCountMax));
  }
  std::shared_ptr<ContextState> state(new ContextState());
  for (const ContextPart& part : parts) {
    CKV_RETURN_IF_ERROR(CheckPart(part));
    CKV_RETURN_IF_ERROR(state->AddPart(part));
  }
  state->Sort();
  // A corpus without a name is a list of ids that a caller passed.
  if (parts.size() > 1 || state->corpora_[0]->name.empty())
    CKV_RETURN_IF_ERROR(state->CheckNoIdTwice());
  state->IndexRows();
  for (const int64_t offset : state->offsets_) {
    // A query rotated by -offset sees keys whose position is `offset` later as if it were their
    // canonical position.
    const Geometry& geometry = state->geometry();
    state->rotations_.emplace_back(geometry.rope, geometry.d_rope, -offset);
  }
  return state;
}

absl::Status ContextState::AddPart(const ContextPart& part) {
  const Corpus& corpus = *part.corpus;
  if (!corpora_.empty() && corpus.geometry != geometry()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: corpora '%s' and '%s' differ: %s", corpora_.front()->name,
                        corpus.name, DescribeDifference(geometry(), corpus.geometry)));
  }
  const auto ordinal = static_cast<uint32_t>(corpora_.size());
  corpora_.push_back(part.corpus);
  const size_t begin = chunks_.size();
  if (part.chunks.empty()) {
    for (uint32_t i = 0; i < corpus.chunks.size(); ++i)
      CKV_RETURN_IF_ERROR(AddChunk(ordinal, {i, 0}));
    return absl::OkStatus();
  }
  for (const ChunkUse& use : part.chunks) CKV_RETURN_IF_ERROR(AddChunk(ordinal, use));
  std::vector<uint32_t> ordinals;
  for (const ChunkUse& use : part.chunks) ordinals.push_back(use.ordinal);
  std::sort(ordinals.begin(), ordinals.end());
  const auto twice = std::adjacent_find(ordinals.begin(), ordinals.end());
  if (twice == ordinals.end()) return absl::OkStatus();
  chunks_.resize(begin);
  return absl::InvalidArgumentError(absl::StrFormat("attend: chunk %d twice", *twice));
}

absl::Status ContextState::AddChunk(uint32_t part, const ChunkUse& use) {
  const std::vector<ChunkPlacement>& chunks = corpora_[part]->chunks;
  if (use.ordinal >= chunks.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: chunk %d of %d", use.ordinal, chunks.size()));
  }
  if (use.offset > kOffsetMax || use.offset < -kOffsetMax) {
    return absl::InvalidArgumentError(absl::StrFormat("attend: chunk %d at offset %d, limit +-%d",
                                                      use.ordinal, use.offset, kOffsetMax));
  }
  const uint32_t token_count = chunks[use.ordinal].token_count;
  if (token_count == 0) return absl::OkStatus();
  chunks_.push_back({part, use.ordinal, token_count, RotationFor(use.offset)});
  first_rows_.push_back(token_count_);
  token_count_ += token_count;
  return absl::OkStatus();
}

uint32_t ContextState::RotationFor(int64_t offset) {
  // Neighbours mostly share an offset.
  if (!chunks_.empty() && offsets_[chunks_.back().rotation] == offset)
    return chunks_.back().rotation;
  const auto [known, is_new] =
      rotation_of_offset_.try_emplace(offset, static_cast<uint32_t>(offsets_.size()));
  if (is_new) offsets_.push_back(offset);
  return known->second;
}

absl::Status ContextState::CheckNoIdTwice() const {
  absl::flat_hash_set<ChunkId> seen;
  for (const ContextChunk& chunk : chunks_) {
    const ChunkId& id = corpora_[chunk.part]->chunks[chunk.ordinal].id;
    if (seen.insert(id).second) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: chunk %s is there twice; its rows would count twice", id.ToHex()));
  }
  return absl::OkStatus();
}

// Sorts chunks_ and first_rows_ into the order of the tree.
void ContextState::Sort() {
  const auto before = [&](const ContextChunk& a, const ContextChunk& b) {
    return std::pair(a.part, a.ordinal) < std::pair(b.part, b.ordinal);
  };
  if (std::is_sorted(chunks_.begin(), chunks_.end(), before)) return;
  std::vector<uint32_t> order(chunks_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return before(chunks_[a], chunks_[b]); });
  std::vector<ContextChunk> chunks;
  std::vector<uint64_t> first_rows;
  for (const uint32_t i : order) {
    chunks.push_back(chunks_[i]);
    first_rows.push_back(first_rows_[i]);
  }
  chunks_ = std::move(chunks);
  first_rows_ = std::move(first_rows);
}

void ContextState::IndexRows() {
  for (uint32_t i = 0; i < chunks_.size(); ++i) {
    if (first_rows_[i] <= kIndexedRowsMax)
      starts_.push_back({static_cast<uint32_t>(first_rows_[i]), i});
  }
  std::sort(starts_.begin(), starts_.end(),
            [](const Start& a, const Start& b) { return a.row < b.row; });
  if (starts_.empty()) return;
  const auto tokens_of = [&](size_t start) { return chunks_[starts_[start].chunk].token_count; };
  size_t alike = 1;
  while (alike + 1 < starts_.size() && tokens_of(alike) == tokens_of(0)) ++alike;
  if (alike + 1 < starts_.size() || tokens_of(starts_.size() - 1) > tokens_of(0))
    return IndexBuckets();
  tokens_each_ = tokens_of(0);
  each_shift_ = 31 + static_cast<uint32_t>(std::bit_width(tokens_each_ - 1));
  each_multiplier_ = ((uint64_t{1} << each_shift_) + tokens_each_ - 1) / tokens_each_;
}

void ContextState::IndexBuckets() {
  const uint64_t rows = std::min(token_count_, kIndexedRowsMax + 1);
  bucket_shift_ = static_cast<uint32_t>(std::bit_width(rows / starts_.size()));
  if (bucket_shift_ > 0) --bucket_shift_;
  const uint64_t bucket_count = (rows >> bucket_shift_) + 2;
  uint32_t start = 0;
  for (uint64_t bucket = 0; bucket < bucket_count; ++bucket) {
    while (start + 1 < starts_.size() && starts_[start + 1].row <= bucket << bucket_shift_) ++start;
    buckets_.push_back(start);
  }
}

ContextState::RowPlace ContextState::FindInBuckets(uint32_t row) const {
  const uint32_t bucket = row >> bucket_shift_;
  uint32_t start = buckets_[bucket];
  const uint32_t last = buckets_[bucket + 1];
  if (last - start > kLinearMax) {
    const auto after = std::upper_bound(starts_.begin() + start, starts_.begin() + last + 1, row,
                                        [](uint32_t r, const Start& s) { return r < s.row; });
    start = static_cast<uint32_t>(after - starts_.begin() - 1);
  } else {
    while (start < last && starts_[start + 1].row <= row) ++start;
  }
  return {starts_[start].chunk, row - starts_[start].row};
}

}  // namespace ckv
