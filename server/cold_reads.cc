#include "server/cold_reads.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "transport/wire.h"

namespace ckv {

ColdReads::ColdReads(ChunkStore* store, absl::AnyInvocable<void()> tell)
    : store_(store), thread_(std::make_unique<SideThread>(std::move(tell))) {
  attend_.pieces.reserve(kPieceCountMax);
  chunks_.reserve(kPieceCountMax);
  pins_.reserve(kPieceCountMax);
}

// The chunks behind the request's handles. Those that are not known are answered for when the
// request has its turn again.
absl::Status ColdReads::ListChunks(const ReadyRequest& ready) {
  chunks_.clear();
  const auto add = [&](uint32_t handle) {
    if (const auto chunk = ready.session->handles.Lookup({handle})) chunks_.push_back(*chunk);
  };
  switch (ready.header.kind) {
    case WireKind::kAttend:
      CKV_RETURN_IF_ERROR(
          DecodeAttendRequest(ready.header, ready.frame(), ready.session->geometry, attend_));
      for (const PieceEntry& piece : attend_.pieces) add(piece.handle);
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
  CKV_RETURN_IF_ERROR(ListChunks(ready));
  ready_ = ready;
  lane_ = &lane;
  ++lane.busy;
  thread_->Start([this] { Read(); });
  return absl::OkStatus();
}

void ColdReads::Read() {
  // The last request has had its turn, so its chunks may make room for these.
  pins_.clear();
  status_ = absl::OkStatus();
  for (const ChunkLocator& chunk : chunks_) {
    absl::StatusOr<ChunkPin> pin = store_->Load(chunk);
    // Dropped meanwhile: the request is told so when it has its turn.
    if (absl::IsNotFound(pin.status())) continue;
    if (!pin.ok()) {
      status_ = pin.status();
      if (absl::IsResourceExhausted(status_)) {
        status_ = absl::ResourceExhaustedError(absl::StrFormat(
            "the request's %d chunks are on disk and do not fit in store.capacity together, beside "
            "what others read: ask for fewer at once, or raise it",
            chunks_.size()));
      }
      pins_.clear();
      return;
    }
    pins_.push_back(*std::move(pin));
  }
}

ColdReads::Done ColdReads::Finish() {
  thread_->Collect();
  --lane_->busy;
  Done done = {*ready_, std::exchange(lane_, nullptr), status_};
  ready_.reset();
  return done;
}

void ColdReads::End() {
  thread_.reset();
  if (lane_ != nullptr) --lane_->busy;
  lane_ = nullptr;
  pins_.clear();
}

}  // namespace ckv
