#include "server/batch.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "store/chunk.h"
#include "transport/wire.h"

namespace ckv {
namespace {

constexpr size_t kScratchFloats = kMergeScratchBytes / sizeof(float);

// Floats of one f32 partial in the scratch, in whole cache lines.
size_t PartialFloats(uint32_t row_count, uint32_t d_v) {
  return (size_t{row_count} * (size_t{d_v} + 2) + 15) / 16 * 16;
}
static_assert(4 * ((size_t{kQueryRowCountMax} * (kRowWidthMax + 2) + 15) / 16 * 16) <=
              kScratchFloats);

// A selection of nothing still has to be present.
constexpr int32_t kNoIndices[1] = {-1};

bool PerPiece(const RequestHeader& header) { return (header.flags & kFlagPerPiece) != 0; }
bool WantsF32(const RequestHeader& header) { return (header.flags & kFlagPartialF32) != 0; }
uint32_t PartialCount(const RequestHeader& header) {
  return PerPiece(header) ? header.piece_count : 1;
}
// At most 1024 partials of 4096 x (1024 + 2) x 4 B: cannot wrap.
uint64_t AttendBodyBytes(const RequestHeader& header, const Geometry& geometry) {
  return uint64_t{PartialCount(header)} *
         LayOutPartial(header.row_count, geometry.d_v, WantsF32(header)).total_bytes;
}
bool MergedHere(const RequestHeader& header) { return !PerPiece(header) && header.piece_count > 1; }

bool Alike(const AttentionShape& a, const AttentionShape& b) {
  return a.d_qk == b.d_qk && a.d_v == b.d_v && a.d_rope == b.d_rope && a.row_dtype == b.row_dtype &&
         a.softmax_scale == b.softmax_scale;
}

Instant DeadlineOf(const ReadyRequest& ready, const RequestHeader& header) {
  return ready.arrived + std::chrono::microseconds(header.deadline_us);
}

absl::Status ExpiredError(const RequestHeader& header) {
  return absl::DeadlineExceededError(
      absl::StrFormat("%d us were left on arrival and have passed", header.deadline_us));
}

uint32_t Saturate(int64_t value) {
  return static_cast<uint32_t>(std::clamp<int64_t>(value, 0, std::numeric_limits<uint32_t>::max()));
}

// One writer, so that load and store need no read-modify-write.
void Bump(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

// The partial `index` of an attend reply, where the requester will read it.
PartialView PartialInReply(std::span<std::byte> slot, const RequestHeader& header, uint32_t d_v,
                           uint32_t index) {
  const bool f32 = WantsF32(header);
  const PartialLayout layout = LayOutPartial(header.row_count, d_v, f32);
  std::byte* const base = slot.data() + sizeof(ReplyHeader) + index * layout.total_bytes;
  return {.o = base + layout.o,
          .m = reinterpret_cast<float*>(base + layout.m),
          .l = reinterpret_cast<float*>(base + layout.l),
          .dtype = f32 ? PartialDtype::kF32 : PartialDtype::kBf16};
}

}  // namespace

Batch::Batch(uint32_t request_count_max, uint32_t thread_count, Clock* clock, ChunkTable* table,
             const LeaseGate* lease, ServeCounters* counters)
    : clock_(clock),
      table_(table),
      lease_(lease),
      counters_(counters),
      pool_(thread_count),
      items_(request_count_max),
      scratch_(new float[kScratchFloats]) {
  attend_.pieces.reserve(kPieceCountMax);
  handles_.reserve(kPieceCountMax);
  pins_.reserve(kBatchPieceCountMax);
  parts_.reserve(kBatchPieceCountMax);
  merges_.reserve(request_count_max);
  rounds_pieces_.reserve(kPieceCountMax);
}

Batch::Verdict Batch::Add(const ReadyRequest& ready) {
  if (item_count_ == items_.size()) return Verdict::kFull;
  const std::span<const std::byte> slot = ready.lane->request(ready.slot).first(ready.bytes);
  const absl::StatusOr<RequestHeader> header = DecodeRequestHeader(slot);
  if (!header.ok()) {
    malformed_ = header.status();
    return Verdict::kMalformed;
  }
  const Geometry& geometry = ready.session->geometry;
  if (header->kind == WireKind::kAttend && !HasRoom(*header, geometry)) return Verdict::kFull;

  Item& item = items_[item_count_];
  item.ready = ready;
  item.header = *header;
  item.reply = {.kind = header->kind,
                .flags = header->flags,
                .request_id = header->request_id,
                .epoch = lease_->epoch().value};
  item.reply_bytes = 0;
  item.group = 0;
  item.error = Admit(item, clock_->Now());
  if (item.error.ok() && header->kind == WireKind::kProbe) item.error = AddProbe(item);
  if (item.error.ok() && header->kind == WireKind::kFetch) {
    const absl::StatusOr<FetchEntry> entry = DecodeFetchRequest(*header, slot);
    if (!entry.ok()) {
      malformed_ = entry.status();
      return Verdict::kMalformed;
    }
    item.error = AddFetch(item, *entry);
  }
  if (item.error.ok() && header->kind == WireKind::kMap) {
    item.error = absl::UnimplementedError("this holder maps no chunks: fetch its rows");
  }
  if (item.error.ok() && header->kind == WireKind::kAttend) item.error = CheckLimits(item);
  if (item.error.ok() && header->kind == WireKind::kAttend) {
    malformed_ = DecodeAttendRequest(*header, slot, geometry, attend_);
    if (!malformed_.ok()) return Verdict::kMalformed;
    item.error = AddAttend(item);
  }
  Bump(counters_->request_count);
  Bump(counters_->bytes_in, ready.bytes);
  ++item_count_;
  return Verdict::kTaken;
}

bool Batch::HasRoom(const RequestHeader& header, const Geometry& geometry) const {
  if (in_rounds_) return false;
  if (group_count_ == 0) return true;
  if (pins_.size() + header.piece_count > kBatchPieceCountMax) return false;
  if (!MergedHere(header)) return true;
  const size_t floats = PartialFloats(header.row_count, geometry.d_v);
  return floats <= (kScratchFloats - scratch_used_) / header.piece_count;
}

absl::Status Batch::Admit(const Item& item, Instant now) {
  const RequestHeader& header = item.header;
  if (header.session != item.ready.session->id.value) {
    return absl::AbortedError("this lane belongs to another session: open a new one");
  }
  if (item.ready.refused) return absl::UnavailableError("the holder is draining");
  if (!lease_->LiveAt(now)) return absl::UnavailableError("no live lease");
  const Epoch epoch = lease_->epoch();
  if (header.epoch != epoch.value) {
    return absl::AbortedError(absl::StrFormat("epoch %d, this holder is in %d: open a new session",
                                              header.epoch, epoch.value));
  }
  if (now >= DeadlineOf(item.ready, header)) {
    Bump(counters_->expired_count);
    return ExpiredError(header);
  }
  return absl::OkStatus();
}

absl::Status Batch::AddProbe(Item& item) {
  const std::span<std::byte> reply = item.ready.lane->reply(item.ready.slot);
  const size_t bytes = std::min<size_t>(item.header.body_bytes, reply.size() - sizeof(ReplyHeader));
  const std::span<const std::byte> request = item.ready.lane->request(item.ready.slot);
  std::memcpy(reply.data() + sizeof(ReplyHeader), request.data() + sizeof(RequestHeader), bytes);
  item.reply.body_bytes = static_cast<uint32_t>(bytes);
  return absl::OkStatus();
}

absl::Status Batch::AddFetch(Item& item, const FetchEntry& entry) {
  CKV_ASSIGN_OR_RETURN(const ChunkPin pin, Pin(*item.ready.session, entry.handle));
  const Chunk& chunk = pin.chunk();
  const uint32_t layers = chunk.geometry().layers;
  const uint32_t tokens = chunk.info().token_count();
  if (entry.layer_begin > layers || entry.layer_count > layers - entry.layer_begin) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "layers %d + %d, model has %d", entry.layer_begin, entry.layer_count, layers));
  }
  if (entry.token_begin > tokens || entry.token_count > tokens - entry.token_begin) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tokens %d + %d, chunk has %d", entry.token_begin, entry.token_count, tokens));
  }
  const std::span<std::byte> reply = item.ready.lane->reply(item.ready.slot);
  const uint64_t run_bytes = uint64_t{entry.token_count} * chunk.geometry().row_bytes();
  const uint64_t body_bytes = run_bytes * entry.layer_count;  // < 2^20 x 2^11 x 2^9: cannot wrap
  if (body_bytes > reply.size() - sizeof(ReplyHeader)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes of rows, a reply of this lane holds %d: ask for fewer",
                        body_bytes, reply.size() - sizeof(ReplyHeader)));
  }
  std::byte* out = reply.data() + sizeof(ReplyHeader);
  for (uint32_t i = 0; i < entry.layer_count && run_bytes != 0; ++i, out += run_bytes) {
    const std::span<const std::byte> rows = chunk.layer(entry.layer_begin + i);
    std::memcpy(out, rows.data() + uint64_t{entry.token_begin} * chunk.geometry().row_bytes(),
                run_bytes);
  }
  const std::span<const std::byte> body(reply.data() + sizeof(ReplyHeader), body_bytes);
  item.reply.body_checksum = BodyChecksum(body);
  item.reply.body_bytes = static_cast<uint32_t>(body_bytes);
  return absl::OkStatus();
}

