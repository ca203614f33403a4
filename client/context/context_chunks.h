// The chunks of a context in the order of the fixed tree, their rotations, and the chunk of each of
// its rows.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/rope.h"
#include "client/calls.h"
#include "client/context/row_index.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv {

// One chunk of a context. Has at least one token.
struct ContextChunk {
  uint32_t part = 0;     // the corpus, in ContextChunks::corpora
  uint32_t ordinal = 0;  // in that corpus
  uint32_t token_count = 0;
  uint32_t rotation = 0;  // in ContextChunks::rotations: how to rotate its query rows
};

// Immutable, so any thread may read it.
class ContextChunks {
 public:
  // Resolves the parts. Chunks without tokens are omitted: they add nothing to any row.
  //   InvalidArgument     There is no part, or more than kContextPartCountMax. A part has no
  //                       corpus, or geometries differ. An ordinal is out of range or an offset is
  //                       beyond kOffsetMax. A chunk is listed twice.
  static absl::StatusOr<ContextChunks> Make(std::span<const ContextPart> parts);

  const Geometry& geometry() const { return corpora_.front()->geometry; }
  std::span<const std::shared_ptr<const Corpus>> corpora() const { return corpora_; }
  // In the order of the tree: part by part, by ascending ordinals within each.
  std::span<const ContextChunk> chunks() const { return chunks_; }
  std::span<const RopeRotation> rotations() const { return rotations_; }
  // The number of rows of all chunks, as selections count them.
  uint64_t token_count() const { return token_count_; }
  // The first row of one of chunks(). Selections count rows in the order of the spec.
  uint64_t first_row(uint32_t chunk) const { return first_rows_[chunk]; }
  // Returns the place of a row below token_count() and 2^31, in chunks().
  RowIndex::Place Find(uint32_t row) const { return rows_.Find(row); }

 private:
  class Builder;
  ContextChunks() = default;

  std::vector<std::shared_ptr<const Corpus>> corpora_;
  std::vector<ContextChunk> chunks_;
  std::vector<uint64_t> first_rows_;  // the first row of each chunk
  std::vector<RopeRotation> rotations_;
  uint64_t token_count_ = 0;
  RowIndex rows_;
};

}  // namespace ckv
