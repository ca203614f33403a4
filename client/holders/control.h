// What a requester needs of the control plane, free of gRPC: client/*_stub.h speaks it to remote
// processes; a process that is holder and requester at once answers it directly.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "transport/fabric.h"

namespace ckv {

inline constexpr uint32_t kLaneCountMax = 64;    // lanes of one session
inline constexpr uint32_t kFabricCountMax = 16;  // names in a session's answer

struct FabricOffer {
  FabricKind fabric = FabricKind::kTcp;
  std::vector<std::string> offers;  // one a lane: Dialer::offer
};

struct SessionOffer {
  uint32_t wire_version = 0;
  Geometry geometry;
  std::string tenant;
  std::string requester;      // a name for logs
  std::string host_identity;  // HostIdentity() of the requester
  LaneShape shape;
  std::vector<FabricOffer> fabrics;  // in order of preference
};

struct SessionAnswer {
  SessionId session;
  Epoch epoch;
  FabricKind fabric = FabricKind::kTcp;
  std::vector<std::string> answers;      // one a lane: Listener::Invite
  std::vector<FabricKind> fabrics = {};  // all that the holder has; empty: it did not say
};

struct ResolvedHandle {
  ChunkHandle handle;
  uint32_t token_count = 0;
};

// One holder's control plane. Thread-safe.
class HolderControl {
 public:
  virtual ~HolderControl() = default;

  // Errors as HolderService.OpenSession in proto/ckv/v1/holder.proto.
  virtual absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer,
                                                    Instant deadline) = 0;
  virtual absl::Status CloseSession(SessionId session, Instant deadline) = 0;
  // One entry an id, in order; nothing where the holder does not have it (or denies it).
  //   NotFound            no such session.
  virtual absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
      SessionId session, std::span<const ChunkId> ids, Instant deadline) = 0;
};

// The directory, as a requester sees it. Thread-safe.
class DirectoryControl {
 public:
  virtual ~DirectoryControl() = default;

  //   NotFound            no such corpus (or not this tenant's).
  virtual absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                           Instant deadline) = 0;
  virtual absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) = 0;
  // Every placement of the chunk, one a corpus.
  //   NotFound            no corpus has it.
  virtual absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id,
                                                          std::string_view tenant,
                                                          Instant deadline) = 0;
};

// Makes the control connection to a member's control address. Thread-safe; never blocks on the
// network (gRPC connects lazily).
class HolderControlFactory {
 public:
  virtual ~HolderControlFactory() = default;
  virtual absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member& member) = 0;
};

}  // namespace ckv
