#include "server/dispatch/dispatcher.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "transport/wire.h"

namespace ckv {
namespace {

// How often the listeners are polled while the thread is busy. A new lane waits that long at most,
// and the calls (2 us for tcp) stay below 2 % of the thread.
constexpr Duration kAcceptInterval = std::chrono::microseconds(200);

// A lane without an event (loopback) is polled at this interval when idle: 1 % of a core.
constexpr int kPollOnlySleepMs = 1;

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
  dispatcher->thread_ = std::thread([d = dispatcher.get()] { d->Run(); });
  return dispatcher;
}

Dispatcher::Dispatcher(const DispatcherOptions& options, Tools tools, ChunkStore* store,
                       SessionTable* sessions, const LeaseGate* lease,
                       std::vector<Listener*> listeners, std::unique_ptr<LaneSet> lanes)
    : options_(options),
      lease_(lease),
      sessions_(sessions),
      listeners_(std::move(listeners)),
      stripes_(options.stripe_bytes_max),
      lanes_(std::move(lanes)),
      queues_(MakeQueues()),
      batch_({.request_count_max = options.batch_request_count_max,
              .shadows = &store->shadows(),
              .stripes = &stripes_,
              .chunk_memory = options.chunk_memory,
              .spans = options.spans},
             std::move(tools.here), options.clock, &store->table(), lease, &counters_),
      push_server_(options.clock, &store->table(), lease, &counters_),
      side_work_({.map_bytes_max = options.map_bytes_max,
                  .shadows = &store->shadows(),
                  .stripes = &stripes_,
                  .chunk_memory = options.chunk_memory,
                  .spans = options.spans},
                 std::move(tools.side), options.clock, &store->table(), lease, &counters_,
                 [this] { RingBell(); }),
      cold_reads_(store, &stripes_, options.cold_room, [this] { RingBell(); }),
      wait_(options.spin_max) {}

std::array<Dispatcher::Queue, kQueueCount> Dispatcher::MakeQueues() {
  const auto make = [&](QueueKind kind) {
    const bool bulk = kind == QueueKind::kBulk || kind == QueueKind::kLong;
    const uint64_t work_max = kind == QueueKind::kAttend ? kQueueWorkMax
                              : bulk                     ? kBulkQueueWorkMax
                                                         : kNoWorkLimit;
    return Queue{.requests = FairQueue(&counters_.queues[static_cast<size_t>(kind)]),
                 .admission = {options_.queue_request_count_max, work_max}};
  };
  return {make(QueueKind::kAttend), make(QueueKind::kBulk), make(QueueKind::kLong),
          make(QueueKind::kPush), make(QueueKind::kCold)};
}

absl::Status Dispatcher::OpenEvents() {
  role_.Claim();
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  bool watched = wake_fd_ >= 0 && lanes_->Watch(wake_fd_);
  for (const Listener* listener : listeners_) {
    watched = watched && (listener->event_fd() < 0 || lanes_->Watch(listener->event_fd()));
  }
  if (watched) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("dispatcher: no event descriptors: %s", std::strerror(errno)));
}

Dispatcher::~Dispatcher() {
  stop_.store(true, std::memory_order_release);
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
  if (wake_fd_ >= 0) close(wake_fd_);
}

// Sets the flag first, then the event: a dispatcher that consumed the event sees the flag. The flag
// may be taken before the event arrives; Sleep reads the event all the same.
void Dispatcher::Wake() {
  control_.store(true, std::memory_order_release);
  RingBell();
}

void Dispatcher::RingBell() {
  const uint64_t one = 1;
  // Fails only when 2^64 wake-ups are pending, and then the dispatcher is awake.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void Dispatcher::Drain(Instant deadline) {
  draining_.store(true, std::memory_order_release);
  Wake();
  absl::MutexLock lock(&drain_mu_);
  options_.clock->Await(drain_mu_, absl::Condition(&drained_), deadline);
}

void Dispatcher::Run() {
  role_.Claim();
  pthread_setname_np(pthread_self(), "dispatcher");  // for ps -L, top -H and tests
  next_accept_ = options_.clock->Now();
  wait_.Begin(next_accept_);
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
  for (const std::unique_ptr<SessionLanes>& session : lanes_->sessions()) {
    for (const std::unique_ptr<HolderLane>& lane : session->lanes) {
      if (!lane->broken) lanes_->Break(*lane);
      DropLane(*lane);
    }
  }
  lanes_->sessions().clear();
}

