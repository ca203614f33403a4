// Answers fetches: pushes runs of rows from where they lie in the store, and chosen rows and slices
// of rows as it gathers them.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "server/lease_gate.h"
#include "server/ready_request.h"
#include "server/serve_counters.h"
#include "store/chunk_table.h"
#include "transport/wire.h"

namespace ckv {

// Belongs to the dispatcher's thread, which answers one fetch between two looks at its lanes: so a
// push delays a small reply by what kFetchBodyBytesMax takes to copy or to hand to the kernel.
// Credits are the slots: a requester has as many replies under way as it posted requests.
class PushServer {
 public:
  // Everything borrowed must outlive it.
  PushServer(Clock* clock, ChunkTable* table, const LeaseGate* lease, ServeCounters* counters);

  // Answers with the rows or an error. The chunk stays pinned while the fabric reads the rows.
  // False: nothing was done, the rows are on disk.
  //   InvalidArgument     malformed, not answered: the lane is to be closed.
  absl::StatusOr<bool> Answer(const ReadyRequest& ready);

  // Lets go of what the fabrics have sent.
  void Reap();
  // The lane was destroyed, so nothing reads for it any more.
  void Forget(const ServeLane* lane);
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

  Clock* const clock_;
  ChunkTable* const table_;
  const LeaseGate* const lease_;
  ServeCounters* const counters_;
  std::vector<Sending> sending_;   // one a slot at most, so as many as there are slots
  std::vector<uint32_t> indices_;  // of the request at hand; kFetchIndexCountMax at most
};

}  // namespace ckv
