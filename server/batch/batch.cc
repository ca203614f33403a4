// One batch on its way through the polling thread, or another one that owns it:
//   Add      Judge checks a request: its turn, limits and handles. FindPieces pins the chunks, or
//            takes stripes or a shadow of a chunk on disk. Verdicts: taken, perhaps to reply with
//            an error; the batch is full; the request is too long for it; chunks must be read from
//            disk first; malformed
//   Compute  ComputePlan computes everything; the only step that may run on another thread
//   Reply    writes each reply with its times, posts it, and counts it
//   Clear    drops the pins, and keeps the memory for the next batch

#include "server/batch/batch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/query/query_values.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/kernel_target.h"
#include "server/batch/batch_spans.h"
#include "server/batch/cold_rows.h"
#include "store/memory/chunk.h"
#include "transport/wire_attend.h"

namespace ckv {
namespace {

// A peer that did not check its queries would get answers over logits that overflowed. They are
// rotated by now.
absl::Status CheckQueries(const AttendRequest& attend, uint32_t d_qk) {
  constexpr float kRotatedSlack = 2;
  for (const AttendSegment& segment : attend.segments) {
    const QueryView q = {.data = attend.rows + segment.stored_row_begin * d_qk,
                         .count = segment.row_count * segment.copy_count,
                         .stride = d_qk};
    CKV_RETURN_IF_ERROR(CheckQueryValues(q, d_qk, kRotatedSlack));
  }
  return absl::OkStatus();
}

// A selection of nothing still has to be present.
constexpr int32_t kNoIndices[1] = {-1};

// ReplyHeader::batch_share. A request of no work was computed with others all the same.
uint8_t ShareOf(uint64_t work, uint64_t all) {
  if (work >= all) return 255;
  return static_cast<uint8_t>(std::max<uint64_t>(1, (255 * work + all - 1) / all));
}

}  // namespace

Batch::Batch(const BatchOptions& options, BatchTools tools, Clock* clock, const ChunkTable* table,
             const LeaseGate* lease, ServeCounters* counters)
    : options_(options),
      clock_(clock),
      table_(table),
      lease_(lease),
      counters_(counters),
      stream_(std::move(tools.stream)),
      kernel_target_(KernelTargetIdOf(stream_->backend().kernel_target())),
      plan_(std::move(tools.partials)),
      items_(options.request_count_max) {
  attend_.segments.reserve(kSegmentCountMax);
  attend_.pieces.reserve(kPieceCountMax);
  handles_.reserve(kPieceCountMax);
  pieces_.reserve(kPieceCountMax);
  pins_.reserve(kBatchPieceCountMax);
  holds_.reserve(kBatchPieceCountMax);
}

Batch::Verdict Batch::Add(const ReadyRequest& ready) {
  role_.ClaimOrAssertHeld();
  if (item_count_ == items_.size()) return Verdict::kFull;
  const RequestHeader& header = ready.header;
  Item& item = items_[item_count_];
  item.ready = ready;
  item.reply = {.kind = header.kind,
                .flags = static_cast<uint8_t>(header.flags & ~kFlagApproximate),
                .request_id = header.request_id,
                .epoch = lease_->epoch().value};
  item.groups = {};
  last_work_ = item.work = 0;
  const Verdict verdict = Judge(item);
  if (verdict != Verdict::kTaken) {
    item.ready.cold_rows.reset();  // the caller's copy holds them
    return verdict;
  }
  ++item_count_;
  return verdict;
}

Batch::Verdict Batch::Judge(Item& item) {
  const ReadyRequest& ready = item.ready;
  item.error = CheckTurn(ready, *lease_, clock_->Now(), *counters_);
  if (!item.error.ok()) return Verdict::kTaken;
  if (ready.header.kind == WireKind::kProbe) {
    // Post writes the header once more, with the times.
    const uint32_t bytes =
        EncodeProbeReply(ready.header, ready.frame(), ready.lane->reply(ready.slot));
    item.reply.body_bytes = bytes - static_cast<uint32_t>(sizeof(ReplyHeader));
    return Verdict::kTaken;
  }
  if (ready.header.layer >= ready.session->geometry.layers) {
    item.error = absl::InvalidArgumentError(absl::StrFormat(
        "layer %d, model has %d", ready.header.layer, ready.session->geometry.layers));
    return Verdict::kTaken;
  }
  const absl::Status decoded =
      DecodeAttendRequest(ready.header, ready.frame(), ready.session->geometry, attend_);
  if (absl::IsUnimplemented(decoded)) {
    item.error = decoded;
    return Verdict::kTaken;
  }
  malformed_ = decoded;
  if (!malformed_.ok()) return Verdict::kMalformed;
  item.error = FindChosen(item);
  if (item.error.ok()) item.error = CheckLimits(item);
  if (item.error.ok()) item.error = CheckQueries(attend_, ready.session->geometry.d_qk);
  if (!item.error.ok()) return Verdict::kTaken;
  if (!plan_.HasRoom(attend_, ready.session->geometry)) return Verdict::kFull;
  Verdict verdict = Verdict::kTaken;
  item.error = AddAttend(item, verdict);
  return verdict;
}

absl::Status Batch::FindChosen(Item& item) {
  if (options_.candidates != nullptr)
    return item.chosen.Find(*options_.candidates, *item.ready.session, attend_);
  for (const AttendSegment& segment : attend_.segments) {
    if (segment.candidates != 0) return CandidatesGone(segment.candidates);
  }
  return absl::OkStatus();
}

// Errors that a peer may make without being broken. They are answered, while a malformed frame
// closes the lane.
absl::Status Batch::CheckLimits(const Item& item) const {
  const uint64_t reply_bytes =
      sizeof(ReplyHeader) + AttendReplyBytes(attend_, item.ready.session->geometry);
  const uint32_t reply_bytes_max = item.ready.lane->shape().reply_bytes_max;
  if (reply_bytes <= reply_bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%d partials of %d rows are a reply of %d bytes, this lane holds %d: ask for fewer at once",
      attend_.partial_count, attend_.header.row_count, reply_bytes, reply_bytes_max));
}