bool Dispatcher::RunOnce() {
  const Instant now = options_.clock->Now();
  polled_ = now;
  if (control_.load(std::memory_order_acquire)) HandleControl(now);
  if (now >= next_accept_) AcceptLanes(now);
  if (now >= next_reap_) next_reap_ = sessions_->Reap(now);
  // Read before the lanes are polled. A request found after a drain began may have arrived before
  // it, so one whole poll after that still counts as earlier.
  const bool drain_begun = draining();
  const bool arrived = lanes_->Poll(
      now,
      [this](HolderLane& lane, const Arrival& arrival) {
        role_.AssertHeld();
        Arrive(lane, arrival);
      },
      [this](HolderLane& lane, const absl::Status& why) {
        role_.AssertHeld();
        Break(lane, why);
      });
  drain_seen_ = drain_begun;
  // Requests that wait for another thread are not work for this one: the end of a job rings the
  // bell.
  const bool worked =
      arrived ||
      waiting_count() != queue(QueueKind::kLong).count() + queue(QueueKind::kCold).count() ||
      side_work_.finished() || cold_reads_.finished();
  if (cold_reads_.finished()) FinishColdRead();
  RunSideWork();
  if (queue(QueueKind::kAttend).count() + queue(QueueKind::kBulk).count() != 0) AnswerAttends();
  if (queue(QueueKind::kPush).count() != 0) AnswerPush();
  if (push_server_.sending()) push_server_.Reap();
  StartColdReads();
  if (any_broken_) DropBrokenLanes(now);
  if (drain_seen_ && !drain_told_ && waiting_count() == 0 && side_work_.idle() &&
      !cold_reads_.reading() && !push_server_.sending()) {
    NoteDrained();
  }
  return worked;
}

uint32_t Dispatcher::waiting_count() const {
  uint32_t count = 0;
  for (const Queue& waiting : queues_) count += waiting.requests.count();
  return count;
}

void Dispatcher::HandleControl(Instant now) {
  control_.store(false, std::memory_order_release);
  for (const std::unique_ptr<SessionLanes>& session : lanes_->sessions()) {
    if (!session->session->closed()) continue;
    for (const std::unique_ptr<HolderLane>& lane : session->lanes) {
      Break(*lane, absl::CancelledError("session closed"));
    }
  }
  if (any_broken_) DropBrokenLanes(now);
  next_reap_ = sessions_->Reap(now);
}

void Dispatcher::AcceptLanes(Instant now) {
  next_accept_ = now + kAcceptInterval;
  for (Listener* listener : listeners_) {
    while (std::optional<AcceptedLane> accepted = listener->Accept()) {
      AddLane(*std::move(accepted), now);
    }
  }
}

void Dispatcher::AddLane(AcceptedLane accepted, Instant now) {
  Session* session = sessions_->Adopt(accepted.tag);
  if (session == nullptr) return;  // closed meanwhile; `accepted` destroys the lane
  SessionLanes& owner = LanesOf(session);
  const uint32_t slot_count = accepted.lane->shape().slot_count;
  if (!Reaches(*accepted.lane, *session)) {
    sessions_->LaneGone(*session);
    any_broken_ = true;  // as below
    return;
  }
  if (!lanes_->Add(owner, std::move(accepted.lane), now)) {
    Log().error("lane of {} dropped: epoll: {}", session->requester, std::strerror(errno));
    sessions_->LaneGone(*session);
    any_broken_ = true;  // the session may have no other lane
    return;
  }
  for (size_t i = 0; i < kQueueCount; ++i) queues_[i].requests.Grow(*owner.flows[i], slot_count);
  lanes_of_kind(owner.lanes.back()->lane->kind()).fetch_add(1, std::memory_order_relaxed);
}

bool Dispatcher::Reaches(const ServeLane& lane, const Session& session) const {
  if (options_.chunk_memory == MemoryKind::kHost || lane.slot_type() == RegionType::kPinned)
    return true;
  Log().error("{} lane of {} dropped: its slots are in {} memory, which kernels of {} do not reach",
              FabricName(lane.kind()), session.requester, RegionTypeName(lane.slot_type()),
              options_.backend->kernel_target());
  return false;
}

SessionLanes& Dispatcher::LanesOf(Session* session) {
  if (SessionLanes* known = lanes_->Find(session); known != nullptr) return *known;
  auto added = std::make_unique<SessionLanes>();
  added->session = session;
  for (size_t i = 0; i < kQueueCount; ++i) added->flows[i] = queues_[i].requests.AddSession();
  lanes_->sessions().push_back(std::move(added));
  return *lanes_->sessions().back();
}

