// Cuts one Attend call into frames that fit lane slots, and writes them.
//
// A call has pieces (its chunks, in order). Pieces are grouped: those of one group have the same
// holders, of which one is asked, so that a partial is of the same chunks whichever it is (I2);
// where every chunk has a partial of its own, a group is what one holder is asked for. The pieces
// of a group are divided into batches: what one frame can name. The query rows are divided into
// blocks, the same for all holders, so that every row's partials come together. A frame is one
// batch of one block.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "attention/rope.h"
#include "client/requester.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

// Selected indices of one call: 2,048 rows for each of 8,192 tokens.
inline constexpr uint64_t kSelectionIndexCountMax = uint64_t{1} << 24;
// Positions beyond any context, whose difference to another still fits.
inline constexpr int64_t kOffsetMax = int64_t{1} << 40;

struct PlannedPiece {
  static constexpr uint32_t kNoGroup = 0xffffffff;  // it has no tokens: nobody is asked

  uint32_t chunk = 0;  // ordinal in the corpus
  uint32_t token_count = 0;
  int64_t offset = 0;
  uint64_t base = 0;  // of its rows in the concatenation that selections count in
  // Set by the router before Cut.
  uint32_t group = kNoGroup;  // rank: order of first appearance in the call
  uint32_t handle = 0;
  // Set by Cut.
  uint32_t batch = 0;
  uint32_t copy = 0;
};

struct PlannedBatch {
  uint32_t group = 0;
  uint32_t piece_begin = 0, piece_end = 0;  // in batch_pieces()
  uint32_t copy_begin = 0, copy_end = 0;    // distinct offsets
};

struct PlannedBlock {
  uint32_t row_begin = 0;
  uint32_t row_count = 0;
};

// Rotations by the offsets in use: made once, because making one takes memory and sines.
class RotationCache {
 public:
  static constexpr size_t kRotationCountMax = 64;
  // The rotation of queries for chunks that stand `offset` from their canonical position. Valid
  // until the next call.
  const RopeRotation& For(const Geometry& geometry, int64_t offset);

 private:
  struct Entry {
    RopeParams params;
    uint32_t d_rope;
    int64_t offset;
    RopeRotation rotation;
  };
  std::vector<Entry> entries_;
  size_t next_ = 0;  // to be replaced
};

// One call at a time; keeps its memory between calls. Not thread-safe.
class AttendPlan {
 public:
  // Checks the call and lists its pieces.
  //   InvalidArgument     counts, widths, layer, a chunk twice.
  absl::Status Begin(const AttendCall& call);
  std::span<PlannedPiece> pieces() { return pieces_; }
  std::span<const PlannedPiece> pieces() const { return pieces_; }

  // Divides into batches and blocks for slots of `shape`, `group_count` ranks being in use.
  //   InvalidArgument     a frame of a single row would not fit; says which limit.
  absl::Status Cut(const AttendCall& call, const LaneShape& shape, uint32_t group_count);
  // Batches of one group are neighbours, groups in order of rank.
  std::span<const PlannedBatch> batches() const { return batches_; }
  std::span<const PlannedBlock> blocks() const { return blocks_; }
  // Ordinals of pieces, batch by batch, in each in the order of the call.
  std::span<const uint32_t> batch_pieces() const { return batch_pieces_; }

  // Writes the frame of (block, batch) into `slot`, but for its header's ids. `sent` gets the
  // pieces it asks for, in order, `empty` those whose selection has no row in this block; both are
  // appended to. Returns the header to be completed and encoded; its piece_count is 0 if there is
  // nothing to ask.
  RequestHeader WriteFrame(const AttendCall& call, const PlannedBlock& block,
                           const PlannedBatch& batch, std::span<std::byte> slot,
                           std::vector<uint32_t>* sent, std::vector<uint32_t>* empty);

 private:
  absl::Status ListPieces(const AttendCall& call);
  absl::Status MapSelection(const AttendCall& call);
  absl::Status MakeBatches(const AttendCall& call, const LaneShape& shape, uint32_t group_count);
  absl::Status AddToBatch(const AttendCall& call, const LaneShape& shape, uint32_t piece,
                          uint32_t batch_begin);
  absl::Status MakeDenseBlocks(const AttendCall& call, uint32_t rows_max);
  absl::Status MakeSelectedBlocks(const AttendCall& call, const LaneShape& shape,
                                  uint32_t rows_max);
  absl::Status CutSelectedBlock(const AttendCall& call, const LaneShape& shape, uint32_t rows_max,
                                uint32_t row_begin, uint32_t* row_count);
  void CountGroup(const Selection& selection, uint32_t group);
  bool IndicesFit(const AttendCall& call, const LaneShape& shape, uint32_t row_count,
                  uint32_t group_count) const;
  uint32_t RowsThatFit(const AttendCall& call, const LaneShape& shape,
                       const PlannedBatch& batch) const;
  uint32_t WriteSelection(const AttendCall& call, const PlannedBlock& block,
                          const PlannedBatch& batch, std::span<const uint32_t> sent, int32_t* out);
  uint32_t CopyOf(const PlannedBatch& batch, int64_t offset) const;

  std::vector<PlannedPiece> pieces_;
  std::vector<bool> seen_;  // [chunks of the corpus]
  std::vector<PlannedBatch> batches_;
  std::vector<PlannedBlock> blocks_;
  std::vector<uint32_t> batch_pieces_;
  std::vector<int64_t> copies_;  // offsets, batch by batch
  RotationCache rotations_;

  // Of a selection: the piece of each index, and per piece scratch of the block at hand.
  static constexpr uint32_t kNoPiece = 0xffffffff;
  std::vector<uint32_t> piece_of_index_;
  std::vector<uint32_t> k_max_;        // [pieces] largest count over the groups seen
  std::vector<uint32_t> count_;        // [pieces] of the group at hand
  std::vector<uint32_t> touched_;      // pieces with a count
  std::vector<uint64_t> batch_k_;      // [batches] sum of k_max_
  std::vector<uint32_t> index_begin_;  // [pieces] of the frame at hand
  std::vector<uint32_t> cursor_;       // [pieces] of the group at hand
};

}  // namespace ckv
