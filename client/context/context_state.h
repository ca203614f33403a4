// A context, resolved: its chunks in the order of the fixed tree, their rotations, and the chunk of
// each of its rows.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "attention/rope.h"
#include "client/calls.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv {

// One chunk of a context. It has tokens.
struct ContextChunk {
  uint32_t part = 0;     // the corpus, in ContextState::corpora
  uint32_t ordinal = 0;  // in that corpus
  uint32_t token_count = 0;
  uint32_t rotation = 0;  // in ContextState::rotations: how its queries are turned
};

// Immutable, but for Close, so any thread may read it. The cost of a call grows with the chunks
// that it touches, and not with the context.
class ContextState {
 public:
  // Resolves the parts. Chunks without tokens are left out: they add nothing to any row.
  //   InvalidArgument     There is no part, or more than kContextPartCountMax. A part has no
  //                       corpus, or geometries differ. An ordinal is out of range or an offset
  //                       beyond kOffsetMax. A chunk is there twice.
  static absl::StatusOr<std::shared_ptr<ContextState>> Make(std::span<const ContextPart> parts);

  const Geometry& geometry() const { return corpora_.front()->geometry; }
  std::span<const std::shared_ptr<const Corpus>> corpora() const { return corpora_; }
  // In the order of the tree: part by part, in each by rising ordinals.
  std::span<const ContextChunk> chunks() const { return chunks_; }
  std::span<const RopeRotation> rotations() const { return rotations_; }
  // Rows of all chunks, as selections count them.
  uint64_t token_count() const { return token_count_; }

  struct RowPlace {
    uint32_t chunk = 0;  // in chunks()
    uint32_t row = 0;    // in that chunk
  };
  // Returns the place of a row below token_count() and 2^31. Takes no division and one load if all
  // chunks but the last have as many tokens. Else it takes a few loads, or more if many small
  // chunks lie among large ones.
  RowPlace Find(uint32_t row) const {
    if (tokens_each_ == 0) return FindInBuckets(row);
    // Exact for 31 bits: Granlund and Montgomery, "Division by invariant integers", theorem 4.2.
    const auto start = static_cast<uint32_t>(row * each_multiplier_ >> each_shift_);
    return {starts_[start].chunk, row - start * tokens_each_};
  }

  void Close() { closed_.store(true, std::memory_order_relaxed); }
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

 private:
  ContextState() = default;
  absl::Status AddPart(const ContextPart& part);
  absl::Status AddChunk(uint32_t part, const ChunkUse& use);
  absl::Status CheckNoIdTwice() const;
  uint32_t RotationFor(int64_t offset);
  void Sort();
  void IndexRows();
  void IndexBuckets();
  RowPlace FindInBuckets(uint32_t row) const;

  // The first row of a chunk. Selections count rows in the order of the spec.
  struct Start {
    uint32_t row = 0;
    uint32_t chunk = 0;
  };

  std::vector<std::shared_ptr<const Corpus>> corpora_;
  std::vector<ContextChunk> chunks_;
  std::vector<uint64_t> first_rows_;  // the first row of each chunk
  std::vector<int64_t> offsets_;      // the offset of each rotation
  absl::flat_hash_map<int64_t, uint32_t> rotation_of_offset_;
  std::vector<RopeRotation> rotations_;
  uint64_t token_count_ = 0;
  std::vector<Start> starts_;  // by rising rows
  // The tokens of every chunk but the last in the spec; 0 if they differ. Divides by it.
  uint32_t tokens_each_ = 0;
  uint64_t each_multiplier_ = 0;
  uint32_t each_shift_ = 0;
  // The last start at or before the first row of each 2^bucket_shift_ rows, and one more.
  std::vector<uint32_t> buckets_;
  uint32_t bucket_shift_ = 0;
  std::atomic<bool> closed_{false};
};

}  // namespace ckv
