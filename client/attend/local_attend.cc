// Attends the local rows of one call, on the caller's thread. Attend, in order:
//   AddOwnPieces    lists the caller's own rows
//   AddLocalPieces  lists the chunks of the local row cache, and rotates queries for them
//   PlacePartials   gives each piece memory for its partial
//   PlaceAnswers    only if nothing is routed: gives units of one piece the output buffer instead
//   InOrder         moves pieces that share rows next to each other
//   ListRuns        lists what the kernel then attends together, for the host's model
//   Compute         puts the pieces on the stream. If the time taken is the kernel's alone, reports
//                   it to the host's model

#include "client/attend/local_attend.h"

#include <algorithm>

#include "attention/precision.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Memory for the partials of locally cached chunks, and for the queries rotated for them: 128 heads
// over 256 chunks. Cached chunks beyond it are routed.
constexpr uint64_t kCachedBytesMax = uint64_t{72} << 20;

// The pairs of a query row and a row that it attends.
uint64_t PairsOf(const AttentionPiece& piece) {
  if (piece.selection.present()) return uint64_t{piece.q.count} * piece.selection.k;
  if (piece.row_limits == nullptr) return uint64_t{piece.q.count} * piece.rows.count;
  uint64_t pairs = 0;
  for (uint32_t i = 0; i < piece.q.count; ++i)
    pairs += std::min(piece.row_limits[i], piece.rows.count);
  return pairs;
}

}  // namespace

uint64_t OwnPairs(const RouteCall& call) {
  uint64_t pairs = 0;
  for (const RouteSegment& segment : call.segments) {
    for (const OwnRows& own : segment.own) {
      if (own.selection.present()) {
        pairs += uint64_t{segment.row_count} * own.selection.k;
      } else if (own.visible == nullptr) {
        pairs += uint64_t{segment.row_count} * own.rows.count;
      } else {
        for (uint32_t i = 0; i < segment.row_count; ++i)
          pairs += std::min(own.visible[i], own.rows.count);
      }
    }
  }
  return pairs;
}

LocalAttend::LocalAttend(const PlannedCall* planned, ComputeStream* stream, Clock* clock,
                         LiveHere* live, CallSpans* spans)
    : planned_(*planned),
      stream_(*stream),
      backend_(stream->backend()),
      clock_(clock),
      live_(live),
      spans_(*spans) {}

void LocalAttend::Begin() {
  reserved_bytes_ = cached_pairs_ = 0;
  expected_us_ = 0;
  pieces_.clear();
}

bool LocalAttend::Reserve(const PlannedUnit& unit, const AttendedChunk& attended) {
  const ContextState& context = *planned_.call.segments[unit.segment].context;
  const ContextChunk& chunk = context.chunks()[attended.context_index];
  const Geometry& geometry = context.geometry();
  uint64_t row_bytes = (geometry.d_v + 2) * sizeof(float);
  if (!context.rotations()[chunk.rotation].is_identity()) row_bytes += geometry.query_row_bytes();
  const uint64_t bytes = reserved_bytes_ + unit.row_count * row_bytes;
  if (bytes > kCachedBytesMax) return false;
  reserved_bytes_ = bytes;
  cached_pairs_ += uint64_t{unit.row_count} * attended.row_count(chunk.token_count);
  return true;
}

void LocalAttend::Trim() {
  if (partials_.size() > kCachedBytesMax) partials_ = BackendMemory();
  if (copied_q_.size() > kCachedBytesMax) copied_q_ = BackendMemory();
}

absl::Status LocalAttend::Attend(const StreamOrder& order, const PartialView* in_place) {
  pieces_.clear();
  in_place_ = in_place != nullptr;
  AddOwnPieces(order);
  CKV_RETURN_IF_ERROR(AddLocalPieces());
  if (pieces_.empty()) return absl::OkStatus();
  CKV_RETURN_IF_ERROR(PlacePartials());
  if (in_place != nullptr) PlaceAnswers(*in_place);
  const std::span<const AttentionPiece> pieces = InOrder();
  if (live_ != nullptr) {
    const RouteCall& call = planned_.call;
    ListRuns(pieces);
    local_rows_ = double(LocalRows());
    expected_us_ = live_->ExpectedUs(call.geometry().widths(), local_rows_, runs_);
  }
  return Compute(Learns(order), pieces);
}

