// Plans an attend: units and their pieces, the nodes of the tree, and shares of them. How shares
// become frames is in attend_frames.cc.

#include "client/context/attend_plan.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "absl/strings/str_format.h"
#include "attention/merge.h"
#include "client/context/frame_room.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr uint32_t kNoShare = 0xffffffff;
// Joins the trees of two corpora, above every level of either.
constexpr uint8_t kPartLevel = 32;
static_assert(kPartLevel + kContextPartCountMax < kTreeLevelMax);

// Rows of a piece that a frame should hold at least.
uint32_t UsefulRows(const PlannedUnit& unit) { return std::min(unit.row_count, kUsefulRowCount); }

uint32_t PieceCountMax(const PlannedLine& line) {
  // A holder of wire version 4 merges nothing in the tree, so it returns each piece by itself.
  return line.wire_version == 4 ? 1 : kPieceCountMax;
}

absl::Status BadIndex(const Selection& selection, uint32_t group, uint64_t token_count) {
  const int32_t* const list = selection.indices + size_t{group} * selection.k;
  for (uint32_t i = 0; i < selection.k; ++i) {
    if (list[i] == -1 || (list[i] >= 0 && uint64_t(list[i]) < token_count)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "attend: index %d of list %d is %d; the chunks have %d rows, and -1 is skipped", i, group,
        list[i], token_count));
  }
  return absl::InternalError("attend: an index changed while it was read");
}

absl::Status CheckIndexCount(uint64_t index_count) {
  if (index_count <= kSelectionIndexCountMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("attend: %d selected indices, limit %d",
                                                    index_count, kSelectionIndexCountMax));
}

absl::Status CheckPieceCount(uint32_t segment, uint64_t piece_count) {
  if (piece_count <= kPlannedPieceCountMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "attend: the segments up to %d attend %d chunks together, limit %d: make several calls",
      segment, piece_count, kPlannedPieceCountMax));
}

}  // namespace

absl::Status AttendPlan::Begin(const RouteCall& call) {
  pieces_.clear();
  units_.clear();
  selected_rows_.clear();
  first_rows_begin_ = first_rows_count_ = 0;
  index_count_ = look_count_ = 0;
  for (uint32_t i = 0; i < call.segments.size(); ++i) {
    const RouteSegment& segment = call.segments[i];
    if (segment.row_limits.present()) {
      CKV_RETURN_IF_ERROR(AddLimited(call, i));
      continue;
    }
    if (!segment.selection.present()) {
      CKV_RETURN_IF_ERROR(CheckPieceCount(i, pieces_.size() + segment.context->chunks().size()));
      AddDenseUnit(call, i);
      continue;
    }
    const uint32_t group_count = (segment.row_count - 1) / segment.selection.group_rows + 1;
    index_count_ += uint64_t{group_count} * segment.selection.k;
    CKV_RETURN_IF_ERROR(CheckIndexCount(index_count_));
    CKV_RETURN_IF_ERROR(AddGroups(call, i));
  }
  return absl::OkStatus();
}

void AttendPlan::AddDenseUnit(const RouteCall& call, uint32_t segment) {
  const RouteSegment& from = call.segments[segment];
  const auto begin = static_cast<uint32_t>(pieces_.size());
  const auto count = static_cast<uint32_t>(from.context->chunks().size());
  for (uint32_t chunk = 0; chunk < count; ++chunk) pieces_.push_back({.chunk = chunk});
  units_.push_back({.segment = segment,
                    .row_begin = from.row_begin,
                    .row_count = from.row_count,
                    .piece_begin = begin,
                    .piece_end = begin + count});
}

// Each group of rows with a list of its own is a unit, so that no list is padded.
absl::Status AttendPlan::AddGroups(const RouteCall& call, uint32_t segment) {
  const RouteSegment& from = call.segments[segment];
  const size_t chunk_count = from.context->chunks().size();
  if (count_.size() < chunk_count) {
    count_.resize(chunk_count);
    cursor_.resize(chunk_count);
    touched_.resize(chunk_count / 64 + 1);
  }
  const uint32_t group_rows = from.selection.group_rows;
  for (uint32_t row = 0, group = 0; row < from.row_count; ++group) {
    const uint32_t row_count = std::min(group_rows, from.row_count - row);
    CKV_RETURN_IF_ERROR(AddGroup(call, segment, from.row_begin + row, row_count, group));
    row += row_count;
  }
  return absl::OkStatus();
}

