#include "client/context/context_chunks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

// Resolves the parts one after another.
class ContextChunks::Builder {
 public:
  absl::Status AddPart(const ContextPart& part);
  // Call it after the last part.
  absl::StatusOr<ContextChunks> Finish();

 private:
  absl::Status AddChunk(uint32_t part, const ChunkUse& use);
  absl::Status CheckNoIdTwice() const;
  uint32_t RotationFor(int64_t offset);
  void Sort();

  ContextChunks made_;
  std::vector<int64_t> offsets_;  // the offset of each rotation
  absl::flat_hash_map<int64_t, uint32_t> rotation_of_offset_;
};

absl::StatusOr<ContextChunks> ContextChunks::Make(std::span<const ContextPart> parts) {
  if (parts.empty() || parts.size() > kContextPartCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("a context of %d corpora, must be 1 to %d",
                                                      parts.size(), kContextPartCountMax));
  }
  Builder builder;
  for (const ContextPart& part : parts) CKV_RETURN_IF_ERROR(builder.AddPart(part));
  return builder.Finish();
}

absl::StatusOr<ContextChunks> ContextChunks::Builder::Finish() {
  Sort();
  // A corpus without a name is a list of ids that a caller passed.
  if (made_.corpora_.size() > 1 || made_.corpora_[0]->name.empty())
    CKV_RETURN_IF_ERROR(CheckNoIdTwice());
  made_.rows_ = RowIndex(made_.chunks_, made_.first_rows_, made_.token_count_);
  for (const int64_t offset : offsets_) {
    // A query rotated by -offset sees keys whose position is `offset` later as if it were their
    // canonical position.
    const Geometry& geometry = made_.geometry();
    made_.rotations_.emplace_back(geometry.rope, geometry.d_rope, -offset);
  }
  return std::move(made_);
}

absl::Status ContextChunks::Builder::AddPart(const ContextPart& part) {
  if (part.corpus == nullptr) return absl::InvalidArgumentError("attend: no corpus");
  const Corpus& corpus = *part.corpus;
  if (!made_.corpora_.empty() && corpus.geometry != made_.geometry()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: corpora '%s' and '%s' differ: %s", made_.corpora_.front()->name,
                        corpus.name, DescribeDifference(made_.geometry(), corpus.geometry)));
  }
  const auto ordinal = static_cast<uint32_t>(made_.corpora_.size());
  made_.corpora_.push_back(part.corpus);
  const size_t begin = made_.chunks_.size();
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
  made_.chunks_.resize(begin);
  return absl::InvalidArgumentError(absl::StrFormat("attend: chunk %d twice", *twice));
}

absl::Status ContextChunks::Builder::AddChunk(uint32_t part, const ChunkUse& use) {
  const std::vector<ChunkPlacement>& chunks = made_.corpora_[part]->chunks;
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
  made_.chunks_.push_back({part, use.ordinal, token_count, RotationFor(use.offset)});
  made_.first_rows_.push_back(made_.token_count_);
  made_.token_count_ += token_count;
  return absl::OkStatus();
}

uint32_t ContextChunks::Builder::RotationFor(int64_t offset) {
  // Neighbours mostly share an offset.
  if (!made_.chunks_.empty() && offsets_[made_.chunks_.back().rotation] == offset)
    return made_.chunks_.back().rotation;
  const auto [known, is_new] =
      rotation_of_offset_.try_emplace(offset, static_cast<uint32_t>(offsets_.size()));
  if (is_new) offsets_.push_back(offset);
  return known->second;
}

absl::Status ContextChunks::Builder::CheckNoIdTwice() const {
  absl::flat_hash_set<ChunkId> seen;
  for (const ContextChunk& chunk : made_.chunks_) {
    const ChunkId& id = made_.corpora_[chunk.part]->chunks[chunk.ordinal].id;
    if (seen.insert(id).second) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: chunk %s is there twice; its rows would count twice", id.ToHex()));
  }
  return absl::OkStatus();
}

// Sorts the chunks and their first rows into the order of the tree.
void ContextChunks::Builder::Sort() {
  const auto before = [&](const ContextChunk& a, const ContextChunk& b) {
    return std::pair(a.part, a.ordinal) < std::pair(b.part, b.ordinal);
  };
  if (std::is_sorted(made_.chunks_.begin(), made_.chunks_.end(), before)) return;
  std::vector<uint32_t> order(made_.chunks_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return before(made_.chunks_[a], made_.chunks_[b]); });
  std::vector<ContextChunk> chunks;
  std::vector<uint64_t> first_rows;
  for (const uint32_t i : order) {
    chunks.push_back(made_.chunks_[i]);
    first_rows.push_back(made_.first_rows_[i]);
  }
  made_.chunks_ = std::move(chunks);
  made_.first_rows_ = std::move(first_rows);
}

}  // namespace ckv
