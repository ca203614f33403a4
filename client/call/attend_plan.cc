// Cuts an Attend. Pieces fill batches first, then rows fill blocks: of a dense call as many as fit
// every batch's frame, of a selection as many as their index lists leave room for.

#include "client/call/attend_plan.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// The fewest rows that keep the holder's kernel off its slow path for single rows: one token's
// heads. A batch gets fewer pieces rather than fewer rows than this.
constexpr uint32_t kUsefulRowCount = 16;

uint32_t PartialCount(const AttendCall& call, uint32_t piece_count) {
  return call.per_chunk ? piece_count : 1;
}

bool ReplyFits(const AttendCall& call, const LaneShape& shape, uint32_t piece_count,
               uint32_t row_count) {
  const PartialLayout partial =
      LayOutPartial(row_count, call.corpus->geometry.d_v, call.wire == PartialDtype::kF32);
  return sizeof(ReplyHeader) + uint64_t{PartialCount(call, piece_count)} * partial.total_bytes <=
         shape.reply_bytes_max;
}

bool RequestFits(const AttendCall& call, const LaneShape& shape, uint32_t piece_count,
                 uint32_t copy_count, uint32_t row_count, uint32_t index_count) {
  return LayOutAttend(piece_count, copy_count, row_count, index_count, call.corpus->geometry.d_qk)
             .total_bytes <= shape.request_bytes_max;
}

// Rounds down to whole kernel tiles: 64 rows if that many fit, else 16 rows, one token of 16 heads.
uint32_t RoundToTiles(uint32_t row_count) {
  if (row_count >= 64) return row_count / 64 * 64;
  return row_count >= kUsefulRowCount ? row_count / kUsefulRowCount * kUsefulRowCount : row_count;
}

uint32_t GroupCount(const Selection& selection, uint32_t row_count) {
  return row_count / selection.group_rows + (row_count % selection.group_rows != 0 ? 1 : 0);
}

absl::Status CheckCall(const AttendCall& call) {
  if (call.corpus == nullptr) return absl::InvalidArgumentError("attend: no corpus");
  const Geometry& geometry = call.corpus->geometry;
  if (call.layer >= geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: layer %d of %d", call.layer, geometry.layers));
  }
  if (call.q.count == 0 || call.q.count > kAttendRowCountMax || call.q.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("attend: %d query rows, 1 to %d can be", call.q.count, kAttendRowCountMax));
  }
  if (call.q.stride < geometry.d_qk) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "attend: query rows of %d values, the model has %d", call.q.stride, geometry.d_qk));
  }
  if (call.wire != PartialDtype::kBf16 && call.wire != PartialDtype::kF32) {
    return absl::InvalidArgumentError("attend: no such dtype of partials");
  }
  if (!call.selection.present()) return absl::OkStatus();
  if (call.selection.group_rows == 0) {
    return absl::InvalidArgumentError("attend: a selection of groups of 0 rows");
  }
  const uint64_t index_count =
      uint64_t{GroupCount(call.selection, call.q.count)} * call.selection.k;
  if (index_count > kSelectionIndexCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("attend: %d selected indices, limit %d",
                                                      index_count, kSelectionIndexCountMax));
  }
  return absl::OkStatus();
}

}  // namespace

const RopeRotation& RotationCache::For(const Geometry& geometry, int64_t offset) {
  for (const Entry& entry : entries_) {
    if (entry.offset == offset && entry.d_rope == geometry.d_rope &&
        entry.params == geometry.rope) {
      return entry.rotation;
    }
  }
  // A query rotated by -offset sees keys that stand `offset` later as if they stood at home.
  Entry entry = {geometry.rope, geometry.d_rope, offset,
                 RopeRotation(geometry.rope, geometry.d_rope, -offset)};
  if (entries_.size() < kRotationCountMax) {
    entries_.push_back(std::move(entry));
    return entries_.back().rotation;
  }
  next_ = (next_ + 1) % kRotationCountMax;
  entries_[next_] = std::move(entry);
  return entries_[next_].rotation;
}

