// The fabric of RDMA networks (libibverbs, reliable connections), its options, and the check that
// reports what a machine lacks for it.
//
//   requester to holder   SEND into posted receives, one for each slot: the kernel reads the query
//                         where the device put it
//   holder to requester   RDMA WRITE WITH IMMEDIATE into the requester's landing slot, straight
//                         from the reply buffer or from the store (PostGather)
//
// Only the holder starts RDMA. Its memory is registered without remote access, its queue pairs
// allow none, and every lane has its own protection domain. So guessing a queue pair's number and a
// key gains nothing. RoCE is clear text: do not send rows over it that others on the network may
// not see.
//
// Registered memory is pinned, so a lane uses the memory of all its buffers from the start, not
// only of those it touches. At the holder these are (slot_count + 2) x request_bytes_max +
// slot_count x reply_bytes_max.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"

namespace ckv {

// The limits of one resource: in total, and for the lanes of one account (Listener::Invite),
// whatever the addresses of their peers. Lanes that this process dials count in the total only.
struct VerbsLimit {
  uint64_t total_max = 0;
  uint64_t per_account_max = 0;
};

// Whether an MTU may be requested: 256, 512, 1024, 2048, 4096, or 0 for the port's.
constexpr bool IsVerbsMtu(uint32_t bytes) {
  return bytes == 0 || (std::has_single_bit(bytes) && bytes >= 256 && bytes <= 4096);
}

struct VerbsOptions {
  std::string device;  // name in /sys/class/infiniband; if empty, the only one
  uint8_t port = 1;    // counted from 1
  int gid_index = -1;  // -1 chooses RoCE v2 with an IPv4 address, else the first
  // Bytes of a packet: a power of two from 256 to 4096. 0 means the port's. The smaller value of
  // the two ends is used.
  uint32_t mtu_bytes = 0;
  uint8_t service_level = 0;
  // The IP header's traffic class on RoCE; lossless switches use it.
  uint8_t traffic_class = 0;

  // Retries, in the device's own units. An unanswered packet is sent again after 4.096 us x
  // 2^timeout, at most retry_count times. The defaults, 7 times 67 ms, find a dead peer within 0.5
  // s. The standard lets devices wait four times as long, which makes it 1.9 s. A retry_count of 7
  // is refused, because soft-RoCE then retries forever.
  uint8_t timeout = 14;
  uint8_t retry_count = 6;
  // Retries when the peer has no receive posted: 6 times 0.64 ms. A receive is always posted before
  // its message may be sent, so this happens only with a peer that breaks the protocol. 7 is
  // refused, because it means forever.
  uint8_t rnr_retry_count = 6;
  uint8_t min_rnr_timer = 12;

  // The largest work request in bytes, or the port's limit if that is smaller. A multiple of 64, at
  // least 64 KiB. 8 MiB is the limit that soft-RoCE reports; 64 MB then take 8 work requests.
  uint32_t segment_bytes = 8u << 20;
  // The store is registered in segments of this size. A fabric thread registers a segment when a
  // reply first needs it; until then, replies are copied. A segment of 64 MiB has 16 k pages, and
  // pinning them takes some milliseconds.
  size_t gather_segment_bytes = size_t{64} << 20;

  // Limits of use; beyond them the fabric returns ResourceExhausted. A queue pair is one end of a
  // lane. Region bytes count memory once for each lane that registers it, as RLIMIT_MEMLOCK does.
  // One account may use a quarter: without tenant names, all requesters together are one account.
  VerbsLimit queue_pairs = {1024, 256};
  VerbsLimit receives = {65'536, 16'384};
  VerbsLimit regions = {65'536, 16'384};
  VerbsLimit region_bytes = {uint64_t{256} << 30, uint64_t{64} << 30};

  // Whether the landing region's key names a memory window that only this lane's queue pair can
  // use. Needs a device with windows of type 2B; otherwise the key names the registration.
  bool windows = true;

  // How often an idle end probes the other end. A holder that has not polled its lane for
  // silence_ms_max is considered dead.
  uint32_t probe_interval_ms = 1000;
  uint32_t silence_ms_max = 5000;
  // How long the teardown of a destroyed lane waits for the last sends to arrive. The thread that
  // destroys a lane does not wait: a fabric thread does, one lane after another.
  uint32_t linger_ms_max = 50;
};

// The part of each limit that is in use. A destroyed lane counts until it is torn down.
struct VerbsUse {
  uint64_t queue_pairs = 0;
  uint64_t receives = 0;
  uint64_t regions = 0;
  uint64_t region_bytes = 0;

  friend bool operator==(const VerbsUse&, const VerbsUse&) = default;
};

// Lanes may outlive the fabric, but not the clock. Destroying the fabric waits until the lanes
// destroyed before it have been torn down.
class VerbsFabric : public Fabric {
 public:
  // Returns the current use of the limits.
  virtual VerbsUse use() const = 0;
  // Whether memory windows protect the landing regions.
  virtual bool windows() const = 0;
};

// Checks whether this process can use the device with these options. Every error text includes a
// remedy.
//   Unavailable         there is no device or no module, or the port is down.
//   InvalidArgument     an option has a value that this device, or any device, cannot have.
//   FailedPrecondition  RLIMIT_MEMLOCK is below the limit of region_bytes.
//   PermissionDenied    this process may not open the device's file.
//   Unimplemented       this build has no libibverbs.
absl::Status CheckVerbs(const VerbsOptions& options);

// Makes the fabric. Errors are CheckVerbs's. `clock` must outlive the fabric and its lanes.
absl::StatusOr<std::unique_ptr<VerbsFabric>> NewVerbsFabric(const VerbsOptions& options,
                                                            Clock* clock);

}  // namespace ckv
