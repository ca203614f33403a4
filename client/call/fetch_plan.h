// Cuts a fetch into requests whose replies fit a lane's slots, in the order of delivery.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/requester.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

// Where a fetch begins that goes on with an earlier one: a layer of a chunk of its range.
struct FetchFrom {
  uint32_t chunk = 0;
  uint32_t layer = 0;
};

// What one request asks for: whole layers of a chunk, some tokens of one layer, or chosen ones.
struct FetchPiece {
  uint32_t chunk = 0;  // ordinal in the corpus
  FetchEntry entry;    // but for the handle
  // Of chosen rows, both borrowed from the plan: where they are in the chunk, and which of the
  // layer's indices they are.
  std::span<const int32_t> indices;
  std::span<const uint32_t> ordinals;
};

// Bytes of a row as the call wants it.
uint32_t SentRowBytes(const Geometry& geometry, const ColumnRange& columns);
// Columns within the rows. `rotated`: and with all of the RoPE band or nothing of it.
//   InvalidArgument     not so.
absl::Status CheckColumns(const Geometry& geometry, const ColumnRange& columns, bool rotated);

// Puts chosen rows to their places in the layer's.
//   InvalidArgument     `place` is not of the size of the layer's rows.
absl::Status PutSelected(const SelectionCall& call, const SelectedRows& chosen,
                         std::span<std::byte> place);

// One call at a time. Not thread-safe.
class FetchPlan {
 public:
  // Of a checked call, whose rows fit slots of `shape`. Borrows the call.
  void Begin(const FetchCall& call, const LaneShape& shape, const FetchFrom& from);
  // Of a selection; `call` has its chunks and columns. Sorts the indices by layer and chunk.
  //   InvalidArgument     an index is negative or beyond the chunks, or there are too many.
  absl::Status BeginSelection(const FetchCall& call, const LaneShape& shape,
                              std::span<const std::span<const int32_t>> indices);

  // The next piece in order of chunk, layer, token, or of layer and chunk in a selection; false:
  // there is none.
  bool Next(FetchPiece* piece);
  bool done() const {
    return selected_ ? at_.group == groups_.size() : at_.chunk == call_->chunk_end;
  }
  // Whether a piece may be of this chunk of the call.
  bool Asks(uint32_t chunk) const;
  // Next gives the last piece once more.
  void Back() { at_ = before_; }

 private:
  struct Cursor {
    uint32_t chunk = 0, layer = 0, token = 0;
    size_t group = 0;  // of a selection; token counts its indices then
  };
  // Indices of one chunk at one layer: [begin, end) in indices_ and ordinals_.
  struct Group {
    uint32_t layer, chunk;
    size_t begin, end;
  };
  void SkipEmpty();
  bool NextSelected(FetchPiece* piece);
  absl::Status SortLayer(uint32_t layer, std::span<const int32_t> indices);

  const FetchCall* call_ = nullptr;
  uint32_t tokens_max_ = 0;  // of one piece
  Cursor at_, before_;

  bool selected_ = false;
  std::vector<uint64_t>
      row_of_chunk_;  // of its first row in the chunks' concatenation, and the end
  std::vector<uint32_t> chunk_of_index_, count_of_chunk_;  // of the layer at hand
  std::vector<bool> asked_;                                // [chunks of the call]
  std::vector<Group> groups_;
  std::vector<int32_t> indices_;
  std::vector<uint32_t> ordinals_;
};

}  // namespace ckv