absl::Status AttendPlan::AddGroup(const RouteCall& call, uint32_t segment, uint32_t row_begin,
                                  uint32_t row_count, uint32_t group) {
  const ContextState& context = *call.segments[segment].context;
  const Selection& selection = call.segments[segment].selection;
  const int32_t* const list = selection.indices + size_t{group} * selection.k;
  const auto limit = static_cast<uint32_t>(std::min<uint64_t>(context.token_count(), 1u << 31));
  bool good = true;
  for (uint32_t i = 0; i < selection.k; ++i)
    good &= static_cast<uint32_t>(list[i]) < limit || list[i] == -1;
  if (!good) return BadIndex(selection, group, context.token_count());

  places_.clear();
  for (uint32_t i = 0; i < selection.k; ++i) {
    if (list[i] == -1) continue;
    const ContextState::RowPlace place = context.Find(static_cast<uint32_t>(list[i]));
    ++count_[place.chunk];
    touched_[place.chunk / 64] |= uint64_t{1} << place.chunk % 64;
    places_.push_back(place);
  }
  const auto begin = static_cast<uint32_t>(pieces_.size());
  PlannedUnit& unit = units_.emplace_back(PlannedUnit{.segment = segment,
                                                      .row_begin = row_begin,
                                                      .row_count = row_count,
                                                      .piece_begin = begin,
                                                      .piece_end = begin});
  ListTouched(unit, places_);
  return absl::OkStatus();
}

// Consecutive groups with one limit are a unit.
absl::Status AttendPlan::AddLimited(const RouteCall& call, uint32_t segment) {
  const RouteSegment& from = call.segments[segment];
  const RowLimits& limits = from.row_limits;
  const uint64_t token_count = from.context->token_count();
  look_count_ = std::max<uint64_t>(look_count_, pieces_.size());
  for (uint32_t row = 0, group = 0; row < from.row_count;) {
    const uint32_t limit = limits.limits[group];
    if (limit > token_count) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "attend: row limit %d is %d; the chunks have %d rows", group, limit, token_count));
    }
    PlannedUnit unit = {.segment = segment, .row_begin = from.row_begin + row, .limited = true};
    do {
      const uint32_t rows = std::min(limits.group_rows, from.row_count - row);
      unit.row_count += rows;
      row += rows;
      ++group;
    } while (row < from.row_count && limits.limits[group] == limit);
    CKV_RETURN_IF_ERROR(AddLimitedUnit(call, unit, limit));
  }
  return absl::OkStatus();
}

// Chunks before the limit are pieces: dense if it leaves them whole, else of their first rows.
absl::Status AttendPlan::AddLimitedUnit(const RouteCall& call, PlannedUnit unit, uint32_t limit) {
  const ContextState& context = *call.segments[unit.segment].context;
  const std::span<const ContextChunk> chunks = context.chunks();
  unit.piece_begin = static_cast<uint32_t>(pieces_.size());
  // A context may list chunks in another order than the tree's. Then chunks beyond the limit may be
  // between visible ones.
  for (uint32_t chunk = 0, left = limit; left > 0; ++chunk) {
    CKV_RETURN_IF_ERROR(CheckPieceCount(unit.segment, ++look_count_));
    const uint64_t first = context.first_row(chunk);
    if (first >= limit) continue;
    const auto seen =
        static_cast<uint32_t>(std::min<uint64_t>(limit - first, chunks[chunk].token_count));
    left -= seen;
    if (seen == chunks[chunk].token_count) {
      pieces_.push_back({.chunk = chunk});
      continue;
    }
    index_count_ += seen;
    CKV_RETURN_IF_ERROR(CheckIndexCount(index_count_));
    pieces_.push_back({.chunk = chunk, .index_begin = FirstRows(seen), .k = seen});
  }
  unit.piece_end = static_cast<uint32_t>(pieces_.size());
  units_.push_back(unit);
  return absl::OkStatus();
}

// Returns where selected_rows_ has 0 .. count - 1.
uint32_t AttendPlan::FirstRows(uint32_t count) {
  if (count > first_rows_count_) {
    first_rows_begin_ = static_cast<uint32_t>(selected_rows_.size());
    first_rows_count_ = std::max(count, 2 * first_rows_count_);
    selected_rows_.resize(selected_rows_.size() + first_rows_count_);
    std::iota(selected_rows_.begin() + first_rows_begin_, selected_rows_.end(), 0);
  }
  return first_rows_begin_;
}

