// Cuts planned shares into blocks of rows, packs them into frames, and writes frames.

#include <algorithm>
#include <cstring>

#include "client/context/attend_plan.h"
#include "client/context/frame_room.h"
#include "proto/base/status.h"

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

}  // namespace

uint32_t AttendPlan::RowsThatFit(const RouteCall& call, const PlannedShare& share,
                                 const LaneShape& shape) const {
  uint32_t fits = 1, too_many = kBlockRowCount + 1;  // AddNode checked that one fits
  while (too_many - fits > 1) {
    const uint32_t middle = (fits + too_many) / 2;
    (ShareFits(call, share, shape, middle) ? fits : too_many) = middle;
  }
  return fits;
}

void AttendPlan::AddBlocks(const RouteCall& call, uint32_t unit_ordinal,
                           std::span<const PlannedLine> lines) {
  const PlannedUnit& unit = units_[unit_ordinal];
  blocks_of_unit_.push_back(static_cast<uint32_t>(blocks_.size()));
  uint32_t rows_max = BlockRowsOf(unit.row_count);
  for (uint32_t i = unit.share_begin; i < unit.share_end; ++i) {
    const LaneShape& shape = lines[shares_[i].line].shape;
    if (!ShareFits(call, shares_[i], shape, rows_max))
      rows_max = std::min(rows_max, RowsThatFit(call, shares_[i], shape));
  }
  if (rows_max < unit.row_count) rows_max = RoundToTiles(rows_max);
  for (uint32_t row = 0; row < unit.row_count; row += rows_max) {
    blocks_.push_back({.unit = unit_ordinal,
                       .row_begin = unit.row_begin + row,
                       .row_count = std::min(rows_max, unit.row_count - row)});
  }
}

void AttendPlan::SortSharesByLine(std::span<const PlannedLine> lines) {
  line_shares_begin_.assign(lines.size() + 1, 0);
  for (const PlannedShare& share : shares_) ++line_shares_begin_[share.line + 1];
  for (size_t i = 0; i < lines.size(); ++i) line_shares_begin_[i + 1] += line_shares_begin_[i];
  shares_by_line_.resize(shares_.size());
  // From the back, so that each line's end moves to its begin.
  for (size_t i = shares_.size(); i-- > 0;)
    shares_by_line_[--line_shares_begin_[shares_[i].line + 1]] = static_cast<uint32_t>(i);
  // Each entry is one place too far to the right now.
  for (size_t i = 0; i < lines.size(); ++i) line_shares_begin_[i] = line_shares_begin_[i + 1];
  line_shares_begin_[lines.size()] = static_cast<uint32_t>(shares_.size());
}

// Block by block, so that the blocks that can be merged first are requested first.
void AttendPlan::FillFrames(const RouteCall& call, uint32_t line, PlannedLine& to) {
  to.frame_begin = static_cast<uint32_t>(frames_.size());
  to.frames_per_block = 0;
  to.row_count = 0;
  const std::span<const uint32_t> shares =
      std::span(shares_by_line_)
          .subspan(line_shares_begin_[line],
                   line_shares_begin_[line + 1] - line_shares_begin_[line]);
  for (size_t begin = 0, end = 0; begin < shares.size(); begin = end) {
    const uint32_t unit = shares_[shares[begin]].unit;
    while (end < shares.size() && shares_[shares[end]].unit == unit) ++end;
    for (uint32_t block = blocks_of_unit_[unit]; block < blocks_of_unit_[unit + 1]; ++block) {
      const size_t frame_count = frames_.size();
      for (size_t i = begin; i < end; ++i) AddToFrame(call, line, to, shares[i], block);
      const bool first_is_old = frame_count > to.frame_begin &&
                                parts_[frames_[frame_count - 1].part_end - 1].block_end > block;
      const auto new_count = static_cast<uint32_t>(frames_.size() - frame_count);
      to.frames_per_block = std::max(to.frames_per_block, new_count + (first_is_old ? 1 : 0));
      to.row_count += blocks_[block].row_count;
    }
  }
  to.frame_end = static_cast<uint32_t>(frames_.size());
}