void Dispatcher::Arrive(HolderLane& lane, const Arrival& arrival) {
  const LaneShape& shape = lane.lane->shape();
  if (arrival.slot >= shape.slot_count || arrival.bytes > shape.request_bytes_max) {
    Break(lane, absl::InvalidArgumentError(
                    absl::StrFormat("slot %d with %d bytes arrived", arrival.slot, arrival.bytes)));
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
    Break(lane, header.status());
    return;
  }
  ready.header = *header;
  if (header->version != ready.session->wire_version) {
    BreakFor(ready, absl::InvalidArgumentError(
                        absl::StrFormat("a frame of version %d in a session of version %d",
                                        header->version, ready.session->wire_version)));
    return;
  }
  Bump(counters_.request_count);
  Bump(counters_.bytes_in, arrival.bytes);
  Enqueue(ready);
}

void Dispatcher::Enqueue(ReadyRequest& ready) {
  switch (ready.header.kind) {
    case WireKind::kFetch:
    case WireKind::kMap:
      AdmitTo(QueueKind::kPush, ready);
      return;
    case WireKind::kProbe:
    case WireKind::kAttend:
      break;
  }
  // The estimate is right if the request is like the session's last one.
  ready.work = ready.from->owner->work_per_row * ready.header.row_count;
  if (ready.work > kPollingWorkMax) {
    AdmitTo(QueueKind::kLong, ready);
  } else if ((ready.header.flags & kFlagBulk) != 0) {
    AdmitTo(QueueKind::kBulk, ready);
  } else {
    AdmitTo(QueueKind::kAttend, ready);
  }
}

void Dispatcher::AdmitTo(QueueKind kind, const ReadyRequest& ready) {
  auto& [waiting, admission] = queues_[static_cast<size_t>(kind)];
  FairQueue::Flow& flow = *ready.from->owner->flows[static_cast<size_t>(kind)];
  Refusal why = Refusal::kQueueFull;
  const absl::Status full = admission.Check(waiting, flow, ready, &why);
  if (full.ok()) {
    waiting.Push(flow, ready);
    return;
  }
  BumpRefusal(counters_, why);
  PostError(ready, full, admission.RetryAfterUs(waiting), counters_);
}

void Dispatcher::AnswerAttends() {
  // While parts of large calls wait, half of a batch is theirs.
  const bool halved = queue(QueueKind::kBulk).count() != 0;
  FillBatch(QueueKind::kAttend, halved ? options_.batch_request_count_max / 2 : kNoCountLimit,
            halved ? kPollingWorkMax / 2 : kPollingWorkMax);
  FillBatch(QueueKind::kBulk, kNoCountLimit, kPollingWorkMax);
  if (batch_.size() == 0) return;
  batch_.Compute();
  admission(QueueKind::kAttend).Observe(batch_.work(), batch_.elapsed());
  admission(QueueKind::kBulk).Observe(batch_.work(), batch_.elapsed());
  batch_.Reply(queue(QueueKind::kAttend).count() + queue(QueueKind::kBulk).count());
}

void Dispatcher::FillBatch(QueueKind kind, uint32_t request_count_max, uint64_t work_max) {
  FairQueue& waiting = queue(kind);
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
        BreakFor(ready, batch_.malformed());
        break;
      case Batch::Verdict::kLong:
        lane.owner->work_per_row = kPollingWorkMax / ready.header.row_count + 1;
        AdmitTo(QueueKind::kLong, ready);
        break;
      case Batch::Verdict::kCold:
        AdmitCold(ready);
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
  FairQueue::Flow* flow = queue(QueueKind::kPush).Next();
  const ReadyRequest ready = flow->front();
  queue(QueueKind::kPush).Pop(*flow, kFetchBodyBytesMax);
  if (ready.header.kind == WireKind::kFetch) {
    const absl::StatusOr<bool> answered = push_server_.Answer(ready);
    if (!answered.ok()) {
      BreakFor(ready, answered.status());
    } else if (!*answered) {
      AdmitCold(ready);
    }
    return;
  }
  const absl::StatusOr<SideWork::Outcome> outcome = side_work_.TryMap(ready);
  if (!outcome.ok()) {
    BreakFor(ready, outcome.status());
  } else if (*outcome == SideWork::Outcome::kNotMade) {
    AdmitTo(QueueKind::kLong, ready);
  } else if (*outcome == SideWork::Outcome::kCold) {
    AdmitCold(ready);
  }
}