absl::Status AttendPlan::Begin(const AttendCall& call) {
  pieces_.clear();
  CKV_RETURN_IF_ERROR(CheckCall(call));
  CKV_RETURN_IF_ERROR(ListPieces(call));
  return call.selection.present() ? MapSelection(call) : absl::OkStatus();
}

absl::Status AttendPlan::ListPieces(const AttendCall& call) {
  const std::vector<ChunkPlacement>& chunks = call.corpus->chunks;
  const size_t count = call.chunks.empty() ? chunks.size() : call.chunks.size();
  seen_.assign(chunks.size(), false);
  uint64_t base = 0;
  for (size_t i = 0; i < count; ++i) {
    const ChunkUse use =
        call.chunks.empty() ? ChunkUse{static_cast<uint32_t>(i), 0} : call.chunks[i];
    if (use.ordinal >= chunks.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("attend: chunk %d of %d", use.ordinal, chunks.size()));
    }
    if (seen_[use.ordinal]) {
      return absl::InvalidArgumentError(absl::StrFormat("attend: chunk %d twice", use.ordinal));
    }
    if (use.offset > kOffsetMax || use.offset < -kOffsetMax) {
      return absl::InvalidArgumentError(absl::StrFormat("attend: chunk %d at offset %d, limit +-%d",
                                                        use.ordinal, use.offset, kOffsetMax));
    }
    seen_[use.ordinal] = true;
    PlannedPiece piece;
    piece.chunk = use.ordinal;
    piece.token_count = chunks[use.ordinal].token_count;
    piece.offset = use.offset;
    piece.base = base;
    base += piece.token_count;
    pieces_.push_back(piece);
  }
  return absl::OkStatus();
}

absl::Status AttendPlan::MapSelection(const AttendCall& call) {
  const size_t index_count = size_t{GroupCount(call.selection, call.q.count)} * call.selection.k;
  const uint64_t token_count =
      pieces_.empty() ? 0 : pieces_.back().base + pieces_.back().token_count;
  piece_of_index_.resize(index_count);
  uint32_t last = 0;  // choices cluster: the piece of the last index is tried first
  for (size_t i = 0; i < index_count; ++i) {
    const int32_t index = call.selection.indices[i];
    if (index == -1) {
      piece_of_index_[i] = kNoPiece;
      continue;
    }
    if (index < 0 || uint64_t(index) >= token_count) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "attend: index %d of list %d is %d; the chunks have %d rows, and -1 is skipped",
          i % call.selection.k, i / call.selection.k, index, token_count));
    }
    const uint64_t row = uint64_t(index);
    if (row < pieces_[last].base || row >= pieces_[last].base + pieces_[last].token_count) {
      // Finds the last piece that begins at or before the row. Pieces without tokens share a base
      // with their successor and come before it.
      const auto after =
          std::upper_bound(pieces_.begin(), pieces_.end(), row,
                           [](uint64_t r, const PlannedPiece& piece) { return r < piece.base; });
      last = static_cast<uint32_t>(after - pieces_.begin() - 1);
    }
    piece_of_index_[i] = last;
  }
  return absl::OkStatus();
}

absl::Status AttendPlan::Cut(const AttendCall& call, const LaneShape& shape, uint32_t group_count) {
  CKV_RETURN_IF_ERROR(MakeBatches(call, shape, group_count));
  uint32_t rows_max = std::min(call.q.count, kQueryRowCountMax);
  for (const PlannedBatch& batch : batches_)
    rows_max = std::min(rows_max, RowsThatFit(call, shape, batch));
  if (rows_max < call.q.count) rows_max = RoundToTiles(rows_max);
  blocks_.clear();
  if (!call.selection.present()) return MakeDenseBlocks(call, rows_max);
  k_max_.assign(pieces_.size(), 0);
  count_.assign(pieces_.size(), 0);
  index_begin_.assign(pieces_.size(), 0);
  cursor_.assign(pieces_.size(), 0);
  return MakeSelectedBlocks(call, shape, rows_max);
}

