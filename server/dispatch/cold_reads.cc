#include "server/dispatch/cold_reads.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "transport/wire_attend.h"

namespace ckv {
namespace {

// Chunks whose selected rows are counted; more than anyone attends at a time in turns.
constexpr size_t kShareCountMax = 4096;

}  // namespace

ColdReads::ColdReads(ChunkStore* store, absl::AnyInvocable<void()> tell)
    : store_(store), thread_(std::make_unique<SideThread>(std::move(tell))) {
  attend_.segments.reserve(kSegmentCountMax);
  attend_.pieces.reserve(kPieceCountMax);
  wanted_.reserve(kPieceCountMax);
}

// The chunks behind the request's handles. Those that are not known are answered for when the
// request has its turn again.
absl::Status ColdReads::ListChunks(const ReadyRequest& ready) {
  wanted_.clear();
  const auto add = [&](uint32_t handle) -> Wanted* {
    const auto chunk = ready.session->handles.Lookup({handle});
    return chunk ? &wanted_.emplace_back(Wanted{.chunk = *chunk, .indices = {}}) : nullptr;
  };
  switch (ready.header.kind) {
    case WireKind::kAttend:
      CKV_RETURN_IF_ERROR(
          DecodeAttendRequest(ready.header, ready.frame(), ready.session->geometry, attend_));
      for (const AttendSegment& segment : attend_.segments) {
        for (uint32_t i = segment.piece_begin; i < segment.piece_end; ++i) {
          const PieceEntry& piece = attend_.pieces[i];
          Wanted* const wanted = add(piece.handle);
          if (wanted == nullptr) continue;
          wanted->layer_is_enough = true;
          wanted->selected = piece.index_begin != kDense;
          if (!wanted->selected) continue;
          const size_t lists = (segment.row_count + piece.group_rows - 1) / piece.group_rows;
          wanted->indices = attend_.indices.subspan(piece.index_begin, lists * piece.k);
        }
      }
      break;
    case WireKind::kFetch: {
      CKV_ASSIGN_OR_RETURN(const FetchRequest request,
                           DecodeFetchRequest(ready.header, ready.frame()));
      add(request.entry.handle);
      break;
    }
    case WireKind::kMap: {
      CKV_ASSIGN_OR_RETURN(const MapEntry entry, DecodeMapRequest(ready.header, ready.frame()));
      add(entry.handle);
      break;
    }
    case WireKind::kProbe:
      break;
  }
  return absl::OkStatus();
}

absl::Status ColdReads::Start(const ReadyRequest& ready, HolderLane& lane) {
  role_.ClaimOrAssertHeld();
  CKV_RETURN_IF_ERROR(ListChunks(ready));
  ready_ = ready;
  lane_ = &lane;
  ++lane.busy;
  thread_->Start([this] { Read(); });
  return absl::OkStatus();
}

void ColdReads::Read() {
  auto rows = std::make_shared<ColdRows>(ColdRowBytesMax(store_->memory().size()));
  status_ = absl::OkStatus();
  for (const Wanted& wanted : wanted_) {
    status_ = ReadChunk(wanted, *rows);
    // Dropped meanwhile: the request is told so when it has its turn.
    if (absl::IsNotFound(status_)) status_ = absl::OkStatus();
    if (!status_.ok()) break;
  }
  if (absl::IsResourceExhausted(status_)) {
    status_ = absl::ResourceExhaustedError(absl::StrFormat(
        "the request's %d chunks are on disk and do not fit in store.capacity together, beside "
        "what others read: ask for fewer at once, or raise it (%s)",
        wanted_.size(), std::string(status_.message())));
  }
  if (status_.ok()) ready_->cold_rows = std::move(rows);
}

absl::Status ColdReads::ReadChunk(const Wanted& wanted, ColdRows& rows) {
  if (wanted.selected) return ReadLayer(wanted, rows);
  absl::StatusOr<ChunkPin> pin = store_->Load(wanted.chunk);
  if (pin.ok()) {
    rows.Keep(*std::move(pin));
  } else if (absl::IsResourceExhausted(pin.status()) && wanted.layer_is_enough) {
    return ReadLayer(wanted, rows);
  }
  return pin.status();
}

absl::Status ColdReads::ReadLayer(const Wanted& wanted, ColdRows& rows) {
  if (auto pin = store_->table().Pin(wanted.chunk); pin.ok()) {
    rows.Keep(*std::move(pin));
    return absl::OkStatus();
  }
  CKV_ASSIGN_OR_RETURN(const ChunkRows file, store_->OpenRows(wanted.chunk));
  const uint32_t token_count = file.info().token_count();
  if (wanted.selected) {
    SelectedStripes(wanted.indices, token_count, &stripes_);
    const uint64_t bytes = stripes_.size() * kStripeTokens * file.geometry().row_bytes();
    if (!TakeShare(wanted.chunk, bytes, file.layer_bytes() * file.geometry().layers)) {
      absl::StatusOr<ChunkPin> pin = store_->Load(wanted.chunk);
      if (pin.ok()) {
        rows.Keep(*std::move(pin));
        return absl::OkStatus();
      }
      if (!absl::IsResourceExhausted(pin.status())) return pin.status();
    }
  } else {
    stripes_.resize(StripeCount(token_count));
    std::iota(stripes_.begin(), stripes_.end(), 0u);
  }
  return rows.Add(wanted.chunk, file, ready_->header.layer, stripes_);
}

bool ColdReads::TakeShare(ChunkLocator chunk, uint64_t bytes, uint64_t chunk_bytes) {
  if (shares_.size() >= kShareCountMax) shares_.clear();
  Share& share = shares_[chunk.slot];
  if (share.generation != chunk.generation) share = {.generation = chunk.generation};
  share.bytes += bytes;
  if (share.bytes <= chunk_bytes) return true;
  shares_.erase(chunk.slot);  // when it is cold once more, it begins anew
  return false;
}

ColdReads::Done ColdReads::Finish() {
  role_.ClaimOrAssertHeld();
  thread_->Collect();
  --lane_->busy;
  Done done = {*std::move(ready_), std::exchange(lane_, nullptr), status_};
  ready_.reset();
  held_ = done.ready.cold_rows;
  return done;
}

void ColdReads::End() {
  role_.ClaimOrAssertHeld();
  thread_.reset();
  if (lane_ != nullptr) --lane_->busy;
  lane_ = nullptr;
  ready_.reset();
}

}  // namespace ckv