void AttendPlan::AddToFrame(const RouteCall& call, uint32_t line, const PlannedLine& to,
                            uint32_t share_ordinal, uint32_t block_ordinal) {
  const PlannedShare& share = shares_[share_ordinal];
  const PlannedBlock& block = blocks_[block_ordinal];
  uint32_t& arrival =
      arrivals_[block.arrival_begin + share_ordinal - units_[block.unit].share_begin];
  const bool has_frame = frames_.size() > to.frame_begin;
  // More rows of the same share: the part grows, and its pieces are already in the frame.
  if (has_frame && parts_.back().share == share_ordinal &&
      parts_.back().block_end == block_ordinal) {
    PlannedPart& part = parts_.back();
    PlannedFrame grown = frames_.back();
    grown.row_count += block.row_count;
    grown.stored_row_count += uint64_t{share.copy_count} * block.row_count;
    grown.reply_bytes = part.reply_offset + static_cast<uint32_t>(PartialBytes(
                                                call, share, part.row_count + block.row_count));
    if (FrameFits(call, grown, grown.part_end - grown.part_begin, to.shape)) {
      frames_.back() = grown;
      part.row_count += block.row_count;
      part.block_end = block_ordinal + 1;
      arrival = static_cast<uint32_t>(parts_.size() - 1);
      return;
    }
  }
  const auto part_ordinal = static_cast<uint32_t>(parts_.size());
  PlannedFrame frame = {.line = line, .part_begin = part_ordinal, .part_end = part_ordinal};
  if (has_frame && to.wire_version != 4) frame = frames_.back();
  const auto add = [&](PlannedFrame& into) {
    ++into.part_end;
    into.row_count += block.row_count;
    into.stored_row_count += uint64_t{share.copy_count} * block.row_count;
    into.piece_count += share.piece_count;
    into.index_count += share.index_count;
    into.partial_count += share.node_count;
    into.reply_bytes += static_cast<uint32_t>(PartialBytes(call, share, block.row_count));
  };
  const bool joins = frame.part_end > frame.part_begin;
  add(frame);
  if (!joins) {
    frames_.push_back(frame);
  } else if (FrameFits(call, frame, frame.part_end - frame.part_begin, to.shape)) {
    frames_.back() = frame;
  } else {
    frame = {.line = line, .part_begin = part_ordinal, .part_end = part_ordinal};
    add(frame);
    frames_.push_back(frame);
  }
  const auto bytes = static_cast<uint32_t>(PartialBytes(call, share, block.row_count));
  parts_.push_back({.share = share_ordinal,
                    .frame = static_cast<uint32_t>(frames_.size() - 1),
                    .row_begin = block.row_begin,
                    .row_count = block.row_count,
                    .block_begin = block_ordinal,
                    .block_end = block_ordinal + 1,
                    .reply_offset = frames_.back().reply_bytes - bytes});
  arrival = part_ordinal;
}

namespace {

// Writes the parts of one frame, one after another.
class PartWriter {
 public:
  PartWriter(const RouteCall& call, std::byte* pieces, const RowPlace& rows, int32_t* indices)
      : call_(call), pieces_(pieces), rows_(rows), indices_(indices) {}

  absl::Status WriteRows(const ContextState& context, const PlannedShare& share,
                         const PlannedPart& part, ComputeStream& stream) {
    const uint32_t row_bytes = call_.geometry().query_row_bytes();
    const RowView q = call_.q.Rows(part.row_begin, part.row_count).Bytes();
    for (uint32_t copy = 0; copy < share.copy_count; ++copy) {
      CKV_RETURN_IF_ERROR(stream.backend().Rotate(context.rotations()[share.copies[copy]], q,
                                                  row_bytes, rows_, stream));
      rows_.data += size_t{part.row_count} * row_bytes;
    }
    return absl::OkStatus();
  }

  // Writes the selected rows of a node's pieces, which are stored one after another. If the node
  // also has dense pieces, only one piece has selected rows. Returns how far they move: add this to
  // the index of a piece in the plan to get its index in the frame.
  uint32_t WriteIndices(std::span<const PlannedPiece> pieces, std::span<const int32_t> selected) {
    const auto chosen = [](const PlannedPiece& piece) { return piece.index_begin != kDense; };
    const auto first = std::find_if(pieces.begin(), pieces.end(), chosen);
    if (first == pieces.end()) return 0;
    const PlannedPiece& last = *std::find_if(pieces.rbegin(), pieces.rend(), chosen);
    const uint32_t begin = first->index_begin;
    const uint32_t count = last.index_begin + last.k - begin;
    std::memcpy(indices_ + index_count_, selected.data() + begin, count * sizeof(int32_t));
    index_count_ += count;
    return index_count_ - count - begin;  // modulo 2^32
  }

