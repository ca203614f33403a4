#include "server/batch.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "server/cold_rows.h"
#include "store/chunk.h"
#include "transport/wire.h"

namespace ckv {
namespace {

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

Batch::Batch(const BatchOptions& options, Clock* clock, ChunkTable* table, const LeaseGate* lease,
             ServeCounters* counters)
    : options_(options),
      clock_(clock),
      table_(table),
      lease_(lease),
      counters_(counters),
      pool_(options.thread_count),
      items_(options.request_count_max),
      scratch_(new float[kScratchFloats]) {
  attend_.pieces.reserve(kPieceCountMax);
  handles_.reserve(kPieceCountMax);
  rows_.reserve(kPieceCountMax);
  pins_.reserve(kBatchPieceCountMax);
  parts_.reserve(kBatchPieceCountMax);
  merges_.reserve(options.request_count_max);
  rounds_pieces_.reserve(kPieceCountMax);
}

Batch::Verdict Batch::Add(const ReadyRequest& ready) {
  if (item_count_ == items_.size()) return Verdict::kFull;
  const RequestHeader& header = ready.header;
  if (header.kind == WireKind::kAttend && !HasRoom(header, ready.session->geometry)) {
    return Verdict::kFull;
  }
  Item& item = items_[item_count_];
  item.ready = ready;
  item.reply = {.kind = header.kind,
                .flags = static_cast<uint8_t>(header.flags & ~kFlagApproximate),
                .request_id = header.request_id,
                .epoch = lease_->epoch().value};
  item.group = 0;
  item.shadow_group = kNoGroup;
  last_work_ = 0;
  const Verdict verdict = Judge(item);
  if (verdict != Verdict::kTaken) {
    item.ready.cold_rows.reset();  // whoever answers it holds them
    return verdict;
  }
  work_ += last_work_;
  ++item_count_;
  return verdict;
}

Batch::Verdict Batch::Judge(Item& item) {
  const ReadyRequest& ready = item.ready;
  item.error = CheckTurn(ready, *lease_, clock_->Now(), *counters_);
  if (!item.error.ok()) return Verdict::kTaken;
  if (ready.header.kind == WireKind::kProbe) {
    AddProbe(item);
    return Verdict::kTaken;
  }
  item.error = CheckLimits(item);
  if (!item.error.ok()) return Verdict::kTaken;
  malformed_ = DecodeAttendRequest(ready.header, ready.frame(), ready.session->geometry, attend_);
  if (!malformed_.ok()) return Verdict::kMalformed;
  Verdict verdict = Verdict::kTaken;
  item.error = AddAttend(item, verdict);
  return verdict;
}

bool Batch::HasRoom(const RequestHeader& header, const Geometry& geometry) const {
  if (in_rounds_) return false;
  if (group_count_ == 0) return true;
  if (pins_.size() + header.piece_count > kBatchPieceCountMax) return false;
  if (!MergedHere(header)) return true;
  const size_t floats = PartialFloats(header.row_count, geometry.d_v);
  return floats <= (kScratchFloats - scratch_used_) / header.piece_count;
}

void Batch::AddProbe(Item& item) {
  const std::span<std::byte> reply = item.ready.lane->reply(item.ready.slot);
  const std::span<const std::byte> body = item.ready.frame().subspan(sizeof(RequestHeader));
  const size_t bytes = std::min(body.size(), reply.size() - sizeof(ReplyHeader));
  std::memcpy(reply.data() + sizeof(ReplyHeader), body.data(), bytes);
  item.reply.body_bytes = static_cast<uint32_t>(bytes);
}

// What a peer may get wrong without being broken: answered, where a malformed frame closes the
// lane.
absl::Status Batch::CheckLimits(const Item& item) const {
  const RequestHeader& header = item.ready.header;
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

uint64_t Batch::WorkOf(const Item& item) const {
  const Geometry& geometry = item.ready.session->geometry;
  const uint64_t row_work = uint64_t{item.ready.header.row_count} * (geometry.d_qk + geometry.d_v);
  uint64_t work = 0;  // at most 1024 x 2^12 x 2^11 x 2^22: cannot wrap
  for (size_t i = 0; i < rows_.size(); ++i) {
    const PieceEntry& piece = attend_.pieces[i];
    work += row_work * (piece.index_begin == kDense ? rows_[i].rows.count : piece.k);
  }
  return work;
}

absl::StatusOr<Batch::PieceRows> Batch::RowsOf(const Item& item, uint32_t handle) {
  const ReadyRequest& ready = item.ready;
  const uint32_t row_bytes = ready.session->geometry.row_bytes();
  absl::StatusOr<ChunkPin> pin = PinHandle(*table_, *ready.session, handle);
  if (pin.ok()) {
    const Chunk& chunk = pin->chunk();
    const RowView rows = {.data = chunk.layer(ready.header.layer).data(),
                          .count = chunk.info().token_count(),
                          .stride_bytes = row_bytes};
    pins_.push_back(*std::move(pin));
    return PieceRows{rows};
  }
  if (!absl::IsUnavailable(pin.status())) return pin.status();
  const ChunkLocator chunk = *ready.session->handles.Lookup({handle});
  const ColdRows::Layer* const read =
      ready.cold_rows == nullptr ? nullptr : ready.cold_rows->Find(chunk);
  if (read != nullptr) {
    pins_.emplace_back();
    return PieceRows{{.data = read->rows, .count = read->token_count, .stride_bytes = row_bytes}};
  }
  if (const auto shadow = ShadowOf(item, chunk); shadow.has_value()) return *shadow;
  return pin.status();
}

// What stands for a chunk on disk, where the request allows it.
std::optional<Batch::PieceRows> Batch::ShadowOf(const Item& item, ChunkLocator chunk) {
  const RequestHeader& header = item.ready.header;
  if ((header.flags & kFlagApproximate) == 0 || options_.shadows == nullptr ||
      InRounds(header, item.ready.session->geometry)) {
    return std::nullopt;
  }
  std::shared_ptr<const Shadow> shadow = options_.shadows->Find(chunk);
  if (shadow == nullptr) return std::nullopt;
  const RowView rows = {.data = shadow->layer(header.layer),
                        .count = shadow->token_count(),
                        .stride_bytes = shadow->row_bytes()};
  pins_.emplace_back();
  shadows_.push_back(std::move(shadow));
  return PieceRows{rows, /*shadow=*/true};
}

absl::Status Batch::FindRows(const Item& item) {
  rows_.clear();
  const size_t pin_begin = pins_.size();
  const size_t shadow_begin = shadows_.size();
  for (const PieceEntry& piece : attend_.pieces) {
    absl::StatusOr<PieceRows> rows = RowsOf(item, piece.handle);
    if (!rows.ok()) {
      pins_.resize(pin_begin);
      shadows_.resize(shadow_begin);
      return rows.status();
    }
    rows_.push_back(*rows);
  }
  return absl::OkStatus();
}

absl::Status Batch::AddAttend(Item& item, Verdict& verdict) {
  const RequestHeader& header = item.ready.header;
  if (!PerPiece(header)) CKV_RETURN_IF_ERROR(CheckNoHandleTwice());
  const size_t pin_begin = pins_.size();
  const size_t shadow_begin = shadows_.size();
  if (absl::Status found = FindRows(item); !found.ok()) {
    if (!absl::IsUnavailable(found)) return found;
    verdict = Verdict::kCold;
    return absl::OkStatus();
  }
  const uint64_t work = WorkOf(item);
  absl::Status status;
  if (work > kRequestWorkMax) {
    status = absl::InvalidArgumentError(absl::StrFormat(
        "%d rows over %d pieces are %d multiply-adds, limit %d: split the request by its rows",
        header.row_count, rows_.size(), work, kRequestWorkMax));
  } else if (work > options_.work_max) {
    verdict = Verdict::kLong;
  } else if (work_ + work > options_.work_max) {
    verdict = Verdict::kFull;
  }
  if (!status.ok() || verdict != Verdict::kTaken) {
    pins_.resize(pin_begin);
    shadows_.resize(shadow_begin);
    return status;
  }
  last_work_ = work;
  item.reply.row_count = header.row_count;
  item.reply.partial_count = PartialCount(header);
  item.reply.body_bytes =
      static_cast<uint32_t>(AttendBodyBytes(header, item.ready.session->geometry));
  PlacePieces(item);
  Bump(counters_->query_row_count, header.row_count);
  return absl::OkStatus();
}

AttentionPiece Batch::MakePiece(const Item& item, size_t index) const {
  const RequestHeader& header = item.ready.header;
  const PieceEntry& entry = attend_.pieces[index];
  const uint32_t d_qk = item.ready.session->geometry.d_qk;
  AttentionPiece piece;
  piece.q = {.data = attend_.rows + size_t{entry.copy} * header.row_count * d_qk,
             .count = header.row_count,
             .stride = d_qk};
  piece.rows = rows_[index].rows;
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
void Batch::PlacePieces(Item& item) {
  const RequestHeader& header = item.ready.header;
  const Geometry& geometry = item.ready.session->geometry;
  const std::span<std::byte> reply = item.ready.lane->reply(item.ready.slot);
  const bool merged = MergedHere(header);
  const AttentionShape shape = AttentionShape::Of(geometry);
  item.group = GroupFor(shape, item.ready.deadline());
  if (InRounds(header, geometry)) {
    in_rounds_ = true;
    rounds_shape_ = shape;
    rounds_group_ = item.group;
    rounds_out_ = PartialInReply(reply, header, geometry.d_v, 0);
    for (size_t i = 0; i < rows_.size(); ++i) rounds_pieces_.push_back(MakePiece(item, i));
    return;
  }
  if (std::any_of(rows_.begin(), rows_.end(), [](const PieceRows& rows) { return rows.shadow; })) {
    AttentionShape packed = shape;
    packed.row_dtype = RowDtype::kFp8DsMla;
    item.shadow_group = GroupFor(packed, item.ready.deadline());
    item.reply.flags |= kFlagApproximate;
    Bump(counters_->approximate_count);
  }
  const size_t part_begin = parts_.size();
  for (size_t i = 0; i < rows_.size(); ++i) {
    AttentionPiece piece = MakePiece(item, i);
    piece.out = merged ? TakeScratch(header.row_count, geometry.d_v)
                       : PartialInReply(reply, header, geometry.d_v, static_cast<uint32_t>(i));
    if (merged) parts_.emplace_back(piece.out);
    groups_[rows_[i].shadow ? item.shadow_group : item.group].pieces.push_back(piece);
  }
  if (!merged) return;
  merges_.push_back({.group = item.group,
                     .shadow_group = item.shadow_group,
                     .part_begin = part_begin,
                     .part_count = rows_.size(),
                     .row_count = header.row_count,
                     .d_v = geometry.d_v,
                     .out = PartialInReply(reply, header, geometry.d_v, 0)});
}

bool Batch::InRounds(const RequestHeader& header, const Geometry& geometry) const {
  return MergedHere(header) &&
         PartialFloats(header.row_count, geometry.d_v) > kScratchFloats / header.piece_count;
}

size_t Batch::GroupFor(const AttentionShape& shape, Instant deadline) {
  size_t index = 0;
  while (index < group_count_ && !Alike(groups_[index].shape, shape)) ++index;
  if (index == groups_.size()) groups_.emplace_back().pieces.reserve(kBatchPieceCountMax);
  Group& group = groups_[index];
  if (index == group_count_) {
    ++group_count_;
    group.shape = shape;
    group.deadline = Instant{};
  }
  group.deadline = std::max(group.deadline, deadline);
  return index;
}

PartialView Batch::TakeScratch(uint32_t row_count, uint32_t d_v) {
  const size_t floats = PartialFloats(row_count, d_v);
  CKV_CHECK(floats <= kScratchFloats - scratch_used_);
  float* const o = scratch_.get() + scratch_used_;
  scratch_used_ += floats;
  float* const m = o + size_t{row_count} * d_v;
  return {.o = o, .m = m, .l = m + row_count, .dtype = PartialDtype::kF32};
}

}  // namespace ckv
