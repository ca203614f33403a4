// Finds the chunk of each row of a context.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ckv {

struct ContextChunk;  // client/context/context_chunks.h

// Immutable, so any thread may read it.
class RowIndex {
 public:
  struct Place {
    uint32_t chunk = 0;  // in the context's chunks
    uint32_t row = 0;    // in that chunk
  };

  // Finds nothing.
  RowIndex() = default;
  // `first_rows` has the first row of each chunk, and `row_count` is the number of rows of all
  // chunks. Chunks are in the order of the tree, and rows in the order of the spec.
  RowIndex(std::span<const ContextChunk> chunks, std::span<const uint64_t> first_rows,
           uint64_t row_count);

  // Returns the place of a row below `row_count` and 2^31. Needs no division, and one load if all
  // chunks but the last have the same number of tokens. Otherwise needs a few loads, or more if
  // many small chunks are among large ones.
  Place Find(uint32_t row) const {
    if (tokens_each_ == 0) return FindInBuckets(row);
    // Exact for 31 bits: Granlund and Montgomery, "Division by invariant integers", theorem 4.2.
    const auto start = static_cast<uint32_t>(row * each_multiplier_ >> each_shift_);
    return {starts_[start].chunk, row - start * tokens_each_};
  }

 private:
  // The first row of a chunk.
  struct Start {
    uint32_t row = 0;
    uint32_t chunk = 0;
  };

  void FillBuckets(uint64_t row_count);
  Place FindInBuckets(uint32_t row) const;

  std::vector<Start> starts_;  // by ascending rows
  // Tokens of every chunk but the last in the spec; 0 if they differ. Division by it uses the two
  // below.
  uint32_t tokens_each_ = 0;
  uint64_t each_multiplier_ = 0;
  uint32_t each_shift_ = 0;
  // The last start at or before the first row of each block of 2^bucket_shift_ rows, plus one
  // entry.
  std::vector<uint32_t> buckets_;
  uint32_t bucket_shift_ = 0;
};

}  // namespace ckv