// The rows of a segment see each chunk once. Different segments may see the same one.
absl::Status Batch::CheckNoHandleTwice() {
  for (const AttendSegment& segment : attend_.segments) {
    handles_.clear();
    for (uint32_t i = segment.piece_begin; i < segment.piece_end; ++i)
      handles_.push_back(attend_.pieces[i].handle);
    std::sort(handles_.begin(), handles_.end());
    const auto twice = std::adjacent_find(handles_.begin(), handles_.end());
    if (twice == handles_.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("handle %d twice: its rows would count twice", *twice));
  }
  return absl::OkStatus();
}

uint64_t Batch::WorkOf(const Item& item) const {
  const Geometry& geometry = item.ready.session->geometry;
  uint64_t work = 0;  // at most 2^12 pieces x 2^12 rows x 2^11 x 2^22: cannot wrap
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const PieceEntry& entry = attend_.pieces[i];
    const AttentionPiece& piece = pieces_[i].piece;
    work += uint64_t{piece.q.count} * (geometry.d_qk + geometry.d_v) *
            (entry.index_begin == kDense ? piece.rows.count : entry.k);
  }
  return work;
}

absl::StatusOr<Batch::PieceRows> Batch::RowsOf(const Item& item, const AttendSegment& segment,
                                               const PieceEntry& entry) {
  const ReadyRequest& ready = item.ready;
  const uint32_t row_bytes = ready.session->geometry.row_bytes();
  absl::StatusOr<ChunkPin> pin = PinHandle(*table_, *ready.session, entry.handle);
  if (pin.ok()) {
    const Chunk& chunk = pin->chunk();
    if (counters_->load.IsPieceDue())
      counters_->load.NoteChunk(*ready.session->handles.Lookup({entry.handle}));
    const RowView rows = {.data = chunk.layer(ready.header.layer).data(),
                          .count = chunk.info().token_count(),
                          .stride_bytes = row_bytes,
                          .memory = options_.chunk_memory};
    pins_.push_back(*std::move(pin));
    return PieceRows{rows};
  }
  if (!absl::IsUnavailable(pin.status())) return pin.status();
  const ChunkLocator chunk = *ready.session->handles.Lookup({entry.handle});
  const ColdRows::Layer* const read =
      ready.cold_rows == nullptr ? nullptr : ready.cold_rows->Find(chunk);
  if (read != nullptr) {
    return PieceRows{{.data = read->rows,
                      .count = read->token_count,
                      .stride_bytes = row_bytes,
                      .memory = options_.chunk_memory}};
  }
  if (const auto found = StripesOf(item, segment, entry, chunk); found.has_value()) return *found;
  if (const auto shadow = ShadowOf(item, chunk); shadow.has_value()) return *shadow;
  return pin.status();
}