void Dispatcher::RunSideWork() {
  auto& [longs, long_admission] = queues_[static_cast<size_t>(QueueKind::kLong)];
  if (side_work_.finished()) {
    side_work_.Finish(longs.count());
    long_admission.Observe(side_work_.last_work(), side_work_.last_elapsed());
  }
  while (longs.count() != 0 && side_work_.idle()) {
    FairQueue::Flow* flow = longs.Next();
    const ReadyRequest ready = flow->front();
    HolderLane& lane = *ready.from;
    const absl::StatusOr<SideWork::Outcome> outcome = side_work_.Start(ready, lane);
    longs.Pop(*flow, side_work_.last_cost());
    if (!outcome.ok()) {
      BreakFor(ready, outcome.status());
    } else if (*outcome == SideWork::Outcome::kCold) {
      AdmitCold(ready);
    } else if (side_work_.last_work() != 0) {
      lane.owner->work_per_row = side_work_.last_work() / ready.header.row_count;
    }
  }
}

// The lane object stays while anything may be using it.
void Dispatcher::Break(HolderLane& lane, const absl::Status& why) {
  if (lane.broken) return;
  lanes_->Break(lane);
  any_broken_ = true;
  side_work_.Cancel(lane);
  for (size_t i = 0; i < kQueueCount; ++i) {
    queues_[i].requests.DropLane(*lane.owner->flows[i], lane.lane.get());
  }
  const bool peer_is_wrong = absl::IsInvalidArgument(why) || absl::IsFailedPrecondition(why);
  Log().log(peer_is_wrong ? spdlog::level::warn : spdlog::level::debug, "{} lane of {} closed: {}",
            FabricName(lane.lane->kind()), lane.owner->session->requester,
            std::string(why.message()));
}

void Dispatcher::BreakFor(const ReadyRequest& ready, const absl::Status& why) {
  const ScopedTrace scope(TraceOf(ready.header));
  Break(*ready.from, why);
}

void Dispatcher::DropBrokenLanes(Instant now) {
  any_broken_ = false;
  for (const std::unique_ptr<SessionLanes>& session : lanes_->sessions()) {
    std::erase_if(session->lanes, [&](const std::unique_ptr<HolderLane>& lane) {
      role_.AssertHeld();
      if (!lane->broken) return false;
      if (lane->busy != 0) {
        any_broken_ = true;
        return false;
      }
      DropLane(*lane);
      return true;
    });
  }
  std::erase_if(lanes_->sessions(), [&](const std::unique_ptr<SessionLanes>& session) {
    role_.AssertHeld();
    if (!session->lanes.empty()) return false;
    for (size_t i = 0; i < kQueueCount; ++i) queues_[i].requests.RemoveSession(session->flows[i]);
    return true;
  });
  next_reap_ = sessions_->Reap(now);
}

void Dispatcher::DropLane(HolderLane& lane) {
  const ServeLane* const gone = lane.lane.get();
  lanes_of_kind(gone->kind()).fetch_sub(1, std::memory_order_relaxed);
  lanes_->Destroy(lane);
  push_server_.Forget(gone);
  sessions_->LaneGone(*lane.owner->session);
}

void Dispatcher::NoteDrained() {
  drain_told_ = true;
  absl::MutexLock lock(&drain_mu_);
  drained_ = true;
}

int Dispatcher::SleepMilliseconds(Instant now) const {
  if (lanes_->must_poll()) return kPollOnlySleepMs;
  for (const Listener* listener : listeners_) {
    if (listener->event_fd() < 0) return kPollOnlySleepMs;
  }
  const Duration until_reap = next_reap_ - now;
  const Duration sleep = std::clamp(until_reap, Duration(0), kSleepMax);
  return static_cast<int>(sleep.count() / 1'000'000 + 1);
}

void Dispatcher::Sleep(Instant now) {
  // Read after arming: a Wake since then, or the end of a side job, is in the event descriptor.
  if (lanes_->Arm() && !control_.load(std::memory_order_acquire) && !side_work_.finished() &&
      !cold_reads_.finished()) {
    Bump(counters_.sleep_count);
    lanes_->Wait(SleepMilliseconds(now));
    // Read regardless of the flag: an awake dispatcher may have taken the flag before its event
    // arrived, and an event left behind would end every later wait at once. Nothing is lost,
    // because the flag of an event that is read here has been set.
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake_fd_, &count, sizeof(count));
  }
  next_accept_ = now;  // a listener may have woken us
}

}  // namespace ckv
