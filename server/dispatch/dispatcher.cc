// The dispatcher's thread repeats RunOnce. Without work it spins, then sleeps. RunOnce, in order:
//   1  breaks the lanes of closed sessions, if woken for that; accepts lanes
//   2  polls the lanes. Arrive checks each frame and adds it to a queue
//   3  finishes a cold read, whose request is queued again; finishes and starts side work
//   4  answers attends as one batch, then one fetch or map; unpins rows that were sent
//   5  starts cold reads, destroys broken lanes, and notes the end of a drain
// Requests move between queues: a long one to kLong, one with rows on disk to kCold.

#include "server/dispatch/dispatcher.h"

#include <pthread.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "transport/wire.h"

namespace ckv {
namespace {

constexpr uint32_t kNoCountLimit = ~0u;

}  // namespace

absl::StatusOr<std::unique_ptr<Dispatcher>> Dispatcher::Start(const DispatcherOptions& options,
                                                              ChunkStore* store,
                                                              SessionTable* sessions,
                                                              const LeaseGate* lease,
                                                              std::vector<Listener*> listeners) {
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<LaneSet> lanes, LaneSet::Create());
  Tools tools;
  for (BatchTools* one : {&tools.here, &tools.side}) {
    CKV_ASSIGN_OR_RETURN(*one, BatchTools::Make(*options.backend, options.compute_threads));
  }
  std::unique_ptr<Dispatcher> dispatcher(new Dispatcher(
      options, std::move(tools), store, sessions, lease, std::move(listeners), std::move(lanes)));
  CKV_RETURN_IF_ERROR(dispatcher->OpenEvents());
  dispatcher->thread_ = Thread([d = dispatcher.get()] { d->Run(); });
  return dispatcher;
}

Dispatcher::Dispatcher(const DispatcherOptions& options, Tools tools, ChunkStore* store,
                       SessionTable* sessions, const LeaseGate* lease,
                       std::vector<Listener*> listeners, std::unique_ptr<LaneSet> lanes)
    : options_(options),
      lease_(lease),
      stripes_(options.stripe_bytes_max),
      candidates_(options.candidate_bytes_max),
      lanes_(std::move(lanes)),
      queues_(options.queue_request_count_max, &counters_),
      batch_({.request_count_max = options.batch_request_count_max,
              .shadows = &store->shadows(),
              .stripes = &stripes_,
              .chunk_memory = options.chunk_memory,
              .candidates = &candidates_,
              .spans = options.spans},
             std::move(tools.here), options.clock, &store->table(), lease, &counters_),
      push_server_(options.clock, &store->table(), lease, &counters_),
      side_work_({.map_bytes_max = options.map_bytes_max,
                  .shadows = &store->shadows(),
                  .stripes = &stripes_,
                  .chunk_memory = options.chunk_memory,
                  .compute_threads = options.compute_threads,
                  .candidates = &candidates_,
                  .spans = options.spans},
                 std::move(tools.side), options.clock, &store->table(), lease, &counters_,
                 [this] { bell_.Ring(); }),
      keeper_({.lanes = lanes_.get(),
               .sessions = sessions,
               .listeners = std::move(listeners),
               .counters = &counters_,
               .queues = &queues_,
               .push_server = &push_server_,
               .side_work = &side_work_,
               .chunk_memory = options.chunk_memory,
               .backend = options.backend}),
      cold_reads_(store, &stripes_, options.cold_buffer, &candidates_, [this] { bell_.Ring(); }),
      wait_(options.spin_max) {}

absl::Status Dispatcher::OpenEvents() {
  role_.Claim();
  if (bell_.Open() && lanes_->Watch(bell_.fd()) && keeper_.WatchListeners()) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrFormat("dispatcher: no event descriptors: %s", std::strerror(errno)));
}

Dispatcher::~Dispatcher() {
  stop_.store(true, std::memory_order_release);
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
}

// Sets the flag first, then the event: a dispatcher that consumed the event sees the flag. The flag
// may be taken before the event arrives; Sleep reads the event all the same.
void Dispatcher::Wake() {
  control_.store(true, std::memory_order_release);
  bell_.Ring();
}

void Dispatcher::Drain(Instant deadline) {
  drain_.Begin();
  Wake();
  drain_.Await(*options_.clock, deadline);
}

void Dispatcher::Run() {
  role_.Claim();
  pthread_setname_np(pthread_self(), "dispatcher");  // for ps -L, top -H and tests
  const Instant begin = options_.clock->Now();
  keeper_.AcceptFrom(begin);
  wait_.Begin(begin);
  while (!stop_.load(std::memory_order_acquire)) {
    Bump(counters_.turn_count);
    const bool worked = RunOnce();
    const Instant now = options_.clock->Now();
    if (worked) {
      wait_.Came(polled_);
      wait_.Begin(now);
    } else if (!wait_.Rest(*options_.clock, now)) {
      Sleep(now);
    }
  }
  side_work_.End();
  cold_reads_.End();
  keeper_.DropAll();
}

