// The fabric of RDMA networks (libibverbs, reliable connections), its options, and the check that
// says what a machine lacks for it.
//
//   requester to holder   SEND into posted receives, one for each slot: the kernel reads the query
//                         where the device put it
//   holder to requester   RDMA WRITE WITH IMMEDIATE into the requester's landing slot, straight
//                         from the reply buffer or from the store (PostGather)
//
// The holder initiates all RDMA. Its own memory is registered without any remote access, its queue
// pairs allow none, and every lane has a protection domain of its own, so whoever guesses a queue
// pair's number and a key gets nothing. RoCE is clear text: rows that others on the wire may not
// see do not belong on it.
//
// Registered memory is pinned: a lane costs all of its buffers from the start, not what it touches,
// at the holder (slot_count + 2) x request_bytes_max + slot_count x reply_bytes_max.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "transport/fabric.h"

namespace ckv {

// Limits of one kind of thing: in total, and of the lanes of one account (Listener::Invite)
// whatever addresses its peers say they have. The lanes this process dials count in total only.
struct VerbsLimit {
  uint64_t total_max = 0;
  uint64_t per_account_max = 0;
};

struct VerbsOptions {
  std::string device;      // as in /sys/class/infiniband; empty: the only one
  uint8_t port = 1;        // counted from 1
  int gid_index = -1;      // -1: RoCE v2 with an IPv4 address if there is one, else the first
  uint32_t mtu_bytes = 0;  // 256 to 4096, a power of two; 0: the port's. The lesser end's counts
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;  // RoCE: the IP header's; switches without loss go by it

  // The device's own units. An unanswered packet is sent again after 4.096 us x 2^timeout, at most
  // retry_count times: 67 ms x 7 find a dead peer within 0.5 s, and within 1.9 s on devices that
  // wait four times as long, which the standard allows. 7 is refused: soft-RoCE takes it for ever.
  uint8_t timeout = 14;
  uint8_t retry_count = 6;
  // A receive is always posted before its message may be sent, so only a peer that breaks the rules
  // is ever not ready: 6 times 0.64 ms. 7 would be for ever, and is refused.
  uint8_t rnr_retry_count = 6;
  uint8_t min_rnr_timer = 12;

  // One work request moves at most this much, or less where the port's limit is less; a multiple of
  // 64 from 64 KiB on. 8 MiB is what soft-RoCE reports; 64 MB go in 8 work requests.
  uint32_t segment_bytes = 8u << 20;
  // The store is registered in pieces of this size, by a thread of the fabric, once a reply from
  // them was asked for. 64 MiB are 16 k pages, whose pinning takes some milliseconds: replies until
  // then are copied.
  size_t gather_segment_bytes = size_t{64} << 20;

  // What is refused beyond these: ResourceExhausted. A queue pair is a lane's end. Bytes are those
  // of registrations: memory that several lanes register counts for each, as in RLIMIT_MEMLOCK. An
  // account may have a quarter: where nobody names tenants, all requesters together are one.
  VerbsLimit queue_pairs = {1024, 256};
  VerbsLimit receives = {65'536, 16'384};
  VerbsLimit regions = {65'536, 16'384};
  VerbsLimit region_bytes = {uint64_t{256} << 30, uint64_t{64} << 30};

  // The landing region's key names a memory window that only this lane's queue pair can use, where
  // the device has windows of type 2B.
  bool windows = true;

  // An idle end asks whether the other is there; a holder that has not polled its lane for
  // silence_ms_max is taken for dead.
  uint32_t probe_interval_ms = 1000;
  uint32_t silence_ms_max = 5000;
  // How long a destroyed lane's end waits for what it had sent to arrive. Nobody who destroys one
  // waits for that: a thread of the fabric does, one lane after another.
  uint32_t linger_ms_max = 50;
};

// What of the limits is in use. What a destroyed lane had counts until it is torn down.
struct VerbsUse {
  uint64_t queue_pairs = 0;
  uint64_t receives = 0;
  uint64_t regions = 0;
  uint64_t region_bytes = 0;

  friend bool operator==(const VerbsUse&, const VerbsUse&) = default;
};

// Lanes may outlive the fabric, but not the clock. The fabric's end waits until the lanes that were
// destroyed before it have left nothing behind.
class VerbsFabric : public Fabric {
 public:
  virtual VerbsUse use() const = 0;
  // Whether landing regions are behind memory windows.
  virtual bool windows() const = 0;
};

// Whether this process can use the device as the options say. Every error says what to do.
//   Unavailable         no device, no module, or the port is down.
//   InvalidArgument     an option that this device, or any, cannot have.
//   FailedPrecondition  RLIMIT_MEMLOCK is below the limit of region_bytes.
//   PermissionDenied    the device's file is not ours to open.
//   Unimplemented       built without libibverbs.
absl::Status CheckVerbs(const VerbsOptions& options);

// Errors are CheckVerbs's. `clock` must outlive the fabric and its lanes.
absl::StatusOr<std::unique_ptr<VerbsFabric>> NewVerbsFabric(const VerbsOptions& options,
                                                            Clock* clock);

}  // namespace ckv
