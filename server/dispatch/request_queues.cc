#include "server/dispatch/request_queues.h"

#include "absl/status/status.h"

namespace ckv {
namespace {

// How often chunks are read for one request.
constexpr uint32_t kColdCountMax = 3;

}  // namespace

RequestQueues::RequestQueues(uint32_t request_count_max, ServeCounters* counters)
    : counters_(counters),
      queues_{MakeQueue(QueueKind::kAttend, request_count_max, *counters),
              MakeQueue(QueueKind::kBulk, request_count_max, *counters),
              MakeQueue(QueueKind::kLong, request_count_max, *counters),
              MakeQueue(QueueKind::kPush, request_count_max, *counters),
              MakeQueue(QueueKind::kCold, request_count_max, *counters)} {}

RequestQueues::Queue RequestQueues::MakeQueue(QueueKind kind, uint32_t request_count_max,
                                              ServeCounters& counters) {
  const bool bulk = kind == QueueKind::kBulk || kind == QueueKind::kLong;
  const uint64_t work_max = kind == QueueKind::kAttend ? kQueueWorkMax
                            : bulk                     ? kBulkQueueWorkMax
                                                       : kNoWorkLimit;
  return {.requests = FairQueue(&counters.queues[static_cast<size_t>(kind)]),
          .admission = {request_count_max, work_max}};
}

uint32_t RequestQueues::total_count() const {
  uint32_t count = 0;
  for (const Queue& queue : queues_) count += queue.requests.count();
  return count;
}

void RequestQueues::AddSession(SessionLanes& session) {
  for (size_t i = 0; i < kQueueCount; ++i) session.flows[i] = queues_[i].requests.AddSession();
}

void RequestQueues::RemoveSession(const SessionLanes& session) {
  for (size_t i = 0; i < kQueueCount; ++i) queues_[i].requests.RemoveSession(session.flows[i]);
}

void RequestQueues::Grow(const SessionLanes& session, uint32_t slot_count) {
  for (size_t i = 0; i < kQueueCount; ++i) queues_[i].requests.Grow(*session.flows[i], slot_count);
}

void RequestQueues::DropLane(const HolderLane& lane) {
  for (size_t i = 0; i < kQueueCount; ++i) {
    queues_[i].requests.DropLane(*lane.owner->flows[i], lane.lane.get());
  }
}

void RequestQueues::Enqueue(ReadyRequest& ready) {
  switch (ready.header.kind) {
    case WireKind::kFetch:
    case WireKind::kMap:
    case WireKind::kCandidates:
      AdmitTo(QueueKind::kPush, ready);
      return;
    case WireKind::kScore:
      AdmitTo(QueueKind::kLong, ready);
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

void RequestQueues::AdmitTo(QueueKind kind, const ReadyRequest& ready) {
  auto& [waiting, admission] = queues_[static_cast<size_t>(kind)];
  FairQueue::Flow& flow = *ready.from->owner->flows[static_cast<size_t>(kind)];
  Refusal why = Refusal::kQueueFull;
  const absl::Status full = admission.Check(waiting, flow, ready, &why);
  if (full.ok()) {
    waiting.Push(flow, ready);
    return;
  }
  BumpRefusal(*counters_, why);
  PostError(ready, full, admission.RetryAfterUs(waiting), *counters_);
}

void RequestQueues::AdmitCold(const ReadyRequest& ready) {
  ReadyRequest again = ready;
  again.cold_rows.reset();
  if (again.cold_count++ < kColdCountMax) {
    AdmitTo(QueueKind::kCold, again);
    return;
  }
  PostError(again,
            absl::UnavailableError("the request's chunks go to disk as fast as they are read"),
            kColdRetryUs, *counters_);
}

}  // namespace ckv
