// Opens a session with one lane on one of several fabrics. Makes one attempt, and reports how far a
// failed one got. client/holders/fabric_choice.h decides which fabrics to try, and whether to try
// again.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "attention/backend.h"
#include "client/holder_view.h"
#include "client/holders/counters.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "transport/control.h"
#include "transport/fabric.h"
#include "transport/memory_region.h"

namespace ckv {

class LiveHere;       // client/cost/live_here.h
struct LiveCalls;     // client/cost/live_calls.h
class NetworkOracle;  // client/cost/network_oracle.h
class SessionOpener;  // client/holders/session_opener.h

// The most handles of one session, which is the holder's limit.
inline constexpr size_t kLinkHandleCountMax = kCorpusChunkCountMax;

// Options that are the same for all links of a requester.
struct LinkOptions {
  LiveHere* here = nullptr;    // learns from attends of locally cached rows; may be null
  LiveCalls* calls = nullptr;  // learns the errors of predicted calls; may be null
  std::string requester;
  std::string host_identity;
  Clock* clock = nullptr;
  std::vector<Fabric*> fabrics;  // in order of preference
  // The one fabric to use. If unset, the fastest is used.
  std::optional<FabricKind> forced = {};
  RdmaFallback rdma_fallback = RdmaFallback::kRefuse;
  LaneShape shape;
  Duration connect_timeout{0};
  size_t handle_count_max = kLinkHandleCountMax;
  CallCounters* counters = nullptr;   // may be null
  NetworkOracle* oracle = nullptr;    // has the paths to replicas; may be null
  Backend* backend = Backend::Cpu();  // for what calls compute locally
  // Pins the slots of every lane, for a backend that cannot access host memory. Null if it can.
  std::shared_ptr<MemoryPinner> slot_pinner = {};
  SpanSink* spans = nullptr;  // receives the spans of calls; may be null
  // Opens sessions for calls that replicas can answer meanwhile. If null, each call opens its own.
  SessionOpener* opener = nullptr;
};

// A session and its open lane.
struct OpenedLane {
  SessionId session;
  Epoch epoch;
  std::unique_ptr<RequestLane> lane;
  HostFacts host = {};  // the holder's
};

// The session to open, and the holder to open it with. Borrows everything for one call.
struct LaneRequest {
  const LinkOptions* options = nullptr;
  const Geometry* geometry = nullptr;
  std::string_view tenant;
  HolderControl* control = nullptr;
  Instant deadline;  // for all steps together
};

struct LaneAttempt {
  absl::Status status;  // OK if `opened` is up
  OpenedLane opened;
  // The ordinal of the offered fabric that the holder took, even if its lane could not be opened.
  // The number of fabrics if the holder took none; `status` then has the reason.
  size_t taken = 0;
  std::vector<absl::Status> dialed;        // per fabric, why it could not be offered
  std::vector<FabricKind> holder_fabrics;  // the holder's fabrics, if it took one and listed them
};

// Offers `fabrics` to the holder, which takes the first that reaches it, and connects the lane.
// Ends at `connect_by` or at the request's deadline, if that is sooner. A failure leaves no session
// open.
//   Unavailable         no fabric could be offered, the holder takes none of them or does not
//                       answer, or the lane could not be connected.
//   InvalidArgument     the holder's answer is malformed.
//   FailedPrecondition, ResourceExhausted, DeadlineExceeded  as HolderControl::OpenSession.
//   as PinLane          this process cannot pin the lane.
LaneAttempt OpenLane(const LaneRequest& request, std::span<Fabric* const> fabrics,
                     Instant connect_by);

// Drops the lane and ends the session. If the lane is broken, the holder is not notified.
void CloseLane(HolderControl& control, Clock& clock, OpenedLane& opened);

}  // namespace ckv
