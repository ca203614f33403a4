// Turns a choice among candidates into selected rows of chunks.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/score/candidate_table.h"
#include "server/session/session.h"
#include "transport/wire_attend.h"

namespace ckv {

// Keeps its memory from request to request. Not thread-safe.
class ChosenRows {
 public:
  // Turns the pieces of `request`, of this session, that attend chosen rows into pieces of one
  // chunk each. Gives each its indices, ascending, and points request.chosen to them. They are
  // valid until the next call. Chunks without chosen rows are left out, except one of each partial,
  // because they would only add to the work.
  //   OutOfRange          the candidates are not kept, or no longer, or not of a piece's chunk:
  //                       score again.
  //   NotFound            a handle names no chunk.
  //   InvalidArgument     the token or the number of rows is not of the candidates, or they are in
  //                       more than kPieceCountMax chunks.
  absl::Status Find(const CandidateTable& table, const Session& session, AttendRequest& request);

 private:
  absl::Status TakeChosen(const Candidates* candidates, const AttendSegment& segment);
  void AddRowsOf(const Candidates::Rows& chunk, PieceEntry& piece);
  absl::Status AddChunks(const Candidates& candidates, const Session& session,
                         const AttendSegment& segment, const PieceEntry& piece);
  void AddPiece(const PieceEntry& piece);

  std::vector<int32_t> rows_;
  std::vector<uint32_t> chosen_;    // the rows of the current segment, ascending
  std::vector<PieceEntry> pieces_;  // the pieces of the request
  size_t segment_begin_ = 0;        // the current segment's first one
};

}  // namespace ckv