// Makes a piece of each chunk with a bit in touched_, in their order, and puts the chosen rows of
// each one after another. Leaves count_ and touched_ zero.
void AttendPlan::ListTouched(PlannedUnit& unit, std::span<const ContextState::RowPlace> places) {
  if (places.empty()) return;
  auto index_begin = static_cast<uint32_t>(selected_rows_.size());
  selected_rows_.resize(selected_rows_.size() + places.size());
  size_t left = places.size();
  for (uint32_t word = 0; left > 0; ++word) {
    for (uint64_t bits = touched_[word]; bits != 0; bits &= bits - 1) {
      const uint32_t chunk = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      pieces_.push_back({.chunk = chunk, .index_begin = index_begin, .k = count_[chunk]});
      cursor_[chunk] = index_begin;
      index_begin += count_[chunk];
      left -= count_[chunk];
      count_[chunk] = 0;
    }
    touched_[word] = 0;
  }
  for (const ContextState::RowPlace& place : places)
    selected_rows_[cursor_[place.chunk]++] = static_cast<int32_t>(place.row);
  unit.piece_end = static_cast<uint32_t>(pieces_.size());
}

absl::Status AttendPlan::Cut(const RouteCall& call, std::span<PlannedLine> lines) {
  nodes_.clear();
  near_count_ = 0;
  shares_.clear();
  blocks_.clear();
  blocks_of_unit_.clear();
  parts_.clear();
  frames_.clear();
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    CKV_RETURN_IF_ERROR(CutUnit(call, unit, lines));
    AddBlocks(call, unit, lines);
  }
  blocks_of_unit_.push_back(static_cast<uint32_t>(blocks_.size()));
  uint32_t arrival_count = 0;
  for (PlannedBlock& block : blocks_) {
    block.arrival_begin = arrival_count;
    arrival_count += units_[block.unit].share_end - units_[block.unit].share_begin;
  }
  arrivals_.resize(arrival_count);
  SortSharesByLine(lines);
  for (uint32_t line = 0; line < lines.size(); ++line) FillFrames(call, line, lines[line]);
  return absl::OkStatus();
}

absl::Status AttendPlan::CutUnit(const RouteCall& call, uint32_t unit_ordinal,
                                 std::span<const PlannedLine> lines) {
  PlannedUnit& unit = units_[unit_ordinal];
  const RouteSegment& segment = call.segments[unit.segment];
  const std::span<const ContextChunk> chunks = segment.context->chunks();
  unit.node_begin = static_cast<uint32_t>(nodes_.size());
  unit.share_begin = static_cast<uint32_t>(shares_.size());
  open_share_.assign(lines.size(), kNoShare);
  FindRuns(segment, unit);
  for (uint32_t begin = unit.piece_begin, end = begin; begin < unit.piece_end; begin = end) {
    const uint32_t part = chunks[pieces_[begin].chunk].part;
    while (end < unit.piece_end && chunks[pieces_[end].chunk].part == part)
      end = unit.piece_begin + run_end_[end - unit.piece_begin];
    CKV_RETURN_IF_ERROR(AddNodes(call, unit_ordinal, lines, begin, end));
  }
  unit.node_end = static_cast<uint32_t>(nodes_.size());
  unit.share_end = static_cast<uint32_t>(shares_.size());
  return absl::OkStatus();
}

// Finds the end of the run of pieces on one line, in one corpus, that each piece is in.
void AttendPlan::FindRuns(const RouteSegment& segment, const PlannedUnit& unit) {
  const std::span<const ContextChunk> chunks = segment.context->chunks();
  const std::span<const PlannedPiece> pieces = PiecesOf(unit);
  run_end_.resize(pieces.size());
  for (size_t i = pieces.size(); i-- > 0;) {
    const bool goes_on = i + 1 < pieces.size() && pieces[i].line == pieces[i + 1].line &&
                         chunks[pieces[i].chunk].part == chunks[pieces[i + 1].chunk].part;
    run_end_[i] = goes_on ? run_end_[i + 1] : static_cast<uint32_t>(i + 1);
  }
}

// Adds the largest subtrees of [begin, end), pieces of one corpus, that one holder has whole.
absl::Status AttendPlan::AddNodes(const RouteCall& call, uint32_t unit,
                                  std::span<const PlannedLine> lines, uint32_t begin,
                                  uint32_t end) {
  if (end - begin == 1 || IsNode(call, unit, lines, begin, end))
    return AddNode(call, unit, lines, begin, end);
  const std::span<const ContextChunk> chunks =
      call.segments[units_[unit].segment].context->chunks();
  const auto ordinal = [&](const PlannedPiece& piece) { return chunks[piece.chunk].ordinal; };
  const uint32_t first = ordinal(pieces_[begin]), last = ordinal(pieces_[end - 1]);
  // The right half begins at the first ordinal with the highest bit that differs.
  const uint32_t right = last & ~(std::bit_floor(first ^ last) - 1);
  const auto middle =
      std::partition_point(pieces_.begin() + begin, pieces_.begin() + end,
                           [&](const PlannedPiece& piece) { return ordinal(piece) < right; });
  const auto split = static_cast<uint32_t>(middle - pieces_.begin());
  CKV_RETURN_IF_ERROR(AddNodes(call, unit, lines, begin, split));
  return AddNodes(call, unit, lines, split, end);
}