bool Dispatcher::RunOnce() {
  const Instant now = options_.clock->Now();
  polled_ = now;
  if (control_.load(std::memory_order_acquire)) {
    control_.store(false, std::memory_order_release);
    keeper_.BreakClosed(now);
  }
  keeper_.Visit(now);
  // Read before the lanes are polled. A request found after a drain began may have arrived before
  // it, so one whole poll after that still counts as earlier.
  const bool drain_begun = draining();
  const bool arrived = PollLanes(now);
  drain_seen_ = drain_begun;
  // Requests that wait for another thread are not work for this one: the end of a job rings the
  // bell.
  const bool worked =
      arrived ||
      queues_.total_count() != queues_.count(QueueKind::kLong) + queues_.count(QueueKind::kCold) ||
      side_work_.finished() || cold_reads_.finished();
  if (cold_reads_.finished()) FinishColdRead();
  RunSideWork();
  if (queues_.count(QueueKind::kAttend) + queues_.count(QueueKind::kBulk) != 0) AnswerAttends();
  if (queues_.count(QueueKind::kPush) != 0) AnswerPush();
  if (push_server_.sending()) push_server_.Reap();
  StartColdReads();
  keeper_.DropBroken(now);
  if (IsDrained()) {
    drain_reported_ = true;
    drain_.End();
  }
  return worked;
}

bool Dispatcher::IsDrained() const {
  return drain_seen_ && !drain_reported_ && queues_.total_count() == 0 && side_work_.idle() &&
         !cold_reads_.reading() && !push_server_.sending();
}

bool Dispatcher::PollLanes(Instant now) {
  return lanes_->Poll(
      now,
      [this](HolderLane& lane, const Arrival& arrival) {
        role_.AssertHeld();
        Arrive(lane, arrival);
      },
      [this](HolderLane& lane, const absl::Status& why) {
        role_.AssertHeld();
        keeper_.Break(lane, why);
      });
}

void Dispatcher::Arrive(HolderLane& lane, const Arrival& arrival) {
  const LaneShape& shape = lane.lane->shape();
  if (arrival.slot >= shape.slot_count || arrival.bytes > shape.request_bytes_max) {
    keeper_.Break(lane, absl::InvalidArgumentError(absl::StrFormat("slot %d with %d bytes arrived",
                                                                   arrival.slot, arrival.bytes)));
    return;
  }
  ReadyRequest ready = {.lane = lane.lane.get(),
                        .from = &lane,
                        .session = lane.owner->session,
                        .slot = arrival.slot,
                        .bytes = arrival.bytes,
                        .header = {},
                        .arrived = polled_,
                        .refused = drain_seen_,
                        .cold_rows = nullptr};
  const absl::StatusOr<RequestHeader> header = DecodeRequestHeader(ready.frame());
  if (!header.ok()) {
    keeper_.Break(lane, header.status());
    return;
  }
  ready.header = *header;
  Bump(counters_.request_count);
  Bump(counters_.bytes_in, arrival.bytes);
  queues_.Enqueue(ready);
}

void Dispatcher::AnswerAttends() {
  // While parts of large calls wait, half of a batch is theirs.
  const bool halved = queues_.count(QueueKind::kBulk) != 0;
  FillBatch(QueueKind::kAttend, halved ? options_.batch_request_count_max / 2 : kNoCountLimit,
            halved ? kPollingWorkMax / 2 : kPollingWorkMax);
  FillBatch(QueueKind::kBulk, kNoCountLimit, kPollingWorkMax);
  if (batch_.size() == 0) return;
  batch_.Compute();
  queues_.admission(QueueKind::kAttend).Observe(batch_.work(), batch_.elapsed());
  queues_.admission(QueueKind::kBulk).Observe(batch_.work(), batch_.elapsed());
  counters_.load.NoteBatch(batch_.size(),
                           static_cast<uint64_t>(batch_.elapsed() / std::chrono::microseconds(1)));
  batch_.Reply(queues_.count(QueueKind::kAttend) + queues_.count(QueueKind::kBulk));
}

void Dispatcher::FillBatch(QueueKind kind, uint32_t request_count_max, uint64_t work_max) {
  FairQueue& waiting = queues_.of(kind);
  while (FairQueue::Flow* flow = waiting.Next()) {
    const bool enough = batch_.size() >= request_count_max || batch_.work() >= work_max;
    if (batch_.size() != 0 && enough) return;
    const ReadyRequest ready = flow->front();
    const Batch::Verdict verdict = batch_.Add(ready);
    if (verdict == Batch::Verdict::kFull) return;
    waiting.Pop(*flow, batch_.last_work());
    HolderLane& lane = *ready.from;
    switch (verdict) {
      case Batch::Verdict::kMalformed:
        keeper_.BreakFor(ready, batch_.malformed());
        break;
      case Batch::Verdict::kLong:
        lane.owner->work_per_row = kPollingWorkMax / ready.header.row_count + 1;
        queues_.AdmitTo(QueueKind::kLong, ready);
        break;
      case Batch::Verdict::kCold:
        queues_.AdmitCold(ready);
        break;
      case Batch::Verdict::kTaken:
        if (batch_.last_work() != 0) {
          lane.owner->work_per_row = batch_.last_work() / ready.header.row_count;
        }
        break;
      case Batch::Verdict::kFull:
        break;
    }
  }
}

