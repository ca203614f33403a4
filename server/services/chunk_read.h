// Rows of a chunk, read out of the store for a peer that wants all of them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/clock.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "server/holder.h"
#include "server/service_gate.h"

namespace ckv {

// Bytes of rows in one message of a read.
inline constexpr size_t kReadRowsBytesMax = 1u << 20;

// Reads at a time. Each holds a thread and a piece of rows, and a cold chunk's reads the device; an
// export has one a holder.
inline constexpr uint32_t kReadCountMax = 8;
// A peer that takes nothing for so long is given up: it hangs, and a hot chunk is pinned for it.
inline constexpr Duration kReadProgressMax = std::chrono::seconds(30);

// Thread-safe.
class ChunkReads {
 public:
  // All must outlive it.
  ChunkReads(Holder* holder, ServiceGate* gate, Clock* clock)
      : holder_(*holder), gate_(*gate), clock_(*clock) {}

  // What a read is told by, and tells; all are called by the thread that reads, but for `cancel`.
  struct Peer {
    // Makes `send` return; called at most once, from another thread, and does not block.
    std::function<void()> cancel;
    // Whether nobody waits for the rows any more: cancelled, or past the deadline.
    absl::FunctionRef<bool()> gone;
    // Rows of a layer, from this byte of it on; false: the peer is gone.
    absl::FunctionRef<bool(uint32_t layer, uint64_t offset_bytes, std::span<const std::byte> rows)>
        send;
  };
  // Sends the chunk's rows, each layer's in order, hot or cold: a cold chunk stays cold, and what
  // comes of its file was checked. Nothing of an answer holds unless it ends with OK.
  //   NotFound, FailedPrecondition    as ChunkTable::Find.
  //   Unavailable         no live lease, this server drains, or the device fails.
  //   ResourceExhausted   kReadCountMax reads are in progress.
  //   DataLoss            its file is damaged: it was quarantined, and the chunk is gone from here.
  //   Cancelled           the peer is gone.
  absl::Status Run(const ChunkId& id, const Geometry& geometry, std::string_view tenant,
                   const Peer& peer);

 private:
  absl::Status Send(const ChunkId& id, const Geometry& geometry, std::string_view tenant,
                    const Peer& peer, ServiceGate::Stream& stream);

  Holder& holder_;
  ServiceGate& gate_;
  Clock& clock_;
  ServiceGate::Kind reads_{"reads", kReadCountMax};
};

}  // namespace ckv
