// Brings up a session with one lane on one of some fabrics: one try, whose failure says how far it
// got. Which fabrics are tried, and again, is client/fabric_choice.h's to say.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/control.h"
#include "client/counters.h"
#include "client/requester.h"
#include "proto/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "transport/fabric.h"

namespace ckv {

class NetworkOracle;  // client/network_oracle.h

// Handles of one session: as many as a holder gives out in one.
inline constexpr size_t kLinkHandleCountMax = kCorpusChunkCountMax;

// The same for all links of a requester.
struct LinkOptions {
  std::string requester;
  std::string host_identity;
  Clock* clock = nullptr;
  std::vector<Fabric*> fabrics;           // in order of preference
  std::optional<FabricKind> forced = {};  // one of them; absent: the fastest
  RdmaFallback rdma_fallback = RdmaFallback::kRefuse;
  LaneShape shape;
  Duration connect_timeout{0};
  size_t handle_count_max = kLinkHandleCountMax;
  RouteCounters* counters = nullptr;  // may be
  NetworkOracle* oracle = nullptr;    // may be; of the ways to replicas
};

// A session and its lane, up.
struct OpenedLane {
  SessionId session;
  Epoch epoch;
  std::unique_ptr<RequestLane> lane;
};

// For whom lanes are opened, and by whom. Borrowed for the length of a call.
struct LaneRequest {
  const LinkOptions* options = nullptr;
  const Geometry* geometry = nullptr;
  std::string_view tenant;
  HolderControl* control = nullptr;
  Instant deadline;  // of all that is done for it
};

struct LaneAttempt {
  absl::Status status;  // OK: `opened` is up
  OpenedLane opened;
  // Which of the fabrics offered the holder took, up or not; their number: none, `status` is its
  // refusal, or what kept it from answering.
  size_t taken = 0;
  std::vector<absl::Status> dialed;        // of each, why it could not even be offered
  std::vector<FabricKind> holder_fabrics;  // all that the holder has, if it took one and said so
};

// Offers `fabrics` to the holder, which takes the first that reaches it, and connects the lane:
// until `connect_by` at most, where the request's deadline is not sooner. What fails leaves no
// session behind.
//   Unavailable         no fabric could be offered, the holder takes none of them or is not there,
//                       or the lane that it took did not come up.
//   InvalidArgument     its answer is malformed.
//   FailedPrecondition, ResourceExhausted, DeadlineExceeded  as HolderControl::OpenSession.
LaneAttempt OpenLane(const LaneRequest& request, std::span<Fabric* const> fabrics,
                     Instant connect_by);

// Drops the lane and ends the session; over a broken lane there is nobody to tell.
void CloseLane(HolderControl& control, Clock& clock, OpenedLane& opened);

}  // namespace ckv
