// A request that has arrived and waits for its turn, and what every kind of request is held to.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "server/lease_gate.h"
#include "server/serve_counters.h"
#include "server/session.h"
#include "store/chunk_table.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

class ColdRows;
struct HolderLane;

// Its slot is the holder's until the reply is posted.
struct ReadyRequest {
  ServeLane* lane = nullptr;
  HolderLane* from = nullptr;  // the dispatcher's own view of the lane
  Session* session = nullptr;
  uint32_t slot = 0;
  uint32_t bytes = 0;
  RequestHeader header;     // decoded once: on shm the peer can still write what lies in the slot
  Instant arrived;          // when the dispatcher saw it
  bool refused = false;     // arrived after the drain began
  uint64_t work = 0;        // multiply-adds, as estimated on arrival
  uint32_t cold_count = 0;  // times that it was sent to have chunks read
  // What was read for it from disk (server/cold_reads.h), once it has been; goes with its last
  // copy.
  std::shared_ptr<const ColdRows> cold_rows;

  std::span<const std::byte> frame() const { return lane->request(slot).first(bytes); }
  Instant deadline() const { return arrived + std::chrono::microseconds(header.deadline_us); }
};

// What is asked of every request when its turn comes, before any data is touched: the lane's own
// session, a live lease and its epoch (I4), time left. Counts what is refused or has expired.
//   Aborted             another session, or another epoch: open a new session.
//   Unavailable         draining, or no live lease.
//   DeadlineExceeded
absl::Status CheckTurn(const ReadyRequest& ready, const LeaseGate& lease, Instant now,
                       ServeCounters& counters);

absl::Status ExpiredError(const RequestHeader& header);

// The chunk behind a session's handle.
//   NotFound            unknown, dropped or denied, which look the same (I6).
//   Unavailable         its rows are on disk: ColdReads is to read them first.
absl::StatusOr<ChunkPin> PinHandle(ChunkTable& table, const Session& session, uint32_t handle);

// Answers with an error; the slot is the peer's again.
void PostError(const ReadyRequest& ready, const absl::Status& error, uint32_t retry_after_us,
               ServeCounters& counters);

// Stamps and posts a reply whose body of `reply.body_bytes` lies in the slot already.
void PostReply(const ReadyRequest& ready, const ReplyHeader& reply, ServeCounters& counters);

uint32_t Saturate32(int64_t value);

}  // namespace ckv
