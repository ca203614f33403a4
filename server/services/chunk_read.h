// Reads all rows of a chunk out of the store for a peer.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "server/edge/service_gate.h"
#include "server/holder/holder.h"

namespace ckv {

// The most reads at a time. Each holds a thread and a part of rows; a cold chunk's also keeps the
// device busy. An export has one per holder.
inline constexpr uint32_t kReadCountMax = 8;
// A peer that takes nothing for this long is given up: it hangs, and a hot chunk is pinned for it.
inline constexpr Duration kReadProgressMax = std::chrono::seconds(30);

// Thread-safe.
class ChunkReads {
 public:
  // All arguments must outlive it.
  ChunkReads(Holder* holder, ServiceGate* gate, Clock* clock)
      : holder_(*holder), gate_(*gate), clock_(*clock) {}

  // The two ways between a read and its peer. The thread that reads makes every call, except
  // `cancel`.
  struct Peer {
    // Makes `send` return.
    ServiceGate::CancelStream cancel;
    // Whether nobody waits for the rows any more: cancelled, or past the deadline.
    absl::FunctionRef<bool()> gone;
    // Sends rows of a layer from this byte on. Returns false if the peer is gone.
    absl::FunctionRef<bool(uint32_t layer, uint64_t offset_bytes, std::span<const std::byte> rows)>
        send;
  };
  // Sends the chunk's rows, each layer's in order, hot or cold. A cold chunk stays cold, and rows
  // from its file are checked. The rows count only if the read ends with OK.
  //   NotFound, FailedPrecondition    as ChunkTable::Find.
  //   Unavailable         there is no live lease, this server drains, or the device fails.
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
