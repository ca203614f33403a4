// The control plane of a simulated fleet: what gRPC's stubs are in a real one.

#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "server/directory/registration.h"
#include "tests/sim/directories.h"
#include "tests/sim/node.h"
#include "transport/control.h"

namespace ckv::sim {

// The directory, as the requester of `life` uses it.
class DirectoryCalls final : public DirectoryControl {
 public:
  DirectoryCalls(const Directories* directories, Life* life)
      : directories_(*directories), life_(*life) {}
  absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                   Instant deadline) override;
  absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) override;
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id, std::string_view tenant,
                                                  Instant deadline) override;
  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, Instant deadline) override;

 private:
  const Directories& directories_;
  Life& life_;
};

// The directory, as a member registers there. Notes in `life` what it was granted.
class RegistrarCalls final : public DirectoryRegistrar {
 public:
  RegistrarCalls(const Directories* directories, Life* life)
      : directories_(*directories), life_(*life) {}
  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl, bool continues,
                                      Instant deadline) override;
  absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health,
                                         Instant deadline) override;
  absl::Status Deregister(uint64_t lease_id, Instant deadline) override;

 private:
  const Directories& directories_;
  Life& life_;
};

// Holders, as the requester of `life` reaches them: their control address is their node's number.
class HolderConnections final : public HolderControlFactory {
 public:
  HolderConnections(Network* network, Life* life, std::vector<std::unique_ptr<Node>>* nodes)
      : network_(*network), life_(*life), nodes_(*nodes) {}
  absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member& member) override;

 private:
  Network& network_;
  Life& life_;
  std::vector<std::unique_ptr<Node>>& nodes_;
};

}  // namespace ckv::sim
