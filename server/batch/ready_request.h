// A request that waits for its turn, and the checks and answers that all kinds of request share.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "proto/base/clock.h"
#include "server/session/lease_gate.h"
#include "server/session/serve_counters.h"
#include "server/session/session.h"
#include "store/memory/chunk_table.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

class ColdRows;
struct HolderLane;

// A value: copies name the same slot, which is the holder's until one reply is posted.
struct ReadyRequest {
  ServeLane* lane = nullptr;
  HolderLane* from = nullptr;  // the dispatcher's own view of the lane
  Session* session = nullptr;
  uint32_t slot = 0;
  uint32_t bytes = 0;       // bytes of the slot that the peer wrote
  RequestHeader header;     // a decoded copy: on shm the peer can still change the slot
  Instant arrived;          // when the dispatcher saw the request
  bool refused = false;     // the request arrived after the drain began
  uint64_t work = 0;        // multiply-adds, as estimated on arrival
  uint32_t cold_count = 0;  // times the request was sent to have chunks read
  // The rows read from disk for it (server/dispatch/cold_reads.h), or null if none were. They are
  // freed with the last copy.
  std::shared_ptr<const ColdRows> cold_rows;

  std::span<const std::byte> frame() const { return lane->request(slot).first(bytes); }
  // The kind of memory of the request's rows and of its reply.
  MemoryKind slot_memory() const {
    return lane->slot_type() == RegionType::kPinned ? MemoryKind::kPinned : MemoryKind::kHost;
  }
  Instant deadline() const { return arrived + std::chrono::microseconds(header.deadline_us); }
};

// Checks a request when its turn comes, before any data is touched. It must name the lane's session
// and the epoch of a live lease (I4), and have time left. Counts refusals and expiry.
//   Aborted             another session or another epoch: the peer should open a new session.
//   Unavailable         the holder drains or has no live lease.
//   DeadlineExceeded    the request's time has passed.
absl::Status CheckTurn(const ReadyRequest& ready, const LeaseGate& lease, Instant now,
                       ServeCounters& counters);

// The DeadlineExceeded of CheckTurn.
absl::Status ExpiredError(const RequestHeader& header);

// Pins the chunk behind a session's handle.
//   NotFound            the chunk is unknown, dropped or denied, which look the same (I6).
//   Unavailable         its rows are on disk: let ColdReads read them first.
absl::StatusOr<ChunkPin> PinHandle(const ChunkTable& table, const Session& session,
                                   uint32_t handle);

// Answers with an error and counts it. The slot is the peer's again.
void PostError(const ReadyRequest& ready, const absl::Status& error, uint32_t retry_after_us,
               ServeCounters& counters);

// Writes the header of a reply whose body of `reply.body_bytes` is in the slot already, and posts
// both. The slot is the peer's again.
void PostReply(const ReadyRequest& ready, const ReplyHeader& reply, ServeCounters& counters);

// `value` clamped to what a uint32_t holds.
uint32_t Saturate32(int64_t value);

}  // namespace ckv
