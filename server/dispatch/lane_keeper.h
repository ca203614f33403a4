// Accepts the lanes of a dispatcher, breaks them, and destroys them once nothing uses them.

#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "server/batch/ready_request.h"
#include "server/dispatch/lane_set.h"
#include "server/dispatch/push_server.h"
#include "server/dispatch/request_queues.h"
#include "server/dispatch/side_work.h"
#include "server/session/serve_counters.h"
#include "server/session/session.h"
#include "transport/fabric.h"

namespace ckv {

// The parts that a LaneKeeper uses. All must outlive it.
struct LaneKeeperParts {
  LaneSet* lanes;
  SessionTable* sessions;
  std::vector<Listener*> listeners;
  ServeCounters* counters;
  // These may be using a lane that breaks.
  RequestQueues* queues;
  PushServer* push_server;
  SideWork* side_work;
  MemoryKind chunk_memory;  // the kind of memory that kernels reach
  Backend* backend;         // whose kernels these are
};

// Belongs to the dispatcher's thread.
class LaneKeeper {
 public:
  explicit LaneKeeper(LaneKeeperParts parts);

  // Makes the sleep of the lanes end when a listener has a lane. Returns false if the system
  // refuses; errno has the reason.
  bool WatchListeners();

  // Accepts lanes and closes sessions, each when it is due.
  void Visit(Instant now) {
    if (now >= next_accept_) Accept(now);
    if (now >= next_reap_) next_reap_ = parts_.sessions->Reap(now);
  }
  // Makes the next Visit accept lanes if it is not earlier than `time`.
  void AcceptFrom(Instant time) { next_accept_ = time; }
  // Breaks the lanes of closed sessions. Call it after a session was opened or closed.
  void BreakClosed(Instant now);

  // Breaks the lane: from now on it is neither polled nor replied to, and its requests are dropped.
  // The lane object stays while anything may be using it.
  void Break(HolderLane& lane, const absl::Status& why);
  // The same for a request that breaks its lane. The log names its trace.
  void BreakFor(const ReadyRequest& ready, const absl::Status& why);
  // Destroys broken lanes that are not in use.
  void DropBroken(Instant now) {
    if (any_broken_) DropSomeBroken(now);
  }
  // Destroys every lane. Call it last, when nothing uses one.
  void DropAll();

  // How long the thread may sleep; at most `sleep_max`.
  int SleepMilliseconds(Instant now, Duration sleep_max) const;

 private:
  void Accept(Instant now);
  void Add(AcceptedLane accepted, Instant now);
  // Returns true if the backend can access the slots of the lane. If not, logs that: the lane is of
  // a fabric outside the tree, which ignores ListenOptions::slot_pinner.
  bool Reaches(const ServeLane& lane, const Session& session) const;
  SessionLanes& LanesOf(Session* session);
  void DropSomeBroken(Instant now);
  void Drop(HolderLane& lane);
  std::atomic<uint32_t>& count_of(FabricKind kind) {
    return parts_.counters->lanes[static_cast<size_t>(kind)];
  }

  const LaneKeeperParts parts_;
  bool any_broken_ = false;
  Instant next_accept_{};
  Instant next_reap_ = kInstantMax;
};

}  // namespace ckv