// Unknown, dropped and denied look the same (I6).
absl::StatusOr<ChunkPin> Batch::Pin(const Session& session, uint32_t handle) {
  if (const auto locator = session.handles.Lookup({handle}); locator.has_value()) {
    absl::StatusOr<ChunkPin> pin = table_->Pin(*locator);
    if (pin.ok()) return pin;
  }
  return absl::NotFoundError(
      absl::StrFormat("handle %d names no chunk here: resolve it again", handle));
}

// What a peer may get wrong without being broken: answered, where a malformed frame closes the
// lane.
absl::Status Batch::CheckLimits(const Item& item) const {
  const RequestHeader& header = item.header;
  const Geometry& geometry = item.ready.session->geometry;
  if (header.layer >= geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layer %d, model has %d", header.layer, geometry.layers));
  }
  const uint64_t reply_bytes = sizeof(ReplyHeader) + AttendBodyBytes(header, geometry);
  const uint32_t reply_bytes_max = item.ready.lane->shape().reply_bytes_max;
  if (reply_bytes <= reply_bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%d partials of %d rows are a reply of %d bytes, this lane holds %d: ask for fewer at once",
      PartialCount(header), header.row_count, reply_bytes, reply_bytes_max));
}

absl::Status Batch::CheckNoHandleTwice() {
  handles_.clear();
  for (const PieceEntry& piece : attend_.pieces) handles_.push_back(piece.handle);
  std::sort(handles_.begin(), handles_.end());
  const auto twice = std::adjacent_find(handles_.begin(), handles_.end());
  if (twice == handles_.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("handle %d twice: its rows would count twice", *twice));
}