// The rows of a chunk on disk, if those that the piece selects are in memory.
std::optional<Batch::PieceRows> Batch::StripesOf(const Item& item, const AttendSegment& segment,
                                                 const PieceEntry& entry, ChunkLocator chunk) {
  if (entry.index_begin == kDense || options_.stripes == nullptr) return std::nullopt;
  StripeCache::Hold hold =
      options_.stripes->Find(chunk, item.ready.header.layer, IndicesOf(attend_, segment, entry));
  if (!hold.held()) return std::nullopt;
  const RowView rows = {.data = hold.rows(),
                        .count = hold.token_count(),
                        .stride_bytes = item.ready.session->geometry.row_bytes()};
  stripe_hit_count_ += hold.stripe_count();
  holds_.push_back(std::move(hold));
  return PieceRows{rows};
}

// The rows that represent a chunk on disk, if the request allows an approximation.
std::optional<Batch::PieceRows> Batch::ShadowOf(const Item& item, ChunkLocator chunk) {
  const RequestHeader& header = item.ready.header;
  if ((header.flags & kFlagApproximate) == 0 || options_.shadows == nullptr || in_rounds_) {
    return std::nullopt;
  }
  std::shared_ptr<const Shadow> shadow = options_.shadows->Find(chunk);
  if (shadow == nullptr) return std::nullopt;
  const RowView rows = {.data = shadow->layer(header.layer),
                        .count = shadow->token_count(),
                        .stride_bytes = shadow->row_bytes(),
                        .memory = options_.chunk_memory};
  shadows_.push_back(std::move(shadow));
  return PieceRows{rows, /*shadow=*/true};
}

absl::Status Batch::FindPieces(const Item& item) {
  pieces_.clear();
  stripe_hit_count_ = 0;
  for (const AttendSegment& segment : attend_.segments) {
    for (uint32_t i = segment.piece_begin; i < segment.piece_end; ++i) {
      const PieceEntry& entry = attend_.pieces[i];
      CKV_ASSIGN_OR_RETURN(const PieceRows found, RowsOf(item, segment, entry));
      pieces_.push_back({MakePiece(item, segment, entry, found.rows), found.shadow});
    }
  }
  return absl::OkStatus();
}

absl::Status Batch::AddAttend(Item& item, Verdict& verdict) {
  const RequestHeader& header = item.ready.header;
  CKV_RETURN_IF_ERROR(CheckNoHandleTwice());
  in_rounds_ = BatchPlan::InRounds(attend_, item.ready.session->geometry);
  const size_t pin_begin = pins_.size();
  const size_t shadow_begin = shadows_.size();
  const size_t hold_begin = holds_.size();
  absl::Status status = FindPieces(item);
  uint64_t work = 0;
  if (absl::IsUnavailable(status)) {
    status = absl::OkStatus();
    verdict = Verdict::kCold;
  } else if (status.ok()) {
    work = WorkOf(item);
    if (work > kRequestWorkMax) {
      status = absl::InvalidArgumentError(absl::StrFormat(
          "%d rows over %d pieces are %d multiply-adds, limit %d: split the request by its rows",
          header.row_count, pieces_.size(), work, kRequestWorkMax));
    } else if (work > options_.work_max) {
      verdict = Verdict::kLong;
    } else if (plan_.work() + work > options_.work_max) {
      verdict = Verdict::kFull;
    }
  }
  if (!status.ok() || verdict != Verdict::kTaken) {
    pins_.resize(pin_begin);
    shadows_.resize(shadow_begin);
    holds_.resize(hold_begin);
    return status;
  }
  last_work_ = item.work = work;
  item.reply.row_count = header.row_count;
  item.reply.partial_count = static_cast<uint16_t>(attend_.partial_count);
  item.reply.kernel_target = kernel_target_;
  item.reply.body_bytes =
      static_cast<uint32_t>(AttendReplyBytes(attend_, item.ready.session->geometry));
  item.groups = plan_.Add(item.ready, attend_, pieces_, work);
  if (item.groups.shadow != BatchPlan::kNoGroup) {
    item.reply.flags |= kFlagApproximate;
    Bump(counters_->approximate_count);
  }
  Bump(counters_->query_row_count, header.row_count);
  Bump(counters_->stripe_hit_count, stripe_hit_count_);
  return absl::OkStatus();
}

