// Attends the rows that are in this process: the caller's own rows, and the local row cache.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "attention/partial.h"
#include "client/attend/planned_call.h"
#include "client/attend/stream_order.h"
#include "client/cost/compute_curve.h"
#include "client/cost/live_here.h"
#include "client/trace/call_spans.h"
#include "proto/base/clock.h"

namespace ckv {

// Returns the pairs of a query row and an own row that it sees.
uint64_t OwnPairs(const RouteCall& call);

// Makes the partials of one call's local rows, on the thread of the caller while the holders
// compute. Each chunk of the local row cache is a leaf of the tree. Its partial therefore has the
// bits of a holder's. Belongs to one call context, and keeps its memory between calls.
//
//   Begin                  starts an attempt
//   Reserve(unit, chunk)   for each attended chunk that is in the local row cache
//   Attend                 after AttendPlan::Cut. The partials are complete once the stream is
class LocalAttend {
 public:
  // All must outlive this object. `live` may be null.
  LocalAttend(const PlannedCall* planned, ComputeStream* stream, Clock* clock, LiveHere* live,
              CallSpans* spans);

  void Begin();
  // Reserves memory for one more locally cached chunk. Returns false if there is not enough: the
  // chunk must then be routed.
  bool Reserve(const PlannedUnit& unit, const AttendedChunk& attended);
  // The pairs of a query row and a locally cached row, of the chunks reserved.
  uint64_t cached_pairs() const { return cached_pairs_; }

  // Attends all local rows. If `in_place` is not null, nothing is routed, and nothing can fail any
  // more. The answer of a unit with one piece is then written to `in_place`, the output buffer.
  // That saves a copy: 3 us for 16 rows.
  absl::Status Attend(const StreamOrder& order, const PartialView* in_place);

  // Whether the last Attend had any local rows.
  bool attends_any() const { return !pieces_.empty(); }
  // The time that the host's model expected for it, or 0 if that is unknown.
  double expected_us() const { return expected_us_; }
  // Whether the answer of the unit is in the output buffer.
  bool IsInPlace(const PlannedUnit& unit) const;
  // The partial of a cached node: the rows of its unit.
  const PartialView& CachedPartial(const PlannedNode& node) const {
    return pieces_[own_begin_.back() + node.place].out;
  }
  // The partials of a segment's own rows, in their order: the rows of the segment.
  std::span<const AttentionPiece> OwnPieces(uint32_t segment) const {
    return std::span(pieces_).subspan(own_begin_[segment],
                                      own_begin_[segment + 1] - own_begin_[segment]);
  }

  // Ends a call. Frees memory that few calls need.
  void Trim();

 private:
  // Queries of cached chunks that are not at their canonical positions: a copy for each unit and
  // rotation.
  struct Copy {
    uint32_t unit = 0, rotation = 0;
    size_t begin = 0, end = 0;  // bytes of copied_q_
  };

  void AddOwnPieces(const StreamOrder& order);
  absl::Status AddLocalPieces();
  absl::Status ReserveCopies();
  absl::StatusOr<QueryView> QueriesOf(uint32_t unit, uint32_t rotation);
  absl::Status PlacePartials();
  void PlaceAnswers(const PartialView& target);
  std::span<const AttentionPiece> InOrder();
  void ListRuns(std::span<const AttentionPiece> pieces);
  uint64_t LocalRows() const;
  absl::Status Compute(bool learns, std::span<const AttentionPiece> pieces);
  bool Learns(const StreamOrder& order) const;

  const PlannedCall& planned_;
  ComputeStream& stream_;
  Backend& backend_;
  Clock* const clock_;
  LiveHere* const live_;  // may be null
  CallSpans& spans_;

  uint64_t reserved_bytes_ = 0;  // for the cached chunks so far
  uint64_t cached_pairs_ = 0;
  double expected_us_ = 0;
  std::vector<AttentionPiece> pieces_;   // own rows, then cached chunks in the plan's order
  std::vector<uint32_t> own_begin_;      // [segments + 1] in pieces_
  std::vector<AttentionPiece> ordered_;  // pieces_ as the kernel gets them, of several segments
  std::vector<SharedRun> runs_;          // as the kernel makes them
  double local_rows_ = 0;                // query rows of the call that are in a piece
  BackendMemory partials_;               // f32 o, m, l of each piece
  std::vector<Copy> copies_;
  BackendMemory copied_q_;
  bool in_place_ = false;
};

}  // namespace ckv
