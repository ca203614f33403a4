// Makes the parts of a daemon, each from its options.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/decide/network_oracle.h"
#include "client/decide/profile_file.h"
#include "client/grpc/watch_stub.h"
#include "client/holders/control.h"
#include "client/near/near_rows.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/base/host_port.h"
#include "server/daemon/config.h"
#include "server/directory/durable_directory.h"
#include "server/directory/registration.h"
#include "server/health/member_probes.h"
#include "server/holder/holder.h"
#include "server/telemetry/span_writer.h"
#include "server/upkeep/placement_keeper.h"
#include "server/upkeep/repair_stub.h"
#include "server/upkeep/repairer.h"
#include "server/upkeep/replica_keeper.h"
#include "server/upkeep/scrubber.h"
#include "server/web/web_server.h"
#include "transport/fabric.h"
#include "transport/socket.h"

namespace ckv {

// Takes a port of this host before its server exists. `address.port` becomes the port as bound.
// While the socket lives, nobody who asks for any free port gets it, and the server can listen on
// it too.
//   Unavailable         says why, and names --listen.
absl::StatusOr<UniqueFd> BindPort(HostPort& address);
// Returns the error of a daemon that cannot listen on config.listen, with what to do.
absl::Status CannotListen(const std::string& address, const absl::Status& why);

// Makes a fabric. `clock` must outlive it and its lanes.
//   Errors of CheckVerbs, for verbs: each says what to do.
absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(FabricKind kind, const Config& config,
                                                   Clock* clock);

// Starts the writer of spans, or returns null if the config wants none. `clock` must outlive it.
//   InvalidArgument     trace.path cannot be opened.
absl::StatusOr<std::unique_ptr<SpanWriter>> StartSpans(const Config& config, Clock* clock);

// Opens the directory that this process is. `files` must outlive it; if null, it is the real one.
// `replay` may be null.
//   Errors of DurableDirectory::Open.
absl::StatusOr<std::unique_ptr<DurableDirectory>> OpenDirectory(const Config& config, Clock* clock,
                                                                FileSystem* files,
                                                                ReplayProgress* replay);

// Makes the directory as a member of this role uses it: `local`, the directory of this process, if
// the config names no other. `local` and `clock` must outlive it.
std::unique_ptr<DirectoryRegistrar> MakeRegistrar(const Config& config, Clock* clock,
                                                  DirectoryState* local, MemberRole role);

// Returns what the config says of a member's registration. Its address and kernel target are the
// caller's to set.
RegistrationOptions RegistrationOptionsOf(const Config& config, MemberRole role, Clock* clock);

// Returns what the config says of a holder. Its clock, backend and fabrics are the caller's to set.
//   InvalidArgument     an address that is not host:port.
absl::StatusOr<HolderOptions> HolderOptionsOf(const Config& config);

// Returns what the config says of a requester. Its clock, backend, fabrics and the rest are the
// caller's to set.
//   InvalidArgument     a fabric of no such name.
absl::StatusOr<RequesterOptions> RequesterOptionsOf(const Config& config);

// Makes what a directory asks a member with.
std::unique_ptr<MemberProbe> ProbeServer(const std::string& address);

// Returns what the config says of a requester's watch. `local` is where this process reaches its
// own server, which has the directory if the config names no other.
WatchOptions WatchOptionsOf(const Config& config, Clock* clock, const std::string& local);

// Returns the room of the requester's near store. Beside a holder it is at most a quarter of
// store.capacity, as for copies: near chunks of the holder cannot be evicted there.
uint64_t NearBytesOf(const Config& config);

// Listens at host:port for scrapes, probes and people.
//   Unavailable         says why, and names --metrics-address.
absl::StatusOr<std::unique_ptr<WebServer>> StartWeb(const std::string& address, Clock* clock);

// Starts the oracle of oracle.file or oracle.address. Returns null if neither is set. A file is
// read first, so an invalid one is found at once. A service may come up later.
//   InvalidArgument, NotFound, Unavailable  as reading the file; begins with "oracle.file: ".
absl::StatusOr<std::unique_ptr<NetworkOracle>> StartOracle(const Config& config, Clock* clock);

// Reads the profile of requester.profile. Returns null if that is not set.
//   NotFound, InvalidArgument  as ReadProfile; begins with "requester.profile: ".
absl::StatusOr<std::shared_ptr<const Profile>> LoadProfile(const Config& config);

// The keeper of replicas of a daemon that is both holder and requester. Thread-safe.
class DaemonReplicas {
 public:
  // `local` is the directory of this process, used if the config names no other. All arguments must
  // outlive this.
  DaemonReplicas(const Config& config, Clock* clock, DirectoryState* local,
                 DirectoryControl* directory, Requester* requester, Holder* holder);

