// Reads all rows of a chunk from the store for a peer.

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
#include "server/holder/holder.h"
#include "server/rpc/service_gate.h"

namespace ckv {

// The maximum number of reads at a time. Each holds a thread and a buffer of rows; a read of a cold
// chunk also keeps the device busy. An export has one read per holder.
inline constexpr uint32_t kReadCountMax = 8;
// A read is ended if its peer accepts nothing for this long: the peer hangs, and a hot chunk stays
// pinned for it.
inline constexpr Duration kReadProgressMax = std::chrono::seconds(30);

// Thread-safe.
class ChunkReads {
 public:
  // All arguments must outlive this object.
  ChunkReads(Holder* holder, ServiceGate* gate, Clock* clock)
      : holder_(*holder), gate_(*gate), clock_(*clock) {}

  // The callbacks between a read and its peer. The reading thread makes every call, except
  // `cancel`.
  struct Peer {
    // Makes a blocked `send` return. Called as a ServiceGate::CancelStream.
    ServiceGate::CancelStream cancel;
    // Returns true if the peer no longer waits for the rows: the call was cancelled or its deadline
    // has passed.
    absl::FunctionRef<bool()> gone;
    // Sends rows of a tensor, starting at this byte of it. Returns false if the peer is gone.
    absl::FunctionRef<bool(uint32_t tensor, uint64_t offset_bytes, std::span<const std::byte> rows)>
        send;
  };
  // Sends the rows of a hot or cold chunk, tensor by tensor, in order. A cold chunk stays cold, and
  // rows from its file are checked. The rows are valid only if Run returns OK.
  //   NotFound, FailedPrecondition    as ChunkTable::Find.
  //   Unavailable         there is no live lease, this server drains, or the device fails.
  //   ResourceExhausted   kReadCountMax reads are in progress, or the gate's limit of streams is
  //                       reached.
  //   DataLoss            the chunk's file is damaged: it was quarantined, and the chunk was
  //                       dropped here.
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
