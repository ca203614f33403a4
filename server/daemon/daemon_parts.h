// Creates the parts of a daemon, each from its options.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/context/local_rows.h"
#include "client/cost/network_oracle.h"
#include "client/cost/profile_file.h"
#include "client/grpc/watch_stub.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/base/host_port.h"
#include "server/daemon/config.h"
#include "server/directory/durable_directory.h"
#include "server/directory/ranking/network_oracles.h"
#include "server/directory/registration.h"
#include "server/health/member_probes.h"
#include "server/holder/holder.h"
#include "server/telemetry/span_writer.h"
#include "server/upkeep/copy_maker.h"
#include "server/upkeep/copy_stub.h"
#include "server/upkeep/placement_keeper.h"
#include "server/upkeep/repair_stub.h"
#include "server/upkeep/repairer.h"
#include "server/upkeep/replica_keeper.h"
#include "server/upkeep/scrubber.h"
#include "server/web/web_server.h"
#include "transport/control.h"
#include "transport/fabric.h"
#include "transport/socket.h"

namespace ckv {

// Reserves a port of this host before its server exists, and sets `address.port` to the port bound.
// While the socket is open, no process that requests any free port gets this one, and the server
// can still listen on it.
//   Unavailable         the message has the reason, and names --listen.
absl::StatusOr<UniqueFd> BindPort(HostPort& address);
// Returns the error for a daemon that cannot listen on config.listen, with a remedy.
absl::Status CannotListen(const std::string& address, const absl::Status& why);

// Creates a fabric. `clock` must outlive the fabric and its lanes.
//   Errors of CheckVerbs, for verbs; each includes a remedy.
absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(FabricKind kind, const Config& config,
                                                   Clock* clock);

// Starts the writer of spans, or returns null if the config wants none. `clock` must outlive it.
//   InvalidArgument     trace.path cannot be opened.
absl::StatusOr<std::unique_ptr<SpanWriter>> StartSpans(const Config& config, Clock* clock);

// Opens the directory that runs in this process. `files` must outlive it; null selects the real
// file system. `replay` may be null.
//   Errors of DurableDirectory::Open.
absl::StatusOr<std::unique_ptr<DurableDirectory>> OpenDirectory(const Config& config, Clock* clock,
                                                                FileSystem* files,
                                                                ReplayProgress* replay);

// Creates the registrar of a member with this role. If the config names no directory, it uses
// `local`, the directory of this process. `local` and `clock` must outlive it.
std::unique_ptr<DirectoryRegistrar> MakeRegistrar(const Config& config, Clock* clock,
                                                  DirectoryState* local, MemberRole role);

// Returns a member's registration options from the config. The caller sets the address and the
// kernel target.
RegistrationOptions RegistrationOptionsOf(const Config& config, MemberRole role, Clock* clock);

// Returns a holder's options from the config. The caller sets the clock, the backend and the
// fabrics.
//   InvalidArgument     an address that is not host:port.
absl::StatusOr<HolderOptions> HolderOptionsOf(const Config& config);

// Returns a requester's options from the config. The caller sets the clock, the backend, the
// fabrics and the rest.
//   InvalidArgument     an unknown fabric name.
absl::StatusOr<RequesterOptions> RequesterOptionsOf(const Config& config);

// Creates the probe with which a directory checks that a member answers.
std::unique_ptr<MemberProbe> ProbeServer(const std::string& address);

// Returns the options of a requester's watch from the config. `local` is where this process reaches
// its own server, which is the directory if the config names no other.
WatchOptions WatchOptionsOf(const Config& config, Clock* clock, const std::string& local);

// Returns the capacity of the requester's local row cache, in bytes. If the process is also a
// holder, it is at most a quarter of store.capacity, as for copies. The holder's chunks that the
// cache uses cannot be evicted there.
uint64_t LocalRowBytesOf(const Config& config);

// Listens at host:port for metrics scrapes, probes and browsers.
//   Unavailable         the message has the reason, and names --metrics-address.
absl::StatusOr<std::unique_ptr<WebServer>> StartWeb(const std::string& address, Clock* clock);

// Starts the oracle of oracle.file or oracle.address. Returns null if neither is set. A file is
// read first, so that an invalid one is found at once. A service may start later.
//   InvalidArgument, NotFound, Unavailable  as reading the file; begins with "oracle.file: ".
absl::StatusOr<std::unique_ptr<NetworkOracle>> StartOracle(const Config& config, Clock* clock);
// The same for a directory, which ranks on behalf of every host. Returns null if there is none.
//   InvalidArgument     the file is malformed; begins with "oracle.file: ".
absl::StatusOr<std::unique_ptr<NetworkOracles>> StartOracles(const Config& config, Clock* clock);

// Reads the profile of requester.profile. Returns null if that is not set.
//   NotFound, InvalidArgument  as ReadProfile; begins with "requester.profile: ".
absl::StatusOr<std::shared_ptr<const Profile>> LoadProfile(const Config& config);

// The replica keeper of a daemon that is both holder and requester. Thread-safe.
class DaemonReplicas {
 public:
  // `local` is the directory of this process, used if the config names no other. All arguments must
  // outlive this object.
  DaemonReplicas(const Config& config, Clock* clock, DirectoryState* local,
                 DirectoryControl* directory, Requester* requester, Holder* holder);