absl::Status Batch::CheckWork(const Item& item, std::span<const ChunkPin> pins) const {
  const Geometry& geometry = item.ready.session->geometry;
  const uint64_t row_work = uint64_t{item.header.row_count} * (geometry.d_qk + geometry.d_v);
  uint64_t work = 0;  // at most 1024 x 2^12 x 2^11 x 2^22: cannot wrap
  for (size_t i = 0; i < pins.size(); ++i) {
    const PieceEntry& piece = attend_.pieces[i];
    work +=
        row_work * (piece.index_begin == kDense ? pins[i].chunk().info().token_count() : piece.k);
  }
  if (work <= kRequestWorkMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%d rows over %d pieces are %d multiply-adds, limit %d: split the request by its rows",
      item.header.row_count, pins.size(), work, kRequestWorkMax));
}

absl::Status Batch::AddAttend(Item& item) {
  const RequestHeader& header = item.header;
  if (!PerPiece(header)) CKV_RETURN_IF_ERROR(CheckNoHandleTwice());
  const size_t pin_begin = pins_.size();
  for (const PieceEntry& piece : attend_.pieces) {
    absl::StatusOr<ChunkPin> pin = Pin(*item.ready.session, piece.handle);
    if (!pin.ok()) {
      pins_.resize(pin_begin);
      return pin.status();
    }
    pins_.push_back(*std::move(pin));
  }
  const auto pins = std::span<const ChunkPin>(pins_).subspan(pin_begin);
  if (absl::Status status = CheckWork(item, pins); !status.ok()) {
    pins_.resize(pin_begin);
    return status;
  }
  item.reply.row_count = header.row_count;
  item.reply.partial_count = PartialCount(header);
  item.reply.body_bytes =
      static_cast<uint32_t>(AttendBodyBytes(header, item.ready.session->geometry));
  PlacePieces(item, pins);
  Bump(counters_->query_row_count, header.row_count);
  return absl::OkStatus();
}