bool AttendPlan::IsNode(const RouteCall& call, uint32_t unit_ordinal,
                        std::span<const PlannedLine> lines, uint32_t begin, uint32_t end) const {
  if (pieces_[begin].line == kNearLine) return false;
  const PlannedUnit& unit = units_[unit_ordinal];
  if (unit.piece_begin + run_end_[begin - unit.piece_begin] < end) return false;
  const PlannedLine& line = lines[pieces_[begin].line];
  if (end - begin > PieceCountMax(line)) return false;
  PlannedShare alone;
  // Without a look at each piece, if there is one rotation only.
  if (call.segments[unit.segment].context->rotations().size() == 1) alone.copy_count = 1;
  return AddToShare(call, unit, std::span(pieces_).subspan(begin, end - begin), alone) &&
         ShareFits(call, alone, line.shape, UsefulRows(unit));
}

absl::Status AttendPlan::AddNode(const RouteCall& call, uint32_t unit_ordinal,
                                 std::span<const PlannedLine> lines, uint32_t begin, uint32_t end) {
  const PlannedUnit& unit = units_[unit_ordinal];
  const uint32_t line = pieces_[begin].line;
  const std::span<const ContextChunk> chunks = call.segments[unit.segment].context->chunks();
  const auto node_ordinal = static_cast<uint32_t>(nodes_.size());
  PlannedNode node = {.piece_begin = begin, .piece_end = end};
  if (node_ordinal > unit.node_begin) {
    const ContextChunk& last = chunks[pieces_[nodes_.back().piece_end - 1].chunk];
    const ContextChunk& first = chunks[pieces_[begin].chunk];
    node.level = last.part == first.part ? TreeLevel(last.ordinal, first.ordinal)
                                         : static_cast<uint8_t>(kPartLevel + first.part);
  }
  if (line == kNearLine) {
    AddNearNode(unit_ordinal, node);
    return absl::OkStatus();
  }
  const LaneShape& shape = lines[line].shape;
  uint32_t& open = open_share_[line];
  if (open == kNoShare || !JoinShare(call, shares_[open], lines[line], begin, end)) {
    open = static_cast<uint32_t>(shares_.size());
    PlannedShare& share = shares_.emplace_back(
        PlannedShare{.line = line, .unit = unit_ordinal, .first_node = node_ordinal});
    AddToShare(call, unit, std::span(pieces_).subspan(begin, end - begin), share);
    if (!ShareFits(call, share, shape, 1)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("attend: one query row and its %d selected indices do not fit a slot: "
                          "request_bytes_max %d, reply_bytes_max %d",
                          share.index_count, shape.request_bytes_max, shape.reply_bytes_max));
    }
  } else {
    nodes_[shares_[open].last_node].next = node_ordinal;
  }
  PlannedShare& share = shares_[open];
  node.share = open;
  node.place = share.node_count - 1;
  share.last_node = node_ordinal;
  // The first copy is the default.
  for (uint32_t i = begin; i < end && share.copy_count > 1; ++i) {
    const uint32_t rotation = chunks[pieces_[i].chunk].rotation;
    const auto copy = std::find(share.copies.begin(), share.copies.end(), rotation);
    pieces_[i].copy = static_cast<uint32_t>(copy - share.copies.begin());
  }
  nodes_.push_back(node);
  return absl::OkStatus();
}

void AttendPlan::AddNearNode(uint32_t unit, PlannedNode node) {
  node.share = PlannedNode::kNear;
  node.place = near_count_++;
  ++units_[unit].near_count;
  nodes_.push_back(node);
}

// Adds the node [begin, end) to a share that has one. Returns false, and changes nothing, if a
// frame would no longer hold enough rows of it.
bool AttendPlan::JoinShare(const RouteCall& call, PlannedShare& share, const PlannedLine& line,
                           uint32_t begin, uint32_t end) {
  const PlannedUnit& unit = units_[share.unit];
  PlannedShare joined = share;
  if (!AddToShare(call, unit, std::span(pieces_).subspan(begin, end - begin), joined) ||
      !ShareFits(call, joined, line.shape, UsefulRows(unit)) ||
      (line.wire_version == 4 && joined.piece_count > Version4::kPieceCountMax)) {
    return false;
  }
  share = joined;
  return true;
}

}  // namespace ckv