absl::Status AttendPlan::MakeBatches(const AttendCall& call, const LaneShape& shape,
                                     uint32_t group_count) {
  batches_.clear();
  batch_pieces_.clear();
  copies_.clear();
  for (uint32_t group = 0; group < group_count; ++group) {
    const auto batch_begin = static_cast<uint32_t>(batches_.size());
    for (uint32_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].group == group) CKV_RETURN_IF_ERROR(AddToBatch(call, shape, i, batch_begin));
    }
  }
  return absl::OkStatus();
}

absl::Status AttendPlan::AddToBatch(const AttendCall& call, const LaneShape& shape, uint32_t piece,
                                    uint32_t batch_begin) {
  PlannedPiece& planned = pieces_[piece];
  const uint32_t useful = std::min(call.q.count, kUsefulRowCount);
  if (batches_.size() > batch_begin) {
    PlannedBatch& batch = batches_.back();
    const uint32_t piece_count = batch.piece_end - batch.piece_begin + 1;
    const uint32_t copy = CopyOf(batch, planned.offset);
    const bool new_copy = copy == batch.copy_end - batch.copy_begin;
    const uint32_t copy_count = batch.copy_end - batch.copy_begin + (new_copy ? 1 : 0);
    if (piece_count <= kPieceCountMax && copy_count <= kCopyCountMax &&
        ReplyFits(call, shape, piece_count, useful) &&
        RequestFits(call, shape, piece_count, copy_count, useful, 0)) {
      if (new_copy) {
        copies_.push_back(planned.offset);
        ++batch.copy_end;
      }
      batch_pieces_.push_back(piece);
      ++batch.piece_end;
      planned.copy = copy;
      planned.batch = static_cast<uint32_t>(batches_.size() - 1);
      return absl::OkStatus();
    }
  }
  if (!ReplyFits(call, shape, 1, 1) || !RequestFits(call, shape, 1, 1, 1, 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "attend: one query row does not fit a slot: request_bytes_max %d, reply_bytes_max %d",
        shape.request_bytes_max, shape.reply_bytes_max));
  }
  PlannedBatch batch;
  batch.group = planned.group;
  batch.piece_begin = static_cast<uint32_t>(batch_pieces_.size());
  batch.piece_end = batch.piece_begin + 1;
  batch.copy_begin = static_cast<uint32_t>(copies_.size());
  batch.copy_end = batch.copy_begin + 1;
  copies_.push_back(planned.offset);
  batch_pieces_.push_back(piece);
  planned.copy = 0;
  planned.batch = static_cast<uint32_t>(batches_.size());
  batches_.push_back(batch);
  return absl::OkStatus();
}

// Returns the ordinal of the offset among the batch's copies, or their number if it has none.
uint32_t AttendPlan::CopyOf(const PlannedBatch& batch, int64_t offset) const {
  const auto begin = copies_.begin() + batch.copy_begin, end = copies_.begin() + batch.copy_end;
  return static_cast<uint32_t>(std::find(begin, end, offset) - begin);
}

uint32_t AttendPlan::RowsThatFit(const AttendCall& call, const LaneShape& shape,
                                 const PlannedBatch& batch) const {
  const uint32_t piece_count = batch.piece_end - batch.piece_begin;
  const uint32_t copy_count = batch.copy_end - batch.copy_begin;
  uint32_t fits = 1, too_many = kQueryRowCountMax + 1;  // AddToBatch saw to the one
  while (too_many - fits > 1) {
    const uint32_t middle = (fits + too_many) / 2;
    const bool good = ReplyFits(call, shape, piece_count, middle) &&
                      RequestFits(call, shape, piece_count, copy_count, middle, 0);
    (good ? fits : too_many) = middle;
  }
  return fits;
}

absl::Status AttendPlan::MakeDenseBlocks(const AttendCall& call, uint32_t rows_max) {
  for (uint32_t row = 0; row < call.q.count; row += rows_max)
    blocks_.push_back({row, std::min(rows_max, call.q.count - row)});
  return absl::OkStatus();
}