  // Sets the holder's registration once it exists. Set null before it is destroyed.
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

// Gives the requester of this process the chunks of its holder as local rows, without a copy. A
// prefetch becomes a copy at the holder, which announces it.
class DaemonLocalRows final : public LocalRowSource {
 public:
  // `holder` must outlive this object and all rows that it returned.
  explicit DaemonLocalRows(Holder* holder) : holder_(holder) {}

  // Sets the keeper that makes copies. Set null before it is destroyed. Waits for copies in
  // progress.
  void SetKeeper(ReplicaKeeper* keeper) ABSL_LOCKS_EXCLUDED(mu_);

  std::shared_ptr<const LocalRows> Find(const Corpus& corpus, uint32_t chunk) override;
  absl::Status Copy(const std::shared_ptr<const Corpus>& corpus,
                    const std::vector<uint32_t>& chunks, Instant deadline) override;

 private:
  Holder* const holder_;
  absl::Mutex mu_;
  ReplicaKeeper* keeper_ ABSL_GUARDED_BY(mu_) = nullptr;
  uint32_t copying_ ABSL_GUARDED_BY(mu_) = 0;  // copies in progress
};

// The file of `ready_file`, if one is named. Prepare removes the file of an earlier incarnation,
// and checks before the process registers that the file can be written. Neither function removes
// links, devices or pipes.
//   FailedPrecondition, Unavailable  as OutputFile::Check.
absl::Status PrepareReadyFile(const std::string& path);
void RemoveReadyFile(const std::string& path);

// Stores a holder's corpus parts next to its chunks, and reports them to a directory that has lost
// them.
class DaemonPlacement {
 public:
  // Opens the parts in store.path. `local` is the directory of this process, used if the config
  // names no other. `holder`, `clock` and `local` must outlive the result.
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

// Makes the copies that the directory orders from a holder.
class DaemonCopies {
 public:
  // `local` is the directory of this process, used if the config names no other. All must outlive
  // this object.
  DaemonCopies(const Config& config, Clock* clock, DirectoryState* local, Holder* holder);
  CopyMaker& maker() { return maker_; }

 private:
  CopyStub source_;
  CopyMaker maker_;
};

// Checks and repairs a holder's store while this object exists.
class DaemonScrub {
 public:
  // `address` is where peers reach this holder. `directory` is where this process reaches the
  // directory. `holder` and `clock` must outlive this object.
  DaemonScrub(const Config& config, Clock* clock, Holder* holder, const std::string& address,
              const std::string& directory);

 private:
  RepairStub source_;
  Repairer repairer_;
  Scrubber scrubber_;
};

}  // namespace ckv
