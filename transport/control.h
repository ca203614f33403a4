// The control-plane interfaces that a requester uses, without gRPC. The stubs of client/grpc/
// implement them for remote processes. A process that is both holder and requester implements them
// by direct calls.

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
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {

inline constexpr uint32_t kLaneCountMax = 64;    // lanes of one session
inline constexpr uint32_t kFabricCountMax = 16;  // names in a session's answer

struct FabricOffer {
  FabricKind fabric = FabricKind::kTcp;
  std::vector<std::string> offers;  // one per lane: Dialer::offer
};

struct SessionOffer {
  // The oldest and the newest frame version that the requester supports.
  uint32_t wire_version_min = kWireVersionMin;
  uint32_t wire_version_max = kWireVersion;
  Geometry geometry;
  std::string tenant;
  std::string requester;      // a name for logs
  std::string host_identity;  // HostIdentity() of the requester
  LaneShape shape;
  std::vector<FabricOffer> fabrics;  // in order of preference
};

// The host that a holder runs on. Holders of one host share its processors.
struct HostFacts {
  std::string identity;          // HostIdentity(); empty if the holder did not report it
  uint32_t processors = 0;       // processors that the holder may run on; 0 if unknown
  uint32_t compute_threads = 1;  // threads of its kernels
};

struct SessionAnswer {
  SessionId session;
  Epoch epoch;
  FabricKind fabric = FabricKind::kTcp;
  std::vector<std::string> answers;  // one per lane: Listener::Invite
  // All fabrics that the holder has, the chosen one among them.
  std::vector<FabricKind> fabrics = {};
  // The frame version that the session uses, one of those offered.
  uint16_t wire_version = kWireVersion;
  HostFacts host = {};
};

struct ResolvedHandle {
  ChunkHandle handle;
  uint32_t token_count = 0;
};

// One holder's control plane. Thread-safe.
class HolderControl {
 public:
  virtual ~HolderControl() = default;

  // Opens a session. Errors are those of HolderService.OpenSession in proto/ckv/v1/holder.proto.
  virtual absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer,
                                                    Instant deadline) = 0;
  // Closes a session.
  virtual absl::Status CloseSession(SessionId session, Instant deadline) = 0;
  // Returns one entry per id, in order. An entry is empty if the holder does not have the chunk or
  // denies access to it.
  //   NotFound            there is no such session.
  virtual absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
      SessionId session, std::span<const ChunkId> ids, Instant deadline) = 0;
};

// The directory, as a requester sees it. Thread-safe.
class DirectoryControl {
 public:
  virtual ~DirectoryControl() = default;

  // Returns the corpus of this name.
  //   NotFound            there is no such corpus, or it belongs to another tenant.
  virtual absl::StatusOr<Corpus> GetCorpus(std::string_view name, std::string_view tenant,
                                           Instant deadline) = 0;
  // Returns all registered members.
  virtual absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) = 0;
  // Returns every placement of the chunk, one per corpus.
  //   NotFound            no corpus contains the chunk.
  virtual absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id,
                                                          std::string_view tenant,
                                                          Instant deadline) = 0;
  // Returns the placement of each chunk, in order, in a corpus of this geometry. Takes one RPC per
  // kIdsPerCallMax ids. The default implementation calls LocateChunk once per id.
  //   NotFound            no holder has one of the chunks; the message names it.
  //   FailedPrecondition  a chunk is known, but only with another geometry; the message has the
  //                       difference.
  virtual absl::StatusOr<std::vector<ChunkPlacement>> LocateChunks(std::span<const ChunkId> ids,
                                                                   const Geometry& geometry,
                                                                   std::string_view tenant,
                                                                   Instant deadline);
  // Returns the key that the ids of the tenant's chunks are made with. Returns the zero key if the
  // tenant has none; its ids are then plain. The default implementation returns the zero key.
  virtual absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, Instant deadline);
  // Returns the chunks that begin with one of these token hashes (store/memory/token_hash.h), in
  // corpora that the tenant may read. Takes one RPC per kHeadsPerCallMax hashes. If `model` is
  // unset, chunks of all models count.
  //   Unimplemented       from the default implementation.
  virtual absl::StatusOr<PromptChunks> FindPrompt(std::span<const uint64_t> heads,
                                                  const std::optional<ChunkId>& model,
                                                  std::string_view tenant, Instant deadline);
};

// Returns the placement of a chunk in the first corpus that has it with this geometry.
//   NotFound, FailedPrecondition  as for DirectoryControl::LocateChunks.
absl::StatusOr<ChunkPlacement> PlacementAmong(const ChunkId& id, const Geometry& geometry,
                                              std::span<const Corpus> corpora);

// Makes the control connection to a member's control address. Thread-safe. Never blocks on the
// network, because gRPC connects lazily.
class HolderControlFactory {
 public:
  virtual ~HolderControlFactory() = default;
  virtual absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member& member) = 0;
};

}  // namespace ckv