absl::Status AttendPlan::MakeSelectedBlocks(const AttendCall& call, const LaneShape& shape,
                                            uint32_t rows_max) {
  for (uint32_t row = 0; row < call.q.count;) {
    uint32_t row_count = 0;
    CKV_RETURN_IF_ERROR(CutSelectedBlock(call, shape, rows_max, row, &row_count));
    blocks_.push_back({row, row_count});
    row += row_count;
  }
  return absl::OkStatus();
}

// A block ends at the end of a group, or lies inside one group. A frame then has whole lists of
// groups.
absl::Status AttendPlan::CutSelectedBlock(const AttendCall& call, const LaneShape& shape,
                                          uint32_t rows_max, uint32_t row_begin,
                                          uint32_t* row_count) {
  const uint32_t group_rows = call.selection.group_rows;
  const bool inside = row_begin % group_rows != 0;
  std::fill(k_max_.begin(), k_max_.end(), 0);
  batch_k_.assign(batches_.size(), 0);
  uint32_t rows = 0, group_count = 0;
  for (uint32_t group = row_begin / group_rows; row_begin + rows < call.q.count; ++group) {
    const uint64_t group_end = std::min(uint64_t{call.q.count}, (uint64_t{group} + 1) * group_rows);
    const auto whole = static_cast<uint32_t>(group_end - row_begin);  // with this group
    if (rows > 0 && (whole > rows_max || inside)) break;
    CountGroup(call.selection, group);
    uint32_t wanted = std::min(whole, rows_max);
    if (rows > 0) {
      if (!IndicesFit(call, shape, wanted, group_count + 1)) break;
    } else {
      while (wanted > 0 && !IndicesFit(call, shape, wanted, 1)) wanted /= 2;
      if (wanted == 0) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "attend: one row and its %d selected indices do not fit a slot: request_bytes_max %d",
            call.selection.k, shape.request_bytes_max));
      }
    }
    rows = wanted;
    ++group_count;
    if (rows < whole) break;
  }
  *row_count = rows;
  return absl::OkStatus();
}

void AttendPlan::CountGroup(const Selection& selection, uint32_t group) {
  const size_t begin = size_t{group} * selection.k;
  for (size_t i = begin; i < begin + selection.k; ++i) {
    const uint32_t piece = piece_of_index_[i];
    if (piece == kNoPiece) continue;
    if (count_[piece]++ == 0) touched_.push_back(piece);
  }
  for (const uint32_t piece : touched_) {
    if (count_[piece] > k_max_[piece]) {
      if (!batch_k_.empty()) batch_k_[pieces_[piece].batch] += count_[piece] - k_max_[piece];
      k_max_[piece] = count_[piece];
    }
    count_[piece] = 0;
  }
  touched_.clear();
}

bool AttendPlan::IndicesFit(const AttendCall& call, const LaneShape& shape, uint32_t row_count,
                            uint32_t group_count) const {
  for (size_t i = 0; i < batches_.size(); ++i) {
    const PlannedBatch& batch = batches_[i];
    const uint64_t index_count = batch_k_[i] * group_count;
    if (index_count > kIndexCountMax ||
        !RequestFits(call, shape, batch.piece_end - batch.piece_begin,
                     batch.copy_end - batch.copy_begin, row_count,
                     static_cast<uint32_t>(index_count))) {
      return false;
    }
  }
  return true;
}

