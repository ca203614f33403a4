// The directory and the holders over gRPC, as the replica keeper calls them.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/grpc/directory_caller.h"
#include "proto/base/clock.h"
#include "server/upkeep/replica_keeper.h"

namespace ckv {

// Thread-safe. Every error message names the call and the peer.
class ReplicaRegistryStub final : public ReplicaRegistry {
 public:
  // `addresses` as for DirectoryCaller. Makes no network call. `clock` must outlive this object.
  ReplicaRegistryStub(std::string_view addresses, Clock* clock) : directory_(addresses, clock) {}

  absl::StatusOr<std::vector<bool>> Announce(uint64_t lease_id, std::string_view tenant,
                                             std::span<const ChunkId> ids,
                                             Instant deadline) override;
  absl::Status Withdraw(uint64_t lease_id, std::optional<std::string_view> tenant,
                        std::span<const ChunkId> ids, Instant deadline) override;

 private:
  using Stub = DirectoryCaller::Stub;
  DirectoryCaller directory_;
};

// Thread-safe. Each call makes its own channel; gRPC shares the connection with other channels to
// the same address.
class ChunkInfoStub final : public ChunkInfoSource {
 public:
  // `clock` must outlive it.
  explicit ChunkInfoStub(Clock* clock) : clock_(clock) {}

  // Also returns InvalidArgument if the answer is malformed.
  absl::StatusOr<ChunkInfo> GetChunkInfo(const Member& holder, const ChunkId& id,
                                         const Geometry& geometry, std::string_view tenant,
                                         Instant deadline) override;

 private:
  Clock* const clock_;
};

}  // namespace ckv