AttentionPiece Batch::MakePiece(const Item& item, const AttendSegment& segment,
                                const PieceEntry& entry, const RowView& rows) const {
  const uint32_t d_qk = item.ready.session->geometry.d_qk;
  const uint64_t row = segment.stored_row_begin + uint64_t{entry.copy} * segment.row_count;
  AttentionPiece piece;
  piece.q = {.data = attend_.rows + row * d_qk,
             .count = segment.row_count,
             .stride = d_qk,
             .memory = item.ready.slot_memory()};
  piece.rows = rows;
  piece.precision = PrecisionOf(item.ready.header);
  if (entry.index_begin != kDense) {
    piece.selection = {
        .indices = entry.k == 0 ? kNoIndices : IndicesOf(attend_, segment, entry).data(),
        .k = entry.k,
        .group_rows = entry.group_rows};
  }
  return piece;
}

void Batch::Reply(uint32_t waiting_count) {
  role_.ClaimOrAssertHeld();
  if (!computed_.status.ok() && !failing_) {
    Log().error("requests are refused until the next batch that is computed: {}",
                computed_.status.ToString());
  }
  failing_ = !computed_.status.ok();
  Bump(counters_->batch_count, computed_.kernel_call_count);
  if (computed_.kernel_call_count != 0) {
    Bump(counters_->compute_ns, static_cast<uint64_t>(computed_.elapsed.count()));
    counters_->kernel.AddAlone(computed_.elapsed);
  }
  for (uint32_t i = 0; i < item_count_; ++i) {
    Item& item = items_[i];
    const bool attended = item.ready.header.kind == WireKind::kAttend;
    if (attended && item.error.ok()) item.error = ResultOf(item);
    Post(item, waiting_count + (item_count_ - 1 - i));
  }
  Clear();
}

absl::Status Batch::ResultOf(const Item& item) const {
  if (plan_.Expired(item.groups)) {
    Bump(counters_->expired_count);
    return ExpiredError(item.ready.header);
  }
  if (computed_.status.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat("kernels of %s failed: %s",
                                                stream_->backend().kernel_target(),
                                                std::string(computed_.status.message())));
}

void Batch::Post(Item& item, uint32_t behind_count) {
  if (options_.spans != nullptr && item.ready.header.sampled != 0)
    RecordServed(item.ready, computed_, !item.error.ok(), clock_->Now(), *options_.spans);
  if (!item.error.ok()) {
    PostError(item.ready, item.error, /*retry_after_us=*/0, *counters_);
    item.error = absl::OkStatus();
    return;
  }
  const bool attended = item.ready.header.kind == WireKind::kAttend;
  item.reply.compute_ns = attended ? Saturate32(computed_.elapsed.count()) : 0;
  item.reply.batch_share = attended ? ShareOf(item.work, plan_.work()) : uint8_t{0};
  const Duration waited = computed_.started - item.ready.arrived;
  if (attended) counters_->attend_wait.AddAlone(waited);
  item.reply.queue_ns = Saturate32(waited.count());
  item.reply.queue_depth = behind_count;
  PostReply(item.ready, item.reply, *counters_);
}

void Batch::Clear() {
  role_.ClaimOrAssertHeld();
  plan_.Clear();
  pins_.clear();
  shadows_.clear();
  holds_.clear();
  for (uint32_t i = 0; i < item_count_; ++i) items_[i].ready.cold_rows.reset();
  item_count_ = 0;
}

}  // namespace ckv