RequestHeader AttendPlan::WriteFrame(const AttendCall& call, const PlannedBlock& block,
                                     const PlannedBatch& batch, std::span<std::byte> slot,
                                     std::vector<uint32_t>* sent, std::vector<uint32_t>* empty) {
  const Geometry& geometry = call.corpus->geometry;
  const bool selected = call.selection.present();
  const size_t sent_begin = sent->size();
  RequestHeader header;
  header.kind = WireKind::kAttend;
  if (selected) {
    std::fill(k_max_.begin(), k_max_.end(), 0);
    const uint32_t first = block.row_begin / call.selection.group_rows;
    const uint32_t last = (block.row_begin + block.row_count - 1) / call.selection.group_rows;
    for (uint32_t group = first; group <= last; ++group) CountGroup(call.selection, group);
  }
  for (uint32_t i = batch.piece_begin; i < batch.piece_end; ++i) {
    const uint32_t piece = batch_pieces_[i];
    (selected && k_max_[piece] == 0 ? empty : sent)->push_back(piece);
  }
  header.piece_count = static_cast<uint32_t>(sent->size() - sent_begin);
  if (header.piece_count == 0) return header;

  header.flags = static_cast<uint8_t>((call.wire == PartialDtype::kF32 ? kFlagPartialF32 : 0) |
                                      (call.per_chunk ? kFlagPerPiece : 0) |
                                      (call.allow_approximate ? kFlagApproximate : 0));
  header.row_count = block.row_count;
  header.layer = static_cast<uint16_t>(call.layer);
  header.copy_count = static_cast<uint16_t>(batch.copy_end - batch.copy_begin);
  AttendLayout layout = LayOutAttend(header.piece_count, header.copy_count, header.row_count,
                                     /*index_count=*/0, geometry.d_qk);
  auto* rows = reinterpret_cast<uint16_t*>(slot.data() + layout.rows);
  const uint16_t* q = call.q.data + size_t{block.row_begin} * call.q.stride;
  for (uint32_t copy = batch.copy_begin; copy < batch.copy_end; ++copy) {
    CopyRotatedBf16(rotations_.For(geometry, copies_[copy]), q, call.q.stride, rows,
                    block.row_count, geometry.d_qk);
    rows += size_t{block.row_count} * geometry.d_qk;
  }
  const std::span<const uint32_t> asked(sent->data() + sent_begin, header.piece_count);
  if (selected) {
    header.index_count = WriteSelection(call, block, batch, asked,
                                        reinterpret_cast<int32_t*>(slot.data() + layout.indices));
  }
  for (uint32_t i = 0; i < header.piece_count; ++i) {
    const PlannedPiece& piece = pieces_[asked[i]];
    PieceEntry entry;
    entry.handle = piece.handle;
    entry.copy = piece.copy;
    if (selected) {
      entry.index_begin = index_begin_[asked[i]];
      entry.k = k_max_[asked[i]];
      entry.group_rows = std::min(call.selection.group_rows, block.row_count);
    }
    std::memcpy(slot.data() + layout.pieces + i * sizeof(entry), &entry, sizeof(entry));
  }
  layout = LayOutAttend(header.piece_count, header.copy_count, header.row_count, header.index_count,
                        geometry.d_qk);
  header.body_bytes = static_cast<uint32_t>(layout.total_bytes - sizeof(RequestHeader));
  return header;
}

// Splits the block's lists by piece into [groups][k_max_] local indices each, in the order of the
// list and padded with -1. Returns the number of indices written.
uint32_t AttendPlan::WriteSelection(const AttendCall& call, const PlannedBlock& block,
                                    const PlannedBatch& batch, std::span<const uint32_t> sent,
                                    int32_t* out) {
  const Selection& selection = call.selection;
  const auto batch_ordinal = static_cast<uint32_t>(&batch - batches_.data());
  const uint32_t first = block.row_begin / selection.group_rows;
  const uint32_t group_count =
      (block.row_begin + block.row_count - 1) / selection.group_rows - first + 1;
  uint32_t index_count = 0;
  for (const uint32_t piece : sent) {
    index_begin_[piece] = index_count;
    index_count += group_count * k_max_[piece];
  }
  std::fill_n(out, index_count, -1);
  for (uint32_t group = 0; group < group_count; ++group) {
    for (const uint32_t piece : sent) cursor_[piece] = index_begin_[piece] + group * k_max_[piece];
    const size_t begin = (size_t{first} + group) * selection.k;
    for (size_t i = begin; i < begin + selection.k; ++i) {
      const uint32_t piece = piece_of_index_[i];
      if (piece == kNoPiece || pieces_[piece].batch != batch_ordinal ||
          pieces_[piece].group == PlannedPiece::kNoGroup) {
        continue;
      }
      out[cursor_[piece]++] =
          static_cast<int32_t>(uint64_t(selection.indices[i]) - pieces_[piece].base);
    }
  }
  return index_count;
}

}  // namespace ckv
