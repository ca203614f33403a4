#include "server/score/chosen_rows.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// As PinHandle (server/batch/ready_request.h).
absl::Status HandleUnknown(uint32_t handle) {
  return absl::NotFoundError(
      absl::StrFormat("handle %d names no chunk here: resolve it again", handle));
}

}  // namespace

absl::Status ChosenRows::TakeChosen(const Candidates* candidates, const AttendSegment& segment) {
  if (candidates == nullptr) return CandidatesGone(segment.candidates);
  if (segment.token >= candidates->token_count() ||
      segment.chosen_count > candidates->best(segment.token).size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("candidates %x do not have %d rows of token %d", segment.candidates,
                        segment.chosen_count, segment.token));
  }
  chosen_.clear();
  for (const ScoredRow& row : candidates->best(segment.token).first(segment.chosen_count))
    chosen_.push_back(row.row);
  std::sort(chosen_.begin(), chosen_.end());
  return absl::OkStatus();
}

// Appends the chosen rows of one chunk, as indices in the chunk.
void ChosenRows::AddRowsOf(const Candidates::Rows& chunk, PieceEntry& piece) {
  piece.index_begin = static_cast<uint32_t>(rows_.size());
  const auto begin = std::lower_bound(chosen_.begin(), chosen_.end(), chunk.begin);
  for (auto row = begin; row != chosen_.end() && *row < chunk.end; ++row)
    rows_.push_back(static_cast<int32_t>(*row - chunk.begin));
  piece.k = static_cast<uint32_t>(rows_.size()) - piece.index_begin;
}

// Adds a chunk's piece. A piece without rows is kept only if its partial has no other.
void ChosenRows::AddPiece(const PieceEntry& piece) {
  if (pieces_.size() > segment_begin_ && pieces_.back().partial == piece.partial) {
    if (piece.k == 0) return;
    if (pieces_.back().k == 0) pieces_.pop_back();
  }
  pieces_.push_back(piece);
}

absl::Status ChosenRows::AddChunks(const Candidates& candidates, const Session& session,
                                   const AttendSegment& segment, const PieceEntry& run) {
  PieceEntry piece = run;
  piece.more = 0;
  piece.group_rows = segment.row_count;
  for (uint32_t i = 0; i <= run.more; ++i) {
    piece.handle = run.handle + i;
    piece.ordinal = run.ordinal + i;
    const std::optional<ChunkLocator> chunk = session.handles.Lookup({piece.handle});
    if (!chunk.has_value()) return HandleUnknown(piece.handle);
    const std::optional<Candidates::Rows> rows = candidates.RowsOf(*chunk);
    if (!rows.has_value()) return CandidatesGone(segment.candidates);
    AddRowsOf(*rows, piece);
    AddPiece(piece);
  }
  return absl::OkStatus();
}

absl::Status ChosenRows::Find(const CandidateTable& table, const Session& session,
                              AttendRequest& request) {
  rows_.clear();
  if (std::none_of(request.segments.begin(), request.segments.end(),
                   [](const AttendSegment& segment) { return segment.candidates != 0; })) {
    return absl::OkStatus();
  }
  pieces_.clear();
  for (AttendSegment& segment : request.segments) {
    segment_begin_ = pieces_.size();
    const auto pieces = std::span(request.pieces)
                            .subspan(segment.piece_begin, segment.piece_end - segment.piece_begin);
    if (segment.candidates == 0) {
      pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
    } else {
      const Candidates* const candidates = table.Find(session.tenant, segment.candidates);
      CKV_RETURN_IF_ERROR(TakeChosen(candidates, segment));
      for (const PieceEntry& piece : pieces)
        CKV_RETURN_IF_ERROR(AddChunks(*candidates, session, segment, piece));
    }
    if (pieces_.size() > kPieceCountMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "attend: rows chosen in %d chunks, limit %d", pieces_.size(), kPieceCountMax));
    }
    segment.piece_begin = static_cast<uint32_t>(segment_begin_);
    segment.piece_end = static_cast<uint32_t>(pieces_.size());
  }
  std::swap(request.pieces, pieces_);
  request.chosen = rows_;
  return absl::OkStatus();
}

}  // namespace ckv
