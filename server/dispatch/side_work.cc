// One long job at a time: a long attend, a score of index keys, or a copy of a chunk to map. All
// but the job itself runs on the dispatcher's thread:
//   idle      Start checks the request. If it needs long work, starts the job -> running
//   running   the side thread computes or copies, and rings the dispatcher's bell -> finished
//   finished  Finish replies, or drops the result if Cancel was called -> idle
// TryMap answers a map at once if the copy exists.

#include "server/dispatch/side_work.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "transport/wire.h"

namespace ckv {
namespace {

// The multiply-adds that a byte copied for a map counts as, so that maps and long requests share
// the thread: 64 MB take 50 to 70 ms the first time, and 4.3e9 multiply-adds as long.
constexpr uint64_t kMapCostPerByte = 64;

}  // namespace

SideWork::SideWork(const SideWorkOptions& options, BatchTools tools, Clock* clock,
                   const ChunkTable* table, const LeaseGate* lease, ServeCounters* counters,
                   absl::AnyInvocable<void()> notify)
    : clock_(clock),
      table_(table),
      lease_(lease),
      counters_(counters),
      exports_(options.map_bytes_max),
      batch_({.request_count_max = 1,
              .work_max = kRequestWorkMax,
              .shadows = options.shadows,
              .stripes = options.stripes,
              .chunk_memory = options.chunk_memory,
              .candidates = options.candidates,
              .spans = options.spans},
             std::move(tools), clock, table, lease, counters),
      score_({.compute_threads = options.compute_threads,
              .chunk_memory = options.chunk_memory,
              .candidates = options.candidates},
             clock, table, lease, counters),
      thread_(std::make_unique<SideThread>(std::move(notify))) {}

absl::StatusOr<SideWork::Outcome> SideWork::TryMap(const ReadyRequest& ready) {
  role_.ClaimOrAssertHeld();
  CKV_ASSIGN_OR_RETURN(const MapEntry entry, DecodeMapRequest(ready.header, ready.frame()));
  absl::Status refused = CheckTurn(ready, *lease_, clock_->Now(), *counters_);
  if (refused.ok() && ready.lane->kind() != FabricKind::kShm) {
    refused = absl::UnimplementedError(
        absl::StrFormat("%s hands over no chunks, only shm does: fetch its rows instead",
                        FabricName(ready.lane->kind())));
  }
  ChunkPin pin;
  if (refused.ok()) {
    absl::StatusOr<ChunkPin> found = PinHandle(*table_, *ready.session, entry.handle);
    if (absl::IsUnavailable(found.status())) return Outcome::kCold;
    refused = found.ok() ? exports_.CheckRoom(found->chunk()) : found.status();
    if (found.ok()) pin = *std::move(found);
  }
  if (!refused.ok()) {
    PostError(ready, refused, /*retry_after_us=*/0, *counters_);
    return Outcome::kServed;
  }
  const int fd = exports_.Find(*ready.session->handles.Lookup({entry.handle}));
  if (fd < 0) return Outcome::kNotMade;
  PostMap(ready, pin.chunk(), fd);
  return Outcome::kServed;
}

absl::StatusOr<SideWork::Outcome> SideWork::Start(const ReadyRequest& ready, HolderLane& lane) {
  role_.ClaimOrAssertHeld();
  if (ready.header.kind == WireKind::kMap) return StartMap(ready, lane);
  if (ready.header.kind == WireKind::kScore) return StartScore(ready, lane);
  last_work_ = last_cost_ = 0;
  switch (batch_.Add(ready)) {
    case Batch::Verdict::kMalformed:
      return batch_.malformed();
    case Batch::Verdict::kCold:
      return Outcome::kCold;
    case Batch::Verdict::kTaken:
      break;
    case Batch::Verdict::kFull:
    case Batch::Verdict::kLong:
      CKV_CHECK(false);  // an empty batch that takes all that is allowed
  }
  last_work_ = last_cost_ = batch_.work();
  if (last_work_ == 0) {
    batch_.Compute();  // an error, or chunks without tokens and selections of nothing
    batch_.Reply(0);
    return Outcome::kServed;
  }
  Bump(counters_->long_count);
  lane_ = &lane;
  ++lane.busy;
  cancel_.store(false, std::memory_order_relaxed);
  thread_->Start([this] { batch_.Compute(&cancel_); });
  return Outcome::kServed;
}

absl::StatusOr<SideWork::Outcome> SideWork::StartScore(const ReadyRequest& ready,
                                                       HolderLane& lane) {
  last_work_ = last_cost_ = 0;
  CKV_ASSIGN_OR_RETURN(const ScoreWork::Verdict verdict, score_.Begin(ready));
  if (verdict == ScoreWork::Verdict::kCold) return Outcome::kCold;
  if (verdict == ScoreWork::Verdict::kAnswered) return Outcome::kServed;
  last_cost_ = score_.work();
  scoring_ = true;
  lane_ = &lane;
  ++lane.busy;
  cancel_.store(false, std::memory_order_relaxed);
  thread_->Start([this] { score_.Run(); });
  return Outcome::kServed;
}

absl::StatusOr<SideWork::Outcome> SideWork::StartMap(const ReadyRequest& ready, HolderLane& lane) {
  last_work_ = last_cost_ = 0;
  // Once more: while it waited its copy may have been made, or the chunk may have gone.
  CKV_ASSIGN_OR_RETURN(const Outcome outcome, TryMap(ready));
  if (outcome != Outcome::kNotMade) return outcome;
  const MapEntry entry = *DecodeMapRequest(ready.header, ready.frame());
  absl::StatusOr<ChunkPin> pin = PinHandle(*table_, *ready.session, entry.handle);
  const auto chunk = ready.session->handles.Lookup({entry.handle});
  if (!pin.ok() || !chunk.has_value()) {
    PostError(ready, pin.status(), /*retry_after_us=*/0, *counters_);
    return Outcome::kServed;
  }
  last_cost_ = pin->chunk().layout().total_bytes() * kMapCostPerByte;
  mapping_.emplace(Mapping{.ready = ready, .chunk = *chunk, .pin = *std::move(pin)});
  lane_ = &lane;
  ++lane.busy;
  cancel_.store(false, std::memory_order_relaxed);
  thread_->Start([this] { mapping_->copy = ChunkExports::Make(mapping_->pin.chunk(), cancel_); });
  return Outcome::kServed;
}

void SideWork::Finish(uint32_t waiting_count) {
  role_.ClaimOrAssertHeld();
  thread_->Collect();
  --lane_->busy;
  lane_ = nullptr;
  if (cancel_.load(std::memory_order_relaxed)) {
    // Half of it is not computed, and its lane is broken: neither an answer nor a measure of work.
    last_work_ = 0;
    Drop();
    return;
  }
  if (std::exchange(scoring_, false)) {
    score_.Finish(waiting_count);
  } else if (mapping_.has_value()) {
    FinishMap();
  } else {
    batch_.Reply(waiting_count);
  }
}

void SideWork::End() {
  role_.ClaimOrAssertHeld();
  cancel_.store(true, std::memory_order_relaxed);
  thread_.reset();
  if (lane_ != nullptr) --lane_->busy;
  lane_ = nullptr;
  Drop();
}

void SideWork::Drop() {
  scoring_ = false;
  score_.Clear();
  mapping_.reset();
  batch_.Clear();
}

void SideWork::FinishMap() {
  Mapping& done = *mapping_;
  if (done.copy.ok()) {
    const int fd = exports_.Insert(done.chunk, done.pin.chunk().layout().total_bytes(),
                                   *std::move(done.copy), *table_);
    PostMap(done.ready, done.pin.chunk(), fd);
  } else {
    PostError(done.ready, done.copy.status(), /*retry_after_us=*/0, *counters_);
  }
  mapping_.reset();
}

void SideWork::PostMap(const ReadyRequest& ready, const Chunk& chunk, int fd) {
  const MapReply body = {.bytes = chunk.layout().total_bytes()};
  const std::span<std::byte> slot = ready.lane->reply(ready.slot);
  if (slot.size() < sizeof(ReplyHeader) + sizeof(body)) {
    PostError(ready,
              absl::InvalidArgumentError("the reply of a map does not fit this lane's slots"),
              /*retry_after_us=*/0, *counters_);
    return;
  }
  std::memcpy(slot.data() + sizeof(ReplyHeader), &body, sizeof(body));
  const ReplyHeader reply = {.kind = WireKind::kMap,
                             .request_id = ready.header.request_id,
                             .epoch = ready.header.epoch,
                             .body_bytes = sizeof(body),
                             .queue_ns = Saturate32((clock_->Now() - ready.arrived).count())};
  EncodeHeader(reply, slot);
  constexpr uint32_t kBytes = sizeof(ReplyHeader) + sizeof(body);
  const absl::Status posted = ready.lane->PostWithDescriptor(ready.slot, kBytes, fd);
  // Nothing was posted, and the request still wants its answer.
  if (absl::IsUnimplemented(posted) || absl::IsResourceExhausted(posted)) {
    PostError(ready, posted, /*retry_after_us=*/0, *counters_);
    return;
  }
  Bump(counters_->map_count);
  if (posted.ok()) Bump(counters_->bytes_out, kBytes);
}

}  // namespace ckv