void Dispatcher::AnswerPush() {
  FairQueue::Flow* flow = queues_.of(QueueKind::kPush).Next();
  const ReadyRequest ready = flow->front();
  queues_.of(QueueKind::kPush).Pop(*flow, kFetchBodyBytesMax);
  if (ready.header.kind == WireKind::kFetch) {
    const absl::StatusOr<bool> answered = push_server_.Answer(ready);
    if (!answered.ok()) {
      keeper_.BreakFor(ready, answered.status());
    } else if (!*answered) {
      queues_.AdmitCold(ready);
    }
    return;
  }
  if (ready.header.kind == WireKind::kCandidates) {
    if (absl::Status bad = side_work_.AnswerCandidates(ready); !bad.ok())
      keeper_.BreakFor(ready, bad);
    return;
  }
  const absl::StatusOr<SideWork::Outcome> outcome = side_work_.TryMap(ready);
  if (!outcome.ok()) {
    keeper_.BreakFor(ready, outcome.status());
  } else if (*outcome == SideWork::Outcome::kNotMade) {
    queues_.AdmitTo(QueueKind::kLong, ready);
  } else if (*outcome == SideWork::Outcome::kCold) {
    queues_.AdmitCold(ready);
  }
}

void Dispatcher::RunSideWork() {
  FairQueue& longs = queues_.of(QueueKind::kLong);
  if (side_work_.finished()) {
    side_work_.Finish(longs.count());
    queues_.admission(QueueKind::kLong).Observe(side_work_.last_work(), side_work_.last_elapsed());
  }
  while (longs.count() != 0 && side_work_.idle()) {
    FairQueue::Flow* flow = longs.Next();
    const ReadyRequest ready = flow->front();
    HolderLane& lane = *ready.from;
    const absl::StatusOr<SideWork::Outcome> outcome = side_work_.Start(ready, lane);
    longs.Pop(*flow, side_work_.last_cost());
    if (!outcome.ok()) {
      keeper_.BreakFor(ready, outcome.status());
    } else if (*outcome == SideWork::Outcome::kCold) {
      queues_.AdmitCold(ready);
    } else if (side_work_.last_work() != 0) {
      lane.owner->work_per_row = side_work_.last_work() / ready.header.row_count;
    }
  }
}

// The rows stay with the request, which waits in its queue again.
void Dispatcher::FinishColdRead() {
  ColdReads::Done done = cold_reads_.Finish();
  counters_.cold_read.AddAlone(options_.clock->Now() - cold_started_);
  Bump(counters_.stripe_hit_count, done.stripe_hit_count);
  Bump(counters_.stripe_read_count, done.stripe_read_count);
  counters_.stripe_bytes.store(stripes_.bytes(), std::memory_order_relaxed);
  if (done.lane->broken) return;
  if (done.status.ok()) {
    queues_.Enqueue(done.ready);
  } else {
    const bool full = absl::IsResourceExhausted(done.status);
    PostError(done.ready, done.status, full ? kColdRetryUs : 0, counters_);
  }
}

void Dispatcher::StartColdReads() {
  FairQueue& colds = queues_.of(QueueKind::kCold);
  while (colds.count() != 0 && cold_reads_.idle()) {
    FairQueue::Flow* flow = colds.Next();
    const ReadyRequest ready = flow->front();
    HolderLane& lane = *ready.from;
    colds.Pop(*flow, kFetchBodyBytesMax);
    // Nothing is read for a request that can no longer be answered.
    cold_started_ = options_.clock->Now();
    if (absl::Status bad = CheckTurn(ready, *lease_, cold_started_, counters_); !bad.ok()) {
      PostError(ready, bad, /*retry_after_us=*/0, counters_);
      continue;
    }
    Bump(counters_.cold_count);
    if (absl::Status bad = cold_reads_.Start(ready, lane); !bad.ok()) keeper_.Break(lane, bad);
  }
}

void Dispatcher::Sleep(Instant now) {
  // Read after arming: a Wake since then, or the end of a side job, is in the event descriptor.
  if (lanes_->Arm() && !control_.load(std::memory_order_acquire) && !side_work_.finished() &&
      !cold_reads_.finished()) {
    Bump(counters_.sleep_count);
    lanes_->Wait(keeper_.SleepMilliseconds(now, kSleepMax));
    // Read regardless of the flag: an awake dispatcher may have taken the flag before its event
    // arrived, and an event left behind would end every later wait at once. Nothing is lost,
    // because the flag of an event that is read here has been set.
    bell_.Clear();
  }
  keeper_.AcceptFrom(now);  // a listener may have woken us
}

}  // namespace ckv
