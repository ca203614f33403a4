// Cuts one Attend call into frames that fit lane slots, and writes them.
//
//   piece  a chunk of the call; pieces are in the call's order
//   group  pieces with the same list of holders, one of which is asked for all of them. A partial
//          then covers the same chunks whichever holder makes it (I2). If every chunk has a partial
//          of its own, a group is everything that one holder is asked for.
//   batch  pieces of one group, as many as one frame can name
//   block  consecutive query rows, the same for all holders, so that a row's partials come together
//   frame  one batch of one block

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "attention/rope.h"
#include "client/calls.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

// The most selected indices of one call: 2,048 rows for each of 8,192 tokens.
inline constexpr uint64_t kSelectionIndexCountMax = uint64_t{1} << 24;

struct PlannedPiece {
  static constexpr uint32_t kNoGroup = 0xffffffff;  // it has no tokens, so nobody is asked

  uint32_t chunk = 0;  // ordinal in the corpus
  uint32_t token_count = 0;
  int64_t offset = 0;
  uint64_t base = 0;  // the index of its first row, as selections count the call's rows
  // Set by the router before Cut.
  uint32_t group = kNoGroup;  // the group's rank: its order of first appearance in the call
  uint32_t handle = 0;
  // Set by Cut.
  uint32_t batch = 0;
  uint32_t copy = 0;  // the ordinal of its offset among those of the batch
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

// Keeps rotations by the offsets in use, because making one takes memory and sines.
class RotationCache {
 public:
  static constexpr size_t kRotationCountMax = 64;
  // Returns the rotation of queries for chunks that stand `offset` from their canonical position.
  // It is valid until the next call.
  const RopeRotation& For(const Geometry& geometry, int64_t offset);

 private:
  struct Entry {
    RopeParams params;
    uint32_t d_rope;
    int64_t offset;
    RopeRotation rotation;
  };
  std::vector<Entry> entries_;
  size_t next_ = 0;  // the entry to replace next
};

// Plans one call at a time: Begin, then Cut, then WriteFrame for each frame. Keeps its memory
// between calls. Not thread-safe.
class AttendPlan {
 public:
  // Checks the call and lists its pieces.
  //   InvalidArgument     a count, a width or the layer is not valid, a chunk is there twice, or an
  //                       index is outside the chunks.
  absl::Status Begin(const AttendCall& call);
  std::span<PlannedPiece> pieces() { return pieces_; }
  std::span<const PlannedPiece> pieces() const { return pieces_; }

  // Divides the call into batches and blocks that fit slots of `shape`. Ranks 0 to group_count - 1
  // are in use.
  //   InvalidArgument     a frame of a single row does not fit; says which limit.
  absl::Status Cut(const AttendCall& call, const LaneShape& shape, uint32_t group_count);
  // Batches of one group are neighbours. Groups are in order of rank.
  std::span<const PlannedBatch> batches() const { return batches_; }
  std::span<const PlannedBlock> blocks() const { return blocks_; }
  // Ordinals of pieces, batch by batch. Within a batch they are in the call's order.
  std::span<const uint32_t> batch_pieces() const { return batch_pieces_; }

  // Writes the body of the frame of (block, batch) into `slot`. Appends the pieces it asks for to
  // `sent`, in order. Appends pieces whose selection has no row in this block to `empty`. Returns
  // the header, whose ids the caller sets before it encodes it. Its piece_count is 0 if there is
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

  // State of a selection: the piece of each index, and per piece scratch of the current block.
  static constexpr uint32_t kNoPiece = 0xffffffff;
  std::vector<uint32_t> piece_of_index_;
  std::vector<uint32_t> k_max_;        // [pieces] the largest count over the groups seen
  std::vector<uint32_t> count_;        // [pieces] counts of the current group
  std::vector<uint32_t> touched_;      // pieces with a count
  std::vector<uint64_t> batch_k_;      // [batches] the sum of k_max_
  std::vector<uint32_t> index_begin_;  // [pieces] in the current frame
  std::vector<uint32_t> cursor_;       // [pieces] in the current group
};

}  // namespace ckv