AttentionPiece Batch::MakePiece(const Item& item, const PieceEntry& entry,
                                const Chunk& chunk) const {
  const RequestHeader& header = item.header;
  const uint32_t d_qk = chunk.geometry().d_qk;
  AttentionPiece piece;
  piece.q = {.data = attend_.rows + size_t{entry.copy} * header.row_count * d_qk,
             .count = header.row_count,
             .stride = d_qk};
  piece.rows = {.data = chunk.layer(header.layer).data(),
                .count = chunk.info().token_count(),
                .stride_bytes = chunk.geometry().row_bytes()};
  if (entry.index_begin != kDense) {
    piece.selection = {
        .indices = entry.k == 0 ? kNoIndices : attend_.indices.data() + entry.index_begin,
        .k = entry.k,
        .group_rows = entry.group_rows};
  }
  return piece;
}

// Decides where each piece's partial goes: straight into the reply, or into the scratch to be
// merged. How a request is cut depends on that request alone, never on what shares its batch, so
// its bits do not either (I2).
void Batch::PlacePieces(Item& item, std::span<const ChunkPin> pins) {
  const RequestHeader& header = item.header;
  const Geometry& geometry = item.ready.session->geometry;
  const std::span<std::byte> reply = item.ready.lane->reply(item.ready.slot);
  const bool merged = MergedHere(header);
  const AttentionShape shape = AttentionShape::Of(geometry);
  Group& group = GroupFor(shape);
  group.deadline = std::max(group.deadline, DeadlineOf(item.ready, header));
  item.group = static_cast<size_t>(&group - groups_.data());
  if (merged && PartialFloats(header.row_count, geometry.d_v) > kScratchFloats / pins.size()) {
    in_rounds_ = true;
    rounds_shape_ = shape;
    rounds_group_ = item.group;
    rounds_out_ = PartialInReply(reply, header, geometry.d_v, 0);
    for (size_t i = 0; i < pins.size(); ++i) {
      rounds_pieces_.push_back(MakePiece(item, attend_.pieces[i], pins[i].chunk()));
    }
    return;
  }
  const size_t part_begin = parts_.size();
  for (size_t i = 0; i < pins.size(); ++i) {
    AttentionPiece piece = MakePiece(item, attend_.pieces[i], pins[i].chunk());
    piece.out = merged ? TakeScratch(header.row_count, geometry.d_v)
                       : PartialInReply(reply, header, geometry.d_v, static_cast<uint32_t>(i));
    if (merged) parts_.emplace_back(piece.out);
    group.pieces.push_back(piece);
  }
  if (!merged) return;
  merges_.push_back({.group = item.group,
                     .part_begin = part_begin,
                     .part_count = pins.size(),
                     .row_count = header.row_count,
                     .d_v = geometry.d_v,
                     .out = PartialInReply(reply, header, geometry.d_v, 0)});
}

Batch::Group& Batch::GroupFor(const AttentionShape& shape) {
  for (size_t i = 0; i < group_count_; ++i) {
    if (Alike(groups_[i].shape, shape)) return groups_[i];
  }
  if (group_count_ == groups_.size()) groups_.emplace_back().pieces.reserve(kBatchPieceCountMax);
  Group& group = groups_[group_count_++];
  group.shape = shape;
  group.deadline = Instant{};
  return group;
}

PartialView Batch::TakeScratch(uint32_t row_count, uint32_t d_v) {
  const size_t floats = PartialFloats(row_count, d_v);
  CKV_CHECK(floats <= kScratchFloats - scratch_used_);
  float* const o = scratch_.get() + scratch_used_;
  scratch_used_ += floats;
  float* const m = o + size_t{row_count} * d_v;
  return {.o = o, .m = m, .l = m + row_count, .dtype = PartialDtype::kF32};
}

