// A resolved context: its chunks, its usage, and its rows in the local row cache.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "client/context/context_chunks.h"
#include "client/context/context_local_rows.h"
#include "client/context/context_usage.h"
#include "proto/base/status.h"

namespace ckv {

// Thread-safe. Calls have a const context: they read its chunks and its local rows, and count
// themselves in its usage. The cost of a call grows with the chunks that it touches, not with the
// context.
class ContextState {
 public:
  using RowPlace = RowIndex::Place;

  //   InvalidArgument     as ContextChunks::Make.
  static absl::StatusOr<std::shared_ptr<ContextState>> Make(std::span<const ContextPart> parts) {
    CKV_ASSIGN_OR_RETURN(ContextChunks chunks, ContextChunks::Make(parts));
    return std::make_shared<ContextState>(std::move(chunks));
  }
  explicit ContextState(ContextChunks chunks) : chunks_(std::move(chunks)) {}

  // As in ContextChunks.
  const Geometry& geometry() const { return chunks_.geometry(); }
  std::span<const std::shared_ptr<const Corpus>> corpora() const { return chunks_.corpora(); }
  std::span<const ContextChunk> chunks() const { return chunks_.chunks(); }
  std::span<const RopeRotation> rotations() const { return chunks_.rotations(); }
  uint64_t token_count() const { return chunks_.token_count(); }
  uint64_t first_row(uint32_t chunk) const { return chunks_.first_row(chunk); }
  RowPlace Find(uint32_t row) const { return chunks_.Find(row); }

  // The part of ContextUsage that calls use.
  bool watched() const { return usage_.watched(); }
  void CountCall(const CallShape& shape) const { usage_.CountCall(shape); }
  void LookNow() const { usage_.LookNow(); }
  bool closed() const { return usage_.closed(); }
  void Close() { usage_.Close(); }
  // The part of ContextLocalRows that calls use.
  std::shared_ptr<const LocalRowTable> cached() const { return local_rows_.table(); }
  bool cached_same_bits() const { return local_rows_.same_bits(); }
  uint64_t TakePrefetched() const { return local_rows_.TakePrefetched(); }

  // For the owner of the context and for the prefetcher.
  ContextUsage& usage() { return usage_; }
  ContextLocalRows& local_rows() { return local_rows_; }

 private:
  const ContextChunks chunks_;
  mutable ContextUsage usage_;
  mutable ContextLocalRows local_rows_;
};

}  // namespace ckv
