// A request that waits for its turn, and the checks and replies common to all kinds of request.

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

// A value: copies refer to the same slot, which belongs to the holder until one reply is posted.
struct ReadyRequest {
  ServeLane* lane = nullptr;
  HolderLane* from = nullptr;  // the dispatcher's own record of the lane
  Session* session = nullptr;
  uint32_t slot = 0;
  uint32_t bytes = 0;       // bytes of the slot that the peer wrote
  RequestHeader header;     // a decoded copy, because on shm the peer can still change the slot
  Instant arrived;          // when the dispatcher saw the request
  bool refused = false;     // the request arrived after the drain began
  uint64_t work = 0;        // multiply-adds, as estimated on arrival
  uint32_t cold_count = 0;  // how often the request was sent to have chunks read
  // The rows read from disk for the request (server/dispatch/cold_reads.h), or null if there are
  // none. They are freed with the last copy of it.
  std::shared_ptr<const ColdRows> cold_rows;

  std::span<const std::byte> frame() const { return lane->request(slot).first(bytes); }
  // The kind of memory of the request's rows and of its reply.
  MemoryKind slot_memory() const {
    return lane->slot_type() == RegionType::kPinned ? MemoryKind::kPinned : MemoryKind::kHost;
  }
  Instant deadline() const { return arrived + std::chrono::microseconds(header.deadline_us); }
};

// Checks a request at its turn, before any data is read. The request must name the lane's session
// and the epoch of a live lease (I4), and have time left. Counts refusals and expiry.
//   Aborted             another session or another epoch: the peer should open a new session.
//   Unavailable         the holder is draining or has no live lease.
//   DeadlineExceeded    the request's time has passed.
absl::Status CheckTurn(const ReadyRequest& ready, const LeaseGate& lease, Instant now,
                       ServeCounters& counters);

// Returns the DeadlineExceeded error of CheckTurn.
absl::Status ExpiredError(const RequestHeader& header);

// Pins the chunk behind a session's handle.
//   NotFound            the chunk is unknown, dropped or denied; callers see no difference (I6).
//   Unavailable         its rows are on disk; ColdReads must read them first.
absl::StatusOr<ChunkPin> PinHandle(const ChunkTable& table, const Session& session,
                                   uint32_t handle);

// Replies with an error and counts it. The slot then belongs to the peer again.
void PostError(const ReadyRequest& ready, const absl::Status& error, uint32_t retry_after_us,
               ServeCounters& counters);

// Writes the header of a reply whose body of `reply.body_bytes` is already in the slot, and posts
// both. The slot then belongs to the peer again.
void PostReply(const ReadyRequest& ready, const ReplyHeader& reply, ServeCounters& counters);

// Returns `value` clamped to the range of uint32_t.
uint32_t Saturate32(int64_t value);

}  // namespace ckv