void Batch::Compute() {
  for (size_t i = 0; i < group_count_; ++i) {
    std::vector<AttentionPiece>& pieces = groups_[i].pieces;
    if (pieces.empty()) continue;
    if (Expired(i)) {
      std::erase_if(merges_, [i](const MergeTask& merge) { return merge.group == i; });
      continue;
    }
    // Requests for the same (chunk, layer) one after another: its rows are read from memory once
    // and from the cache by the rest.
    std::sort(pieces.begin(), pieces.end(), [](const AttentionPiece& a, const AttentionPiece& b) {
      return std::less<>()(a.rows.data, b.rows.data);
    });
    AttendPartials(groups_[i].shape, pieces, pool_);
    Bump(counters_->batch_count);
  }
  if (in_rounds_) MergeInRounds();
  if (merges_.empty()) return;
  pool_.Run(static_cast<uint32_t>(merges_.size()), [this](uint32_t task, uint32_t) {
    const MergeTask& merge = merges_[task];
    const std::span<const ConstPartialView> parts(parts_);
    MergePartials(parts.subspan(merge.part_begin, merge.part_count), merge.row_count, merge.d_v,
                  merge.out);
  });
}

bool Batch::Expired(size_t group) {
  if (clock_->Now() < groups_[group].deadline) return false;
  for (uint32_t i = 0; i < item_count_; ++i) {
    Item& item = items_[i];
    if (item.header.kind != WireKind::kAttend || item.group != group || !item.error.ok()) continue;
    Bump(counters_->expired_count);
    item.error = ExpiredError(item.header);
  }
  return true;
}

// As many partials at a time as the scratch holds beside the merged one and its successor.
void Batch::MergeInRounds() {
  const uint32_t rows = rounds_pieces_.front().q.count;
  const uint32_t d_v = rounds_shape_.d_v;
  PartialView merged = TakeScratch(rows, d_v);
  PartialView next = TakeScratch(rows, d_v);
  const size_t kept = scratch_used_;
  const size_t round_size = (kScratchFloats - kept) / PartialFloats(rows, d_v);
  for (size_t begin = 0; begin < rounds_pieces_.size(); begin += round_size) {
    if (Expired(rounds_group_)) break;
    const size_t count = std::min(round_size, rounds_pieces_.size() - begin);
    const std::span<AttentionPiece> pieces = std::span(rounds_pieces_).subspan(begin, count);
    scratch_used_ = kept;
    parts_.clear();
    if (begin != 0) parts_.emplace_back(merged);
    for (AttentionPiece& piece : pieces) {
      piece.out = TakeScratch(rows, d_v);
      parts_.emplace_back(piece.out);
    }
    AttendPartials(rounds_shape_, pieces, pool_);
    Bump(counters_->batch_count);
    const bool last = begin + count == rounds_pieces_.size();
    MergePartials(parts_, rows, d_v, last ? rounds_out_ : next);
    std::swap(merged, next);
  }
  parts_.clear();
}

void Batch::Answer(uint32_t waiting_count) {
  const Instant started = clock_->Now();
  uint64_t compute_ns = 0;
  if (group_count_ != 0) {
    Compute();
    compute_ns = static_cast<uint64_t>((clock_->Now() - started).count());
    Bump(counters_->compute_ns, compute_ns);
  }
  for (uint32_t i = 0; i < item_count_; ++i) {
    Post(items_[i], waiting_count + (item_count_ - 1 - i), compute_ns, started);
  }
  Clear();
}

void Batch::Post(Item& item, uint32_t behind_count, uint64_t compute_ns, Instant started) {
  const ReadyRequest& ready = item.ready;
  const std::span<std::byte> slot = ready.lane->reply(ready.slot);
  uint32_t bytes = 0;
  if (item.error.ok()) {
    const bool computed = item.header.kind == WireKind::kAttend;
    item.reply.compute_ns = computed ? Saturate(static_cast<int64_t>(compute_ns)) : 0;
    item.reply.queue_ns = Saturate((started - ready.arrived).count());
    item.reply.queue_depth = behind_count;
    EncodeHeader(item.reply, slot);
    bytes = static_cast<uint32_t>(sizeof(ReplyHeader)) + item.reply.body_bytes;
  } else {
    Bump(counters_->error_count);
    bytes = EncodeErrorReply(item.header, item.error, /*retry_after_us=*/0, slot);
    item.error = absl::OkStatus();
  }
  // A lane that broke meanwhile says so in its status, where the dispatcher looks.
  if (ready.lane->Post(ready.slot, bytes).ok()) Bump(counters_->bytes_out, bytes);
}

void Batch::Clear() {
  for (size_t i = 0; i < group_count_; ++i) groups_[i].pieces.clear();
  group_count_ = 0;
  merges_.clear();
  parts_.clear();
  rounds_pieces_.clear();
  in_rounds_ = false;
  scratch_used_ = 0;
  pins_.clear();
  item_count_ = 0;
}

}  // namespace ckv