// Sequences over one document attend the same chunks. Their pieces follow one another, so that the
// kernel reads each chunk once for all of them.
std::span<const AttentionPiece> LocalAttend::InOrder() {
  if (planned_.call.segments.size() == 1) return pieces_;
  ordered_ = pieces_;
  GatherSharedRows(ordered_);
  return ordered_;
}

void LocalAttend::ListRuns(std::span<const AttentionPiece> pieces) {
  runs_.clear();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const AttentionPiece& piece = pieces[i];
    const double rows = piece.q.count, pairs = double(PairsOf(piece));
    if (i == 0 || !ShareRows(pieces[i - 1], piece)) runs_.emplace_back();
    SharedRun& run = runs_.back();
    run.tokens = (run.rows * run.tokens + pairs) / (run.rows + rows);
    run.rows += rows;
  }
}

// Some segments of a call may have no local rows.
uint64_t LocalAttend::LocalRows() const {
  const RouteCall& call = planned_.call;
  uint64_t rows = 0;
  for (uint32_t s = 0; s < call.segments.size(); ++s)
    rows += OwnPieces(s).empty() ? 0 : call.segments[s].row_count;
  if (planned_.plan.cached_count() == 0) return rows;
  for (const PlannedUnit& unit : planned_.plan.units())
    rows += unit.cached_count > 0 && OwnPieces(unit.segment).empty() ? unit.row_count : 0;
  return rows;
}

// Puts the pieces on the stream, and learns from the time that they take.
absl::Status LocalAttend::Compute(bool learns, std::span<const AttentionPiece> pieces) {
  const RouteCall& call = planned_.call;
  const Geometry& geometry = call.geometry();
  // The stream was used to rotate queries.
  if (learns && call.polled_at_once) CKV_RETURN_IF_ERROR(stream_.Wait());
  const bool idle = stream_.Ready();
  const Instant begin = clock_->Now();
  CKV_RETURN_IF_ERROR(backend_.AttendPartials(AttentionShape::Of(geometry), pieces, stream_));
  // A caller that polls sees the end too late, unless the work is done by now.
  if (learns && idle && (call.polled_at_once || stream_.Ready())) {
    CKV_RETURN_IF_ERROR(stream_.Wait());
    const Instant end = clock_->Now();
    live_->Observe(geometry.widths(), local_rows_, runs_, double((end - begin).count()) / 1e3, end);
  }
  if (spans_.on()) spans_.Add("attend here", begin, clock_->Now());
  return absl::OkStatus();
}

// Whether the time of the attend is the kernel's. It is not if a stream is still producing what the
// kernel reads or writes.
bool LocalAttend::Learns(const StreamOrder& order) const {
  if (live_ == nullptr || cached_pairs_ == 0 || !order.producers_ready()) return false;
  return std::all_of(pieces_.begin(), pieces_.end(), [](const AttentionPiece& piece) {
    return piece.rows.after == nullptr || piece.rows.after->Ready();
  });
}

absl::Status LocalAttend::PlacePartials() {
  const uint32_t d_v = planned_.call.geometry().d_v;
  size_t floats = 0;
  for (const AttentionPiece& piece : pieces_) floats += PartialFloats(piece.q.count, d_v);
  CKV_RETURN_IF_ERROR(backend_.Grow(partials_, floats * sizeof(float)));
  size_t next = 0;
  for (AttentionPiece& piece : pieces_) {
    piece.out = PartialIn(partials_, next, piece.q.count, d_v);
    next += PartialFloats(piece.q.count, d_v);
  }
  return absl::OkStatus();
}

bool LocalAttend::IsInPlace(const PlannedUnit& unit) const {
  return in_place_ && unit.node_end - unit.node_begin == 1 &&
         own_begin_[unit.segment] == own_begin_[unit.segment + 1];
}

void LocalAttend::PlaceAnswers(const PartialView& target) {
  const AttendPlan& plan = planned_.plan;
  for (const PlannedUnit& unit : plan.units()) {
    if (!IsInPlace(unit)) continue;
    const PlannedNode& node = plan.nodes()[unit.node_begin];
    pieces_[own_begin_.back() + node.place].out =
        target.From(unit.row_begin, planned_.call.geometry().d_v);
  }
}

