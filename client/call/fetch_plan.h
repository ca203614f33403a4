// Divides a fetch into requests whose replies fit a lane's slots, in the order of delivery.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/calls.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

// The chunk and tensor, within the range of a call, at which a fetch continues an earlier one.
struct FetchFrom {
  uint32_t chunk = 0;
  uint32_t tensor = 0;
};

// The rows of one request: whole tensors of a chunk, some tokens of one tensor, or rows by index.
struct FetchPart {
  uint32_t chunk = 0;  // ordinal in the corpus
  FetchEntry entry;    // complete except for the handle
  // For rows by index: their tokens in the chunk, and the ordinals of their indices among the
  // layer's. Both are borrowed from the plan.
  std::span<const int32_t> indices;
  std::span<const uint32_t> ordinals;
};

// Returns how many bytes of each row of a tensor the call fetches.
uint32_t SentRowBytes(const Geometry& geometry, uint32_t tensor, const ColumnRange& columns);
// Checks that the columns are within the rows. If `rotated`, they must contain all of the RoPE band
// or none of it.
//   InvalidArgument     they do not.
absl::Status CheckColumns(const Geometry& geometry, const ColumnRange& columns, bool rotated);

// Copies rows chosen by index to their places in the memory of the layer.
//   InvalidArgument     `place` does not have the size of the layer's rows.
absl::Status PutSelected(const SelectionCall& call, const SelectedRows& chosen,
                         std::span<std::byte> place);

// Lists the parts of one call at a time. Not thread-safe.
class FetchPlan {
 public:
  // Starts a call that has been checked and whose rows fit slots of `shape`. Borrows the call.
  void Begin(const FetchCall& call, const LaneShape& shape, const FetchFrom& from);
  // Starts a selection. `call` has its chunks and columns. Sorts the indices by layer and chunk.
  //   InvalidArgument     an index is negative or beyond the chunks, or there are too many.
  absl::Status BeginSelection(const FetchCall& call, const LaneShape& shape,
                              std::span<const std::span<const int32_t>> indices);

  // Writes the next part. Parts are in order of chunk, tensor and token; in a selection, in order
  // of layer and chunk. Returns false if none is left.
  bool Next(FetchPart* part);
  // Skips the next `count` parts, or all remaining ones.
  void Skip(uint64_t count);
  bool done() const {
    return selected_ ? at_.group == groups_.size() : at_.chunk == call_->chunk_end;
  }
  // Returns true if a part of this chunk of the call may remain.
  bool Asks(uint32_t chunk) const;
  // Makes Next return the last part again.
  void Back() { at_ = before_; }

 private:
  struct Cursor {
    uint32_t chunk = 0, tensor = 0, token = 0;
    size_t group = 0;  // used by selections, whose `token` counts the indices of the group
  };
  // Indices of one chunk at one layer: [begin, end) in indices_ and ordinals_.
  struct Group {
    uint32_t layer, chunk;
    size_t begin, end;
  };
  void SkipEmpty();
  bool NextSelected(FetchPart* part);
  absl::Status SortLayer(uint32_t layer, std::span<const int32_t> indices);

  const FetchCall* call_ = nullptr;
  // Returns the most tokens of one part of a tensor.
  uint32_t TokensMax(uint32_t tensor) const;

  uint32_t body_bytes_max_ = 0;  // a reply has at most
  uint32_t indices_max_ = 0;     // a part of a selection has at most
  Cursor at_, before_;

  bool selected_ = false;
  // The index of each chunk's first row, as selections count the call's rows, and the end.
  std::vector<uint64_t> row_of_chunk_;
  std::vector<uint32_t> chunk_of_index_, count_of_chunk_;  // for the current layer
  std::vector<bool> requested_;                            // [chunks of the call]
  std::vector<Group> groups_;
  std::vector<int32_t> indices_;
  std::vector<uint32_t> ordinals_;
};

}  // namespace ckv
