#include "server/score/chosen_rows.h"

#include <algorithm>
#include <span>

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

// Moves the pieces of a segment that have chosen rows to `kept`, and one of each other partial.
absl::Status ChosenRows::KeepPieces(const Candidates& candidates, const Session& session,
                                    AttendRequest& request, const AttendSegment& segment,
                                    uint32_t& kept) {
  const uint32_t kept_begin = kept;
  for (uint32_t i = segment.piece_begin; i < segment.piece_end; ++i) {
    PieceEntry piece = request.pieces[i];
    const std::optional<ChunkLocator> chunk = session.handles.Lookup({piece.handle});
    if (!chunk.has_value()) return HandleUnknown(piece.handle);
    const std::optional<Candidates::Rows> rows = candidates.RowsOf(*chunk);
    if (!rows.has_value()) return CandidatesGone(segment.candidates);
    AddRowsOf(*rows, piece);
    piece.group_rows = segment.row_count;
    if (kept > kept_begin && request.pieces[kept - 1].partial == piece.partial) {
      if (piece.k == 0) continue;
      if (request.pieces[kept - 1].k == 0) --kept;
    }
    request.pieces[kept++] = piece;
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
  uint32_t kept = 0;
  for (AttendSegment& segment : request.segments) {
    const uint32_t kept_begin = kept;
    if (segment.candidates != 0) {
      const Candidates* const candidates = table.Find(session.tenant, segment.candidates);
      CKV_RETURN_IF_ERROR(TakeChosen(candidates, segment));
      CKV_RETURN_IF_ERROR(KeepPieces(*candidates, session, request, segment, kept));
    } else {
      for (uint32_t i = segment.piece_begin; i < segment.piece_end; ++i)
        request.pieces[kept++] = request.pieces[i];
    }
    segment.piece_begin = kept_begin;
    segment.piece_end = kept;
  }
  request.pieces.resize(kept);
  request.chosen = rows_;
  return absl::OkStatus();
}

}  // namespace ckv
