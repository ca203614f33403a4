// Makes the parts that daemon.cc connects, in its order: sockets and fabrics, the span writer, the
// directory, the options of holder, requester and registration, the web server, the oracle, the
// profile. Then the classes that tie a holder to a requester of the same process: DaemonReplicas,
// DaemonLocalRows, DaemonPlacement, DaemonCopies, DaemonScrub.

#include "server/daemon/daemon_parts.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cost/oracle_file.h"
#include "client/grpc/oracle_stub.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/base/version.h"
#include "server/daemon/server_probe_stub.h"
#include "server/directory/directory_registrar_stub.h"
#include "server/directory/etcd/etcd_directory.h"
#include "server/upkeep/placement_stub.h"
#include "server/upkeep/replica_stub.h"
#include "store/formats/output_file.h"
#include "transport/verbs/verbs_fabric.h"

namespace ckv {
namespace {

// Binds a socket to the first address of `address`.
absl::StatusOr<UniqueFd> Bind(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const char* host = address.host == "*" ? nullptr : address.host.c_str();
  if (const int error = getaddrinfo(host, port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(gai_strerror(error));
  }
  UniqueFd fd(socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0));
  const int one = 1;  // as gRPC does, or an address left a moment ago would look taken
  if (fd.valid()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  const bool bound = fd.valid() && bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (!bound) return absl::UnavailableError(std::strerror(error));
  return fd;
}

VerbsOptions VerbsOptionsOf(const Config& config) {
  VerbsOptions options;
  options.device = config.verbs_device;
  options.port = static_cast<uint8_t>(config.verbs_port);
  options.gid_index =
      config.verbs_gid_index == kVerbsGidIndexAuto ? -1 : static_cast<int>(config.verbs_gid_index);
  options.mtu_bytes = config.verbs_mtu;
  options.timeout = static_cast<uint8_t>(config.verbs_timeout);
  options.retry_count = static_cast<uint8_t>(config.verbs_retry_count);
  return options;
}

Member SelfOf(const Config& config, const std::string& address) {
  return {
      .id = {config.name}, .role = MemberRole::kHolder, .control_address = address, .epoch = {}};
}

RepairerOptions RepairsOf(const Config& config, Clock* clock) {
  RepairerOptions options;
  options.name = config.name;
  options.clock = clock;
  return options;
}

ScrubberOptions ScrubOf(const Config& config, Clock* clock) {
  ScrubberOptions options;
  options.name = config.name;
  options.clock = clock;
  options.bytes_per_second = config.store_scrub_bytes_per_second;
  options.seed = std::random_device()();
  return options;
}

CopyMakerOptions CopiesOf(const Config& config, Clock* clock) {
  CopyMakerOptions options;
  options.name = config.name;
  options.clock = clock;
  options.bytes_per_second = config.repair_bytes_per_second;
  options.flow_count = config.repair_flow_count;
  return options;
}

PagePolicy PagesOf(const Config& config) {
  if (config.store_pages == "reserved") return PagePolicy::kReserved;
  return config.store_pages == "small" ? PagePolicy::kSmall : PagePolicy::kAuto;
}

// Returns null if no oracle is configured.
std::unique_ptr<OracleSource> OracleSourceOf(const Config& config) {
  if (!config.oracle_file.empty()) return std::make_unique<OracleFile>(config.oracle_file);
  if (!config.oracle_address.empty()) return std::make_unique<OracleStub>(config.oracle_address);
  return nullptr;
}

std::string OracleHostOf(const Config& config) {
  if (!config.oracle_host.empty()) return config.oracle_host;
  return HostOfAddress(config.advertise.empty() ? config.listen : config.advertise);
}

}  // namespace

absl::StatusOr<UniqueFd> BindPort(HostPort& address) {
  auto fd = Bind(address);
  sockaddr_storage bound{};
  socklen_t bytes = sizeof(bound);
  char port[NI_MAXSERV];
  if (fd.ok() && (getsockname(fd->get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0 ||
                  getnameinfo(reinterpret_cast<sockaddr*>(&bound), bytes, nullptr, 0, port,
                              sizeof(port), NI_NUMERICSERV) != 0)) {
    fd = absl::UnavailableError(std::strerror(errno));
  }
  if (!fd.ok()) {
    return absl::UnavailableError(
        absl::StrFormat("cannot listen on %s: %s; choose another by --listen", address.ToString(),
                        std::string(fd.status().message())));
  }
  address.port = static_cast<uint16_t>(std::strtoul(port, nullptr, 10));
  return fd;
}

absl::Status CannotListen(const std::string& address, const absl::Status& why) {
  return absl::UnavailableError(absl::StrFormat(
      "cannot listen on %s: %s; choose another by --listen (port 0 takes a free one)", address,
      std::string(why.message())));
}

absl::StatusOr<std::unique_ptr<Fabric>> MakeFabric(FabricKind kind, const Config& config,
                                                   Clock* clock) {
  switch (kind) {
    case FabricKind::kShm:
      return NewShmFabric(clock);
    case FabricKind::kTcp:
      return NewTcpFabric(clock, TcpOptions{.busy_poll_us = config.tcp_busy_poll_us});
    case FabricKind::kLoopback:
      return NewLoopbackFabric(clock);
    case FabricKind::kVerbs: {
      auto fabric = NewVerbsFabric(VerbsOptionsOf(config), clock);
      if (!fabric.ok()) return Annotate(fabric.status(), "fabrics: verbs");
      return std::unique_ptr<Fabric>(*std::move(fabric));
    }
  }
  return absl::InvalidArgumentError("fabrics: one that this build does not support");
}

absl::StatusOr<std::unique_ptr<SpanWriter>> StartSpans(const Config& config, Clock* clock) {
  if (config.trace_path.empty()) return nullptr;
  SpanWriterOptions options;
  options.path = config.trace_path;
  options.file_bytes_max = config.trace_file_bytes_max;
  options.resource = {config.name, absl::StrJoin(config.role, "+"), std::string(Version())};
  options.clock = clock;
  return SpanWriter::Start(std::move(options));
}

absl::StatusOr<std::unique_ptr<DurableDirectory>> OpenDirectory(const Config& config, Clock* clock,
                                                                FileSystem* files,
                                                                ReplayProgress* replay) {
  DirectoryOptions options;
  options.clock = clock;
  options.lease_ttl = config.lease_ttl;
  options.first_epoch = WallClockMilliseconds();
  options.rebuild_grace = 3 * config.lease_ttl;
  options.loss_after = config.repair_loss_after;
  options.expiry_grace = config.directory_expiry_grace;
  options.copy_hot_chunks = config.repair_copy_hot_chunks == "on";
  options.fill_new_holders = config.repair_fill_new_holders == "on";
  if (!config.directory_store.empty()) {
    options.lease_ttl_min = EtcdDirectory::kLeaseTtlMin;
    options.lease_ttl = std::max(options.lease_ttl, options.lease_ttl_min);
    return DurableDirectory::OpenShared(options, config.directory_store);
  }
  ChangeLogOptions log;
  log.path = config.directory_path;
  log.clock = clock;
  log.progress = replay;
  if (files != nullptr) log.files = files;
  return DurableDirectory::Open(options, log);
}

std::unique_ptr<DirectoryRegistrar> MakeRegistrar(const Config& config, Clock* clock,
                                                  DirectoryState* local, MemberRole role) {
  const bool reports_parts = role == MemberRole::kHolder;
  if (config.directory.empty()) return std::make_unique<LocalRegistrar>(local, reports_parts);
  return std::make_unique<DirectoryRegistrarStub>(config.directory, clock, reports_parts);
}

absl::StatusOr<HolderOptions> HolderOptionsOf(const Config& config) {
  HolderOptions options;
  options.id = {config.name};
  options.capacity_bytes = config.store_capacity_bytes;
  options.chunk_count_max = config.store_chunk_count_max;
  options.store_path = config.store_path;
  options.pages = PagesOf(config);
  options.shadow_bytes_max = config.store_capacity_bytes / 100 * config.store_shadow_percent;
  options.stripe_bytes_max = config.store_capacity_bytes / 100 * config.store_stripe_percent;
  options.compute_threads = config.compute_threads;
  options.listen.tcp_address = config.data_listen;
  CKV_ASSIGN_OR_RETURN(const HostPort data, HostPort::Parse(config.data_listen));
  if (data.IsWildcard()) {
    const std::string& seen = config.advertise.empty() ? config.listen : config.advertise;
    CKV_ASSIGN_OR_RETURN(HostPort advertised, HostPort::Parse(seen));
    advertised.port = 0;  // as bound
    options.listen.tcp_advertise = advertised.ToString();
  }
  options.session_count_max = config.session_count_max;
  options.batch_request_count_max = config.batch_request_count_max;
  options.queue_request_count_max = config.queue_request_count_max;
  if (config.store_map_bytes_max != 0) options.map_bytes_max = config.store_map_bytes_max;
  options.spin_max = std::chrono::microseconds(config.spin_us);
  return options;
}

absl::StatusOr<RequesterOptions> RequesterOptionsOf(const Config& config) {
  RequesterOptions options;
  options.id = config.name;
  if (config.fabric != "auto") {
    CKV_ASSIGN_OR_RETURN(options.fabric, ParseFabricName(config.fabric));
  }
  options.rdma_fallback =
      config.rdma_fallback == "tcp" ? RdmaFallback::kTcp : RdmaFallback::kRefuse;
  options.lane_shape = LaneShapeOf(config);
  options.call_count_max = config.call_count_max;
  options.local_cache_bytes = LocalRowBytesOf(config);
  options.spin_max = std::chrono::microseconds(config.spin_us);
  return options;
}

RegistrationOptions RegistrationOptionsOf(const Config& config, MemberRole role, Clock* clock) {
  RegistrationOptions options;
  options.member.id.name = config.name;
  // A name is one lease: of two roles in one process the requester takes another.
  if (role == MemberRole::kRequester && config.HasRole("holder"))
    options.member.id.name += ".requester";
  options.member.role = role;
  options.member.domain = {config.label_host, config.label_rack, config.label_zone};
  options.ttl = config.lease_ttl;
  options.clock = clock;
  return options;
}

namespace {

class ServerMemberProbe final : public MemberProbe {
 public:
  explicit ServerMemberProbe(const std::string& address)
      : probe_(address, ServerProbe::Connection::kNew) {}
  void Send() override { probe_.Send(); }
  uint64_t answer_count() const override { return probe_.answer_count(); }

 private:
  ServerProbe probe_;
};

}  // namespace

std::unique_ptr<MemberProbe> ProbeServer(const std::string& address) {
  return std::make_unique<ServerMemberProbe>(address);
}

WatchOptions WatchOptionsOf(const Config& config, Clock* clock, const std::string& local) {
  WatchOptions options;
  options.addresses = config.directory.empty() ? local : config.directory;
  options.all_tenants = true;  // the requester keeps corpora of all of them
  options.clock = clock;
  return options;
}

absl::StatusOr<std::unique_ptr<WebServer>> StartWeb(const std::string& address, Clock* clock) {
  absl::StatusOr<std::unique_ptr<WebServer>> started = WebServer::Start(address, clock);
  if (started.ok()) return started;
  return absl::UnavailableError(
      absl::StrFormat("cannot serve metrics: %s; choose another address by --metrics-address",
                      std::string(started.status().message())));
}

uint64_t LocalRowBytesOf(const Config& config) {
  if (!config.HasRole("holder")) return config.requester_local_cache_bytes;
  return std::min(config.requester_local_cache_bytes, config.store_capacity_bytes / 4);
}

absl::StatusOr<std::unique_ptr<NetworkOracle>> StartOracle(const Config& config, Clock* clock) {
  std::unique_ptr<OracleSource> source = OracleSourceOf(config);
  if (source == nullptr) return std::unique_ptr<NetworkOracle>();
  NetworkOracleOptions options;
  options.clock = clock;
  options.requester_host = OracleHostOf(config);
  auto oracle = std::make_unique<NetworkOracle>(std::move(source), std::move(options));
  if (!config.oracle_file.empty()) {
    if (const absl::Status status = oracle->Refresh(); !status.ok())
      return Annotate(status, "oracle.file");
  }
  oracle->Start();
  return oracle;
}

absl::StatusOr<std::unique_ptr<NetworkOracles>> StartOracles(const Config& config, Clock* clock) {
  std::unique_ptr<OracleSource> source = OracleSourceOf(config);
  if (source == nullptr) return std::unique_ptr<NetworkOracles>();
  NetworkOracleOptions options;
  options.clock = clock;
  if (!config.oracle_file.empty()) {
    const auto read =
        source->Read(OracleHostOf(config), {}, *clock, clock->Now() + options.timeout);
    // The directory's own host need not be in the file.
    if (absl::IsInvalidArgument(read.status())) return Annotate(read.status(), "oracle.file");
  }
  auto oracles = std::make_unique<NetworkOracles>(std::move(source), options);
  oracles->Start();
  return oracles;
}

absl::StatusOr<std::shared_ptr<const Profile>> LoadProfile(const Config& config) {
  if (config.requester_profile.empty()) return std::shared_ptr<const Profile>();
  auto profile = ReadProfile(config.requester_profile);
  if (!profile.ok()) return Annotate(profile.status(), "requester.profile");
  return std::make_shared<const Profile>(*std::move(profile));
}

DaemonReplicas::DaemonReplicas(const Config& config, Clock* clock, DirectoryState* local,
                               DirectoryControl* directory, Requester* requester, Holder* holder)
    : infos_(std::make_unique<ChunkInfoStub>(clock)) {
  if (config.directory.empty()) {
    registry_ = std::make_unique<LocalReplicaRegistry>(local);
  } else {
    registry_ = std::make_unique<ReplicaRegistryStub>(config.directory, clock);
  }
  ReplicaKeeperOptions options;
  options.self = {config.name};
  options.clock = clock;
  options.replica_bytes_max = config.store_capacity_bytes / 100 * config.replicas_percent;
  keeper_ =
      std::make_unique<ReplicaKeeper>(options, directory, infos_.get(), registry_.get(), requester,
                                      &holder->store(), [this] { return Lease(); });
}

void DaemonReplicas::SetRegistration(const Registration* registration) {
  absl::MutexLock lock(&mu_);
  registration_ = registration;
}

// The registration's own lock is taken under this one, so that it is not destroyed meanwhile.
std::optional<LeaseGrant> DaemonReplicas::Lease() {
  absl::MutexLock lock(&mu_);
  if (registration_ == nullptr) return std::nullopt;
  return registration_->report().lease;
}

namespace {

// Rows of a holder's store, as long as they are pinned.
class PinnedRows final : public LocalRows {
 public:
  PinnedRows(const ChunkTable* table, ChunkLocator locator, ChunkPin pin)
      : table_(table), locator_(locator), pin_(std::move(pin)) {}
  std::span<const std::byte> tensor(uint32_t t) const override { return pin_.chunk().tensor(t); }
  bool current() const override { return table_->IsHot(locator_); }

 private:
  const ChunkTable* const table_;
  const ChunkLocator locator_;
  const ChunkPin pin_;
};

}  // namespace

void DaemonLocalRows::SetKeeper(ReplicaKeeper* keeper) {
  absl::MutexLock lock(&mu_);
  keeper_ = keeper;
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return copying_ == 0; };
  mu_.Await(absl::Condition(&idle));
}

std::shared_ptr<const LocalRows> DaemonLocalRows::Find(const Corpus& corpus, uint32_t chunk) {
  const ChunkTable& table = holder_->table();
  const auto locator = table.Find(corpus.chunks[chunk].id, corpus.geometry, corpus.tenant);
  if (!locator.ok()) return nullptr;
  auto pin = table.Pin(*locator);
  if (!pin.ok()) return nullptr;
  return std::make_shared<const PinnedRows>(&table, *locator, *std::move(pin));
}

absl::Status DaemonLocalRows::Copy(const std::shared_ptr<const Corpus>& corpus,
                                   const std::vector<uint32_t>& chunks, Instant deadline) {
  ReplicaKeeper* keeper = nullptr;
  {
    absl::MutexLock lock(&mu_);
    keeper = keeper_;
    if (keeper == nullptr) return absl::UnavailableError("the daemon is stopping");
    ++copying_;
  }
  absl::Status status = keeper->Replicate({corpus, chunks, deadline}).status();
  absl::MutexLock lock(&mu_);
  --copying_;
  return status;
}

absl::StatusOr<std::unique_ptr<DaemonPlacement>> DaemonPlacement::Start(const Config& config,
                                                                        Clock* clock,
                                                                        DirectoryState* local,
                                                                        Holder* holder) {
  std::unique_ptr<DaemonPlacement> placement(new DaemonPlacement);
  std::string damaged;
  CKV_ASSIGN_OR_RETURN(placement->parts_,
                       CorpusParts::Open(FileSystem::Real(), config.store_path, &damaged));
  if (!damaged.empty()) Log().warn("{}: it is read from the directory again", damaged);
  if (config.directory.empty()) {
    placement->source_ = std::make_unique<LocalPlacementSource>(local);
  } else {
    placement->source_ = std::make_unique<PlacementStub>(config.directory, clock);
  }
  PlacementKeeperOptions options;
  options.self = {config.name};
  options.clock = clock;
  options.drop_after = config.repair_drop_after;
  placement->keeper_ = std::make_unique<PlacementKeeper>(
      options, placement->source_.get(), placement->parts_.get(),
      PlacedChunks{.has = [holder](const ChunkId& id) { return holder->table().Contains(id); },
                   .change_count = [holder] { return holder->table().change_count(); },
                   .drop =
                       [holder](const ChunkId& id, Duration idle_min) {
                         return holder->store().Drop(id, {.not_kept = true, .idle_min = idle_min});
                       }});
  return placement;
}

DaemonCopies::DaemonCopies(const Config& config, Clock* clock, DirectoryState* local,
                           Holder* holder)
    : source_(config.directory, local, clock),
      maker_(CopiesOf(config, clock), &holder->store(), &source_) {}

DaemonScrub::DaemonScrub(const Config& config, Clock* clock, Holder* holder,
                         const std::string& address, const std::string& directory)
    : source_(SelfOf(config, address), directory, clock),
      repairer_(
          RepairsOf(config, clock), &holder->store(), &source_,
          [holder, clock] { return holder->lease().LiveAt(clock->Now()); },
          &holder->scrub_counters()),
      scrubber_(ScrubOf(config, clock), &holder->store(), &holder->scrub_counters()) {}

absl::Status PrepareReadyFile(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  RemoveReadyFile(path);
  return Annotate(OutputFile::Check(path), "ready_file");
}

void RemoveReadyFile(const std::string& path) {
  struct stat found = {};
  if (lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode)) unlink(path.c_str());
}

}  // namespace ckv