  // Sets the holder's registration once it exists, and null before it goes away.
  void SetRegistration(const Registration* registration) ABSL_LOCKS_EXCLUDED(mu_);

  ReplicaKeeper& keeper() { return *keeper_; }

 private:
  std::optional<LeaseGrant> Lease() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  const Registration* registration_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::unique_ptr<ReplicaRegistry> registry_;
  std::unique_ptr<ChunkInfoSource> infos_;
  std::unique_ptr<ReplicaKeeper> keeper_;  // last, because its thread uses the others
};

// The chunks of this process' holder, for its requester: near without a copy. A pull becomes a copy
// at the holder, which announces it.
class DaemonNear final : public NearSource {
 public:
  // `holder` must outlive it and all rows that it gave.
  explicit DaemonNear(Holder* holder) : holder_(holder) {}

  // Sets who makes copies, and null before it goes away; waits for a copy that is being made.
  void SetKeeper(ReplicaKeeper* keeper) ABSL_LOCKS_EXCLUDED(mu_);

  std::shared_ptr<const NearRows> Find(const Corpus& corpus, uint32_t chunk) override;
  absl::Status Copy(const std::shared_ptr<const Corpus>& corpus,
                    const std::vector<uint32_t>& chunks, Instant deadline) override;

 private:
  Holder* const holder_;
  absl::Mutex mu_;
  ReplicaKeeper* keeper_ ABSL_GUARDED_BY(mu_) = nullptr;
  uint32_t copying_ ABSL_GUARDED_BY(mu_) = 0;  // copies that are being made
};

// The file of `ready_file`, if one is named. Prepare removes what an earlier life left and checks
// that a file can be written, before the process registers. Both leave links, devices and pipes.
//   FailedPrecondition, Unavailable  as OutputFile::Check.
absl::Status PrepareReadyFile(const std::string& path);
void RemoveReadyFile(const std::string& path);

// Keeps what the directory says of a holder's chunks, beside them, and reports it to a directory
// that lost it.
class DaemonPlacement {
 public:
  // Opens the parts in store.path. `local` is the directory of this process, used if the config
  // names no other. `holder`, `clock` and `local` must outlive it.
  //   Errors of CorpusParts::Open.
  static absl::StatusOr<std::unique_ptr<DaemonPlacement>> Start(const Config& config, Clock* clock,
                                                                DirectoryState* local,
                                                                Holder* holder);
  PlacementKeeper& keeper() { return *keeper_; }

 private:
  DaemonPlacement() = default;
  std::unique_ptr<CorpusParts> parts_;
  std::unique_ptr<PlacementSource> source_;
  std::unique_ptr<PlacementKeeper> keeper_;  // last, because its thread uses the others
};

// Checks and repairs a holder's store while this lives.
class DaemonScrub {
 public:
  // `address` is where peers reach this holder, `directory` where this process reaches the
  // directory. `holder` must outlive it.
  DaemonScrub(const Config& config, Clock* clock, Holder* holder, const std::string& address,
              const std::string& directory);

 private:
  RepairStub source_;
  Repairer repairer_;
  Scrubber scrubber_;
};

}  // namespace ckv