  template <typename Entry>
  void Append(const Entry& entry) {
    std::memcpy(pieces_, &entry, sizeof(entry));
    pieces_ += sizeof(entry);
  }

 private:
  const RouteCall& call_;
  std::byte* pieces_;
  RowPlace rows_;
  int32_t* const indices_;
  uint32_t index_count_ = 0;
};

WireGrade WireGradeOf(Grade grade) {
  switch (grade) {
    case Grade::kFast:
      return WireGrade::kFast;
    case Grade::kWire:
      return WireGrade::kWire;
    default:
      return WireGrade::kExact;
  }
}

Version4::PieceEntry Version4Of(const PieceEntry& piece) {
  return {.handle = piece.handle,
          .copy = piece.copy,
          .index_begin = piece.index_begin,
          .k = piece.k,
          .group_rows = piece.group_rows};
}

}  // namespace

absl::StatusOr<RequestHeader> AttendPlan::WriteFrame(
    const RouteCall& call, const PlannedFrame& frame, uint16_t wire_version,
    std::span<std::byte> slot, MemoryKind slot_memory, ComputeStream& stream) const {
  const uint32_t d_qk = call.geometry().d_qk;
  const bool old = wire_version == 4;
  const uint32_t part_count = frame.part_end - frame.part_begin;
  const AttendLayout layout =
      old ? Version4::LayOut(frame.piece_count, frame.stored_row_count, frame.index_count, d_qk)
          : LayOutAttend(part_count, frame.piece_count, frame.stored_row_count, frame.index_count,
                         d_qk);
  RequestHeader header;
  header.version = wire_version;
  header.kind = WireKind::kAttend;
  header.flags = static_cast<uint8_t>((call.wire == PartialDtype::kF32 ? kFlagPartialF32 : 0) |
                                      (old ? kFlagPerPiece : 0) |
                                      (call.allow_approximate ? kFlagApproximate : 0));
  header.row_count = frame.row_count;
  header.layer = static_cast<uint16_t>(call.layer);
  header.segment_count = static_cast<uint16_t>(part_count);
  header.piece_count = frame.piece_count;
  header.index_count = frame.index_count;
  header.body_bytes = static_cast<uint32_t>(layout.total_bytes - RequestHeaderBytes(wire_version));
  if (!old) {
    SetTrace(call.trace, header);
    header.grade = WireGradeOf(GradeOf(call.grade, call.wire));
  }
  PartWriter writer(call, slot.data() + layout.pieces, {slot.data() + layout.rows, slot_memory},
                    reinterpret_cast<int32_t*>(slot.data() + layout.indices));
  std::byte* segments = slot.data() + layout.segments;
  for (const PlannedPart& part : PartsOf(frame)) {
    const PlannedShare& share = shares_[part.share];
    const ContextState& context = *call.segments[units_[share.unit].segment].context;
    if (old) {
      header.segment_count = static_cast<uint16_t>(share.copy_count);
    } else {
      const SegmentEntry segment = {.row_count = part.row_count,
                                    .piece_count = share.piece_count,
                                    .partial_count = share.node_count,
                                    .copy_count = static_cast<uint16_t>(share.copy_count)};
      std::memcpy(segments, &segment, sizeof(segment));
      segments += sizeof(segment);
    }
    CKV_RETURN_IF_ERROR(writer.WriteRows(context, share, part, stream));
    for (uint32_t left = share.node_count, n = share.first_node; left > 0;
         --left, n = nodes_[n].next) {
      const std::span<const PlannedPiece> pieces = std::span(pieces_).subspan(
          nodes_[n].piece_begin, nodes_[n].piece_end - nodes_[n].piece_begin);
      const uint32_t moved = writer.WriteIndices(pieces, selected_rows_);
      for (const PlannedPiece& piece : pieces) {
        PieceEntry entry = {.handle = piece.handle,
                            .ordinal = context.chunks()[piece.chunk].ordinal,
                            .partial = nodes_[n].place,
                            .copy = piece.copy};
        if (piece.index_begin != kDense) {
          entry.index_begin = piece.index_begin + moved;
          entry.k = piece.k;
          entry.group_rows = part.row_count;
        }
        if (old) {
          writer.Append(Version4Of(entry));
        } else {
          writer.Append(entry);
        }
      }
    }
  }
  return header;
}

}  // namespace ckv
