// Serves fetches: sends whole rows directly from the store, and gathers selected rows or slices of
// rows into the reply.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/batch/ready_request.h"
#include "server/session/lease_gate.h"
#include "server/session/serve_counters.h"
#include "store/memory/chunk_table.h"
#include "transport/thread_role.h"
#include "transport/wire.h"

namespace ckv {

// Belongs to the dispatcher's thread (debug builds check that), which serves one fetch between two
// polls of its lanes. A push therefore delays a small reply by the time that kFetchBodyBytesMax
// takes to copy or to pass to the kernel. There are no credits other than the slots: a requester
// has as many replies in flight as it posted requests.
class PushServer {
 public:
  // Everything borrowed must outlive the server.
  PushServer(Clock* clock, const ChunkTable* table, const LeaseGate* lease,
             ServeCounters* counters);

  // Replies to `ready` with the rows or an error, and returns true. Returns false, and does
  // nothing, if the rows are on disk. The chunk stays pinned while the fabric reads its rows; see
  // Reap.
  //   InvalidArgument     the frame is malformed and gets no reply: close its lane.
  absl::StatusOr<bool> Answer(const ReadyRequest& ready);

  // Unpins the chunks whose rows have been sent. Call regularly while sending() is true.
  void Reap();
  // Unpins the chunks that `lane` was sending. Call after the lane was destroyed.
  void Forget(const ServeLane* lane);
  // Returns true if a fabric may still be reading rows.
  bool sending() const { return !sending_.empty(); }

 private:
  struct Sending {
    const ServeLane* lane = nullptr;
    uint32_t slot = 0;
    ChunkPin pin;
  };

  absl::Status Push(const ReadyRequest& ready, const FetchRequest& request, ChunkPin pin,
                    Instant started);
  absl::Status PushGathered(const ReadyRequest& ready, const FetchRequest& request,
                            const Chunk& chunk, ReplyHeader reply);
  absl::Status TakeIndices(const FetchRequest& request, const Chunk& chunk);

  ThreadRole role_;
  Clock* const clock_;
  const ChunkTable* const table_;
  const LeaseGate* const lease_;
  ServeCounters* const counters_;
  std::vector<Sending> sending_;  // at most one per slot of every lane
  std::vector<uint32_t>
      indices_;  // row indices of the current request, kFetchIndexCountMax at most
};

}  // namespace ckv
