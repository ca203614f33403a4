// The five queues in which a holder's requests wait, and the limits within which they do.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "server/batch/batch.h"
#include "server/batch/ready_request.h"
#include "server/dispatch/admission.h"
#include "server/dispatch/fair_queue.h"
#include "server/dispatch/lane_set.h"
#include "server/session/serve_counters.h"

namespace ckv {

// The limit of multiply-adds that wait in kAttend: 0.45 ms of one core. An admitted request waits
// for the batch in progress and is in the next one.
inline constexpr uint64_t kQueueWorkMax = kPollingWorkMax / 16;
// The limit of multiply-adds that wait in kBulk and in kLong: half a second of one core each.
inline constexpr uint64_t kBulkQueueWorkMax = 64 * kPollingWorkMax;

// The retry hint for a request whose chunks do not fit next to those that others are reading. It is
// about the time to read a chunk of 64 MB.
inline constexpr uint32_t kColdRetryUs = 50'000;

// Belongs to the dispatcher's thread. dispatcher.h has a diagram of the queues. A request that may
// not wait gets its error reply here.
class RequestQueues {
 public:
  // `counters` must outlive this object.
  RequestQueues(uint32_t request_count_max, ServeCounters* counters);

  FairQueue& of(QueueKind kind) { return queues_[static_cast<size_t>(kind)].requests; }
  Admission& admission(QueueKind kind) { return queues_[static_cast<size_t>(kind)].admission; }
  uint32_t count(QueueKind kind) const {
    return queues_[static_cast<size_t>(kind)].requests.count();
  }
  // Requests in all queues.
  uint32_t total_count() const;

  // Sets the session's flow in each queue.
  void AddSession(SessionLanes& session);
  // Removes the session's flows, which must be empty.
  void RemoveSession(const SessionLanes& session);
  // Makes room for the requests of a new lane.
  void Grow(const SessionLanes& session, uint32_t slot_count);
  // Removes the requests of a lane, without a reply.
  void DropLane(const HolderLane& lane);

  // Puts the request into the queue of its kind and estimated work, or refuses it.
  void Enqueue(ReadyRequest& ready);
  // Puts the request into the queue `kind`, or refuses it.
  void AdmitTo(QueueKind kind, const ReadyRequest& ready);
  // Puts the request into kCold. Called again for a request if a chunk that it names became cold,
  // or was put again, while others were read for it. The rows read for it so far are freed, because
  // ColdReads starts no read while they are held.
  void AdmitCold(const ReadyRequest& ready);

 private:
  // Requests of one kind that wait, and the limits they wait within.
  struct Queue {
    FairQueue requests;
    Admission admission;
  };
  static Queue MakeQueue(QueueKind kind, uint32_t request_count_max, ServeCounters& counters);

  ServeCounters* const counters_;
  std::array<Queue, kQueueCount> queues_;  // by QueueKind
};

}  // namespace ckv
