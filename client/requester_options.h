// The options of a requester.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "attention/backend.h"
#include "client/holder_view.h"
#include "client/holders/host_cache.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "transport/fabric.h"

namespace ckv {

class LocalRowSource;  // client/context/local_rows.h
class NetworkOracle;   // client/cost/network_oracle.h
struct Profile;        // client/cost/profile_file.h

// The options of Requester::Create. Every field has a default.
struct RequesterOptions {
  static constexpr uint32_t kCallCountMax = 4096;

  std::string id = "requester";  // the name in the logs of holders
  Clock* clock = Clock::Real();  // borrowed
  // Computes in this process: rotates queries, attends own and locally cached rows, merges and
  // splices. Borrowed. Query rows, own rows, answers and paged caches may be in any memory that it
  // reaches. Lanes are in host memory, or in pinned memory if it reaches only that; all memory of a
  // pinned lane is then occupied. If it does not reach rows in host memory, queries over locally
  // cached rows are routed. It must outlive the requester. A device that pins memory must also
  // outlive the fabrics and, on loopback, the holders. If its device fails, calls end with
  // Internal, and the contents of the answer's memory are undefined.
  Backend* backend = Backend::Cpu();
  // The fabrics to use, in order of preference; borrowed. If empty, the requester makes shm (for
  // holders on this host) and tcp. A probe picks the fastest that the holder also has. If the probe
  // finds no difference, the order decides.
  std::vector<Fabric*> fabrics;
  // Forces this fabric for every holder. If unset, a probe picks the fastest.
  std::optional<FabricKind> fabric;
  // The action if both sides have verbs, no verbs lane comes up, and tcp is the next choice.
  RdmaFallback rdma_fallback = RdmaFallback::kRefuse;
  // The number and sizes of a lane's slots (transport/fabric.h). They limit how much one frame
  // carries and how many frames are in flight per lane. A holder refuses lanes that exceed its
  // memory for them.
  LaneShape lane_shape;
  // Calls in progress at once, 1 to kCallCountMax. Further calls wait for one to end, until their
  // deadline. One more context for 20 calls, at least one, serves hedges (client/call/hedge.h).
  uint32_t call_count_max = 16;
  // Threads that attend locally cached and own rows of one call, including the caller's: 1 to
  // WorkerPool::kThreadCountMax. Each call context has its own, which sleep while it computes
  // nothing. The number does not affect the bits of answers. A backend that is a device ignores it.
  uint32_t call_threads = 1;
  // How long a waiting call polls before it sleeps. It polls through waits of up to 2 ms if the
  // last two were that short (transport/wait_policy.h). Zero disables polling.
  Duration spin_max = std::chrono::microseconds(50);
  // The time limit for opening a session and its lane. A call's deadline may end it sooner.
  Duration connect_timeout = std::chrono::seconds(3);
  // The capacity of the local row cache, for rows that contexts of policy cache or auto have
  // fetched (client/prefetch/prefetcher.h). Memory is allocated as it is used. If 0, every query is
  // routed. So it is if the backend does not reach rows in host memory: policies then change
  // nothing.
  uint64_t local_cache_bytes = uint64_t{1} << 30;
  // The rows of a holder in the same process; borrowed. If set, prefetched rows are copied to that
  // holder, and its chunks count as cached locally from the start. It must outlive the requester.
  LocalRowSource* local_row_source = nullptr;
  // The cache of this host; borrowed. If set, prefetched rows are first copied there, for all
  // requesters of the host, and then mapped. It must outlive the requester.
  HostCache* host_cache = nullptr;
  // Receives the spans of attends whose trace is sampled (proto/base/span.h): the attend, its
  // lanes, attention in this process, and merges. Borrowed. Times are those of `clock`. If null,
  // there are none, and holders' spans are children of the caller's.
  SpanSink* spans = nullptr;
  // The costs of the network's paths, for Explain and the choice of replicas; borrowed. If null,
  // only measured constants are used.
  NetworkOracle* oracle = nullptr;
  // A profile written by `ckvctl calibrate` (ReadProfile, client/cost/profile_file.h). Explain
  // then uses its constants instead of measuring: merge, splice and prefill here, and per holder
  // the fetch bandwidth and kernel time. It applies only to the host, the row widths and the kernel
  // target it was measured with. Otherwise it is ignored, with one warning in the log. If null,
  // there is no profile.
  std::shared_ptr<const Profile> profile;
};

// Checks the options that say nothing about other objects.
//   InvalidArgument     a count or duration is beyond its limits, `fabric` is not among `fabrics`,
//                       or the backend cannot use lanes' memory; names the option.
absl::Status ValidateRequesterOptions(const RequesterOptions& options);

struct LinkOptions;  // client/holders/lane_opener.h
// For the requester: returns the options of its links that these name.
LinkOptions LinkOptionsOf(const RequesterOptions& options);

}  // namespace ckv
