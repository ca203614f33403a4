// Cuts the KV splits of a call into frames that fit lane slots. Not thread-safe. Cut, in order:
//   AddBlocks         cuts each unit into blocks of rows, so that each of its splits fits a slot
//                     for one block. Rounds blocks down to whole kernel tiles, if one fits
//   SortSplitsByPeer  sorts the splits by peer index
//   FillFrames        for each peer, block by block: AddToFrame extends the last part, else adds a
//                     part to the last frame, else begins a frame

#include "client/plan/attend_frames.h"

#include <algorithm>

#include "client/plan/frame_buffers.h"

namespace ckv {
namespace {

// Rows that are merged at a time, and cut together: a tile of the kernel. Four blocks fill a
// default slot.
constexpr uint32_t kBlockRowCount = 64;
// Units of more rows than this are cut into whole tiles of the kernel. Smaller ones share frames
// with others, so their blocks must also add up to full slots.
constexpr uint32_t kWholeTilesRowCount = 256;

// Rounds down to whole kernel tiles: 64 rows if that many fit, else 16 rows, one token of 16 heads.
uint32_t RoundToTiles(uint32_t row_count) {
  if (row_count >= kBlockRowCount) return kBlockRowCount;
  return row_count >= kUsefulRowCount ? row_count / kUsefulRowCount * kUsefulRowCount : row_count;
}

// The rows of a block of a unit of this many rows, if its frames hold any number.
uint32_t BlockRowsOf(uint32_t row_count) {
  if (row_count > kWholeTilesRowCount) return kBlockRowCount;
  for (uint32_t rows = kBlockRowCount; rows > kUsefulRowCount; rows /= 2) {
    if (row_count % rows == 0) return rows;
  }
  return std::min(row_count, kUsefulRowCount);
}

uint32_t RowsThatFit(const RouteCall& call, const PlannedSplit& split, const LaneShape& shape) {
  uint32_t fits = 1, too_many = kBlockRowCount + 1;  // AttendNodes checked that one fits
  while (too_many - fits > 1) {
    const uint32_t middle = (fits + too_many) / 2;
    (SplitFits(call, split, shape, middle) ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace

void AttendFrames::Cut(const RouteCall& call, const AttendUnits& units, const AttendNodes& nodes,
                       std::span<PlannedPeer> peers) {
  blocks_.clear();
  blocks_of_unit_.clear();
  parts_.clear();
  frames_.clear();
  const Cutting of = {call, units.units(), nodes.splits(), peers};
  for (uint32_t unit = 0; unit < of.units.size(); ++unit) AddBlocks(of, unit);
  blocks_of_unit_.push_back(static_cast<uint32_t>(blocks_.size()));
  uint32_t arrival_count = 0;
  for (PlannedBlock& block : blocks_) {
    block.arrival_begin = arrival_count;
    arrival_count += of.units[block.unit].split_end - of.units[block.unit].split_begin;
  }
  arrivals_.resize(arrival_count);
  SortSplitsByPeer(of);
  for (uint32_t peer_index = 0; peer_index < peers.size(); ++peer_index) FillFrames(of, peer_index);
}

void AttendFrames::AddBlocks(const Cutting& of, uint32_t unit_ordinal) {
  const PlannedUnit& unit = of.units[unit_ordinal];
  blocks_of_unit_.push_back(static_cast<uint32_t>(blocks_.size()));
  uint32_t rows_max = BlockRowsOf(unit.row_count);
  for (uint32_t i = unit.split_begin; i < unit.split_end; ++i) {
    const PlannedSplit& split = of.splits[i];
    const LaneShape& shape = of.peers[split.peer_index].shape;
    if (!SplitFits(of.call, split, shape, rows_max))
      rows_max = std::min(rows_max, RowsThatFit(of.call, split, shape));
  }
  if (rows_max < unit.row_count) rows_max = RoundToTiles(rows_max);
  for (uint32_t row = 0; row < unit.row_count; row += rows_max) {
    blocks_.push_back({.unit = unit_ordinal,
                       .row_begin = unit.row_begin + row,
                       .row_count = std::min(rows_max, unit.row_count - row)});
  }
}

void AttendFrames::SortSplitsByPeer(const Cutting& of) {
  const size_t peer_count = of.peers.size();
  peer_splits_begin_.assign(peer_count + 1, 0);
  for (const PlannedSplit& split : of.splits) ++peer_splits_begin_[split.peer_index + 1];
  for (size_t i = 0; i < peer_count; ++i) peer_splits_begin_[i + 1] += peer_splits_begin_[i];
  splits_by_peer_.resize(of.splits.size());
  // From the back, so that each peer's end moves to its begin.
  for (size_t i = of.splits.size(); i-- > 0;)
    splits_by_peer_[--peer_splits_begin_[of.splits[i].peer_index + 1]] = static_cast<uint32_t>(i);
  // Each entry is one place too far to the right now.
  for (size_t i = 0; i < peer_count; ++i) peer_splits_begin_[i] = peer_splits_begin_[i + 1];
  peer_splits_begin_[peer_count] = static_cast<uint32_t>(of.splits.size());
}

// Block by block, so that the blocks that can be merged first are requested first.
void AttendFrames::FillFrames(const Cutting& of, uint32_t peer_index) {
  PlannedPeer& to = of.peers[peer_index];
  to.frame_begin = static_cast<uint32_t>(frames_.size());
  to.frames_per_block = 0;
  to.row_count = 0;
  const std::span<const uint32_t> splits =
      std::span(splits_by_peer_)
          .subspan(peer_splits_begin_[peer_index],
                   peer_splits_begin_[peer_index + 1] - peer_splits_begin_[peer_index]);
  for (size_t begin = 0, end = 0; begin < splits.size(); begin = end) {
    const uint32_t unit = of.splits[splits[begin]].unit;
    while (end < splits.size() && of.splits[splits[end]].unit == unit) ++end;
    for (uint32_t block = blocks_of_unit_[unit]; block < blocks_of_unit_[unit + 1]; ++block) {
      const size_t frame_count = frames_.size();
      for (size_t i = begin; i < end; ++i) AddToFrame(of, peer_index, splits[i], block);
      const bool first_is_old = frame_count > to.frame_begin &&
                                parts_[frames_[frame_count - 1].part_end - 1].block_end > block;
      const auto new_count = static_cast<uint32_t>(frames_.size() - frame_count);
      to.frames_per_block = std::max(to.frames_per_block, new_count + (first_is_old ? 1 : 0));
      to.row_count += blocks_[block].row_count;
    }
  }
  to.frame_end = static_cast<uint32_t>(frames_.size());
}

void AttendFrames::AddToFrame(const Cutting& of, uint32_t peer_index, uint32_t split_ordinal,
                              uint32_t block_ordinal) {
  const RouteCall& call = of.call;
  const PlannedPeer& to = of.peers[peer_index];
  const PlannedSplit& split = of.splits[split_ordinal];
  const PlannedBlock& block = blocks_[block_ordinal];
  uint32_t& arrival =
      arrivals_[block.arrival_begin + split_ordinal - of.units[block.unit].split_begin];
  const bool has_frame = frames_.size() > to.frame_begin;
  // More rows of the same split: the part grows, and its chunks are already in the frame.
  if (has_frame && parts_.back().split == split_ordinal &&
      parts_.back().block_end == block_ordinal) {
    PlannedPart& part = parts_.back();
    PlannedFrame grown = frames_.back();
    grown.row_count += block.row_count;
    grown.stored_row_count += uint64_t{split.copy_count} * block.row_count;
    grown.reply_bytes = part.reply_offset + static_cast<uint32_t>(PartialBytes(
                                                call, split, part.row_count + block.row_count));
    if (FrameFits(call, grown, grown.part_end - grown.part_begin, to.shape)) {
      frames_.back() = grown;
      part.row_count += block.row_count;
      part.block_end = block_ordinal + 1;
      arrival = static_cast<uint32_t>(parts_.size() - 1);
      return;
    }
  }
  const auto part_ordinal = static_cast<uint32_t>(parts_.size());
  PlannedFrame frame = {
      .peer_index = peer_index, .part_begin = part_ordinal, .part_end = part_ordinal};
  if (has_frame) frame = frames_.back();
  const auto add = [&](PlannedFrame& into) {
    ++into.part_end;
    into.row_count += block.row_count;
    into.stored_row_count += uint64_t{split.copy_count} * block.row_count;
    AddPieces(split, into);
    into.partial_count += split.node_count;
    into.reply_bytes += static_cast<uint32_t>(PartialBytes(call, split, block.row_count));
  };
  const bool joins = frame.part_end > frame.part_begin;
  add(frame);
  if (!joins) {
    frames_.push_back(frame);
  } else if (FrameFits(call, frame, frame.part_end - frame.part_begin, to.shape)) {
    frames_.back() = frame;
  } else {
    frame = {.peer_index = peer_index, .part_begin = part_ordinal, .part_end = part_ordinal};
    add(frame);
    frames_.push_back(frame);
  }
  const auto bytes = static_cast<uint32_t>(PartialBytes(call, split, block.row_count));
  parts_.push_back({.split = split_ordinal,
                    .frame = static_cast<uint32_t>(frames_.size() - 1),
                    .row_begin = block.row_begin,
                    .row_count = block.row_count,
                    .block_begin = block_ordinal,
                    .block_end = block_ordinal + 1,
                    .reply_offset = frames_.back().reply_bytes - bytes});
  arrival = part_ordinal;
}

}  // namespace ckv
