// Cuts the KV splits of a call into blocks of rows, and packs them into frames.
//
//   block    consecutive rows of one unit, merged at a time
//   part     consecutive blocks of one split in one frame: a segment of the wire
//   frame    parts for one holder, as many as fit a slot

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/plan/attend_nodes.h"
#include "client/plan/attend_units.h"
#include "client/plan/route_call.h"

namespace ckv {

struct PlannedBlock {
  uint32_t unit = 0;
  uint32_t row_begin = 0, row_count = 0;  // in the call's rows
  uint32_t arrival_begin = 0;             // its first arrival; one per split of the unit
};

struct PlannedPart {
  uint32_t split = 0;
  uint32_t frame = 0;
  uint32_t row_begin = 0, row_count = 0;
  uint32_t block_begin = 0, block_end = 0;
  uint32_t reply_offset = 0;  // from the start of the reply's body to the first partial
};

struct PlannedFrame {
  uint32_t peer_index = 0;
  uint32_t part_begin = 0, part_end = 0;
  uint32_t row_count = 0;         // rows of all parts
  uint64_t stored_row_count = 0;  // including their rotated copies
  uint32_t piece_count = 0;
  uint32_t index_count = 0;
  // For choices, of all parts: rows, chunks, and the most pieces that the holder makes of them.
  uint32_t chosen_count = 0;
  uint32_t chosen_chunk_count = 0;
  uint32_t chosen_piece_count = 0;
  uint32_t partial_count = 0;
  uint32_t reply_bytes = 0;  // bytes of the body
};

// Part of an AttendPlan. Keeps its memory between calls.
class AttendFrames {
 public:
  // Makes the blocks of all units, and the frames of all peers. Sets the frames of each peer.
  void Cut(const RouteCall& call, const AttendUnits& units, const AttendNodes& nodes,
           std::span<PlannedPeer> peers);
  std::span<const PlannedBlock> blocks() const { return blocks_; }
  std::span<const PlannedPart> parts() const { return parts_; }
  std::span<const PlannedFrame> frames() const { return frames_; }
  // The part that returns the partials of the unit's split number `place` for a block.
  uint32_t PartFor(const PlannedBlock& block, uint32_t place) const {
    return arrivals_[block.arrival_begin + place];
  }

 private:
  // The arguments of Cut.
  struct Cutting {
    const RouteCall& call;
    std::span<const PlannedUnit> units;
    std::span<const PlannedSplit> splits;
    std::span<PlannedPeer> peers;
  };
  void AddBlocks(const Cutting& of, uint32_t unit);
  void SortSplitsByPeer(const Cutting& of);
  void FillFrames(const Cutting& of, uint32_t peer_index);
  void AddToFrame(const Cutting& of, uint32_t peer_index, uint32_t split, uint32_t block);

  std::vector<PlannedBlock> blocks_;
  std::vector<uint32_t> blocks_of_unit_;  // the first block of each unit, plus one entry
  std::vector<PlannedPart> parts_;
  std::vector<PlannedFrame> frames_;
  std::vector<uint32_t> arrivals_;
  // Scratch.
  std::vector<uint32_t> splits_by_peer_;
  std::vector<uint32_t> peer_splits_begin_;  // [peers + 1] start in splits_by_peer_
};

}  // namespace ckv