void LocalAttend::AddOwnPieces(const StreamOrder& order) {
  const RouteCall& call = planned_.call;
  own_begin_.clear();
  for (const RouteSegment& segment : call.segments) {
    own_begin_.push_back(static_cast<uint32_t>(pieces_.size()));
    for (const OwnRows& own : segment.own) {
      if (own.rows.count == 0) continue;
      AttentionPiece piece;
      piece.q = call.q.Rows(segment.row_begin, segment.row_count);
      piece.rows = own.rows;
      if (order.HasWaitedFor(own.rows.after)) piece.rows.after = nullptr;
      piece.selection = own.selection;
      piece.row_limits = own.visible;
      piece.precision = PrecisionOf(call.precision, call.wire);
      pieces_.push_back(piece);
    }
  }
  own_begin_.push_back(static_cast<uint32_t>(pieces_.size()));
}

absl::Status LocalAttend::AddLocalPieces() {
  const RouteCall& call = planned_.call;
  const AttendPlan& plan = planned_.plan;
  copies_.clear();
  if (plan.cached_count() == 0) return absl::OkStatus();
  CKV_RETURN_IF_ERROR(ReserveCopies());
  const auto row_bytes = static_cast<uint32_t>(call.geometry().row_bytes());
  for (uint32_t u = 0; u < plan.units().size(); ++u) {
    const PlannedUnit& unit = plan.units()[u];
    if (unit.cached_count == 0) continue;
    const RouteSegment& segment = call.segments[unit.segment];
    for (uint32_t n = unit.node_begin; n < unit.node_end; ++n) {
      if (plan.nodes()[n].split != PlannedNode::kCached) continue;
      const AttendedChunk& planned = plan.attended()[plan.nodes()[n].attended_begin];
      const ContextChunk& chunk = segment.context->chunks()[planned.context_index];
      AttentionPiece piece;
      CKV_ASSIGN_OR_RETURN(piece.q, QueriesOf(u, chunk.rotation));
      piece.rows = {(*segment.cached)[planned.context_index]->layer(call.layer).data(),
                    chunk.token_count, row_bytes};
      piece.precision = PrecisionOf(call.precision, call.wire);
      if (planned.index_begin != kDense)
        piece.selection = {plan.IndicesOf(planned).data(), planned.k, unit.row_count};
      pieces_.push_back(piece);
    }
  }
  return absl::OkStatus();
}

// Reserves memory for the copies that QueriesOf makes, because pieces point into it.
absl::Status LocalAttend::ReserveCopies() {
  const RouteCall& call = planned_.call;
  size_t bytes = 0;
  for (const PlannedUnit& unit : planned_.plan.units()) {
    if (unit.cached_count == 0) continue;
    const size_t rotations = call.segments[unit.segment].context->rotations().size();
    bytes += std::min<size_t>(rotations, unit.cached_count) * unit.row_count *
             call.geometry().query_row_bytes();
  }
  return backend_.Grow(copied_q_, bytes);
}

// Returns the query rows of a unit, rotated for a chunk with this rotation.
absl::StatusOr<QueryView> LocalAttend::QueriesOf(uint32_t unit_ordinal, uint32_t rotation) {
  const RouteCall& call = planned_.call;
  const PlannedUnit& unit = planned_.plan.units()[unit_ordinal];
  const ContextState& context = *call.segments[unit.segment].context;
  const QueryView q = call.q.Rows(unit.row_begin, unit.row_count);
  if (context.rotations()[rotation].is_identity()) return q;
  const Geometry& geometry = call.geometry();
  const auto copied = [&](size_t begin) -> QueryView {
    return {reinterpret_cast<const uint16_t*>(copied_q_.data() + begin), unit.row_count,
            geometry.d_qk, copied_q_.kind()};
  };
  size_t end = 0;
  for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {
    if (copy->unit != unit_ordinal) break;
    if (copy->rotation == rotation) return copied(copy->begin);
  }
  if (!copies_.empty()) end = copies_.back().end;
  const uint32_t row_bytes = geometry.query_row_bytes();
  CKV_RETURN_IF_ERROR(backend_.Rotate(context.rotations()[rotation], q.Bytes(), row_bytes,
                                      {copied_q_.data() + end, copied_q_.kind()}, stream_));
  copies_.push_back({unit_ordinal, rotation, end, end + size_t{unit.row_count} * row_bytes});
  return copied(end);
}

}  // namespace ckv
