#include "server/daemon/daemon.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "attention/backend.h"
#include "attention/device/backend_library.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/channel_watch.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/grpc_log.h"
#include "client/grpc/holder_stub.h"
#include "client/grpc/watch_stub.h"
#include "client/requester.h"
#include "proto/base/host_port.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/base/version.h"
#include "server/daemon/daemon_parts.h"
#include "server/daemon/kernel_start.h"
#include "server/daemon/live_parts.h"
#include "server/daemon/process_facts.h"
#include "server/directory/local_directory.h"
#include "server/directory/registration.h"
#include "server/edge/server_limits.h"
#include "server/edge/service_gate.h"
#include "server/edge/trace_interceptor.h"
#include "server/health/daemon_health.h"
#include "server/holder/chunk_expirer.h"
#include "server/holder/holder.h"
#include "server/listen/control_acceptor.h"
#include "server/services/directory_service.h"
#include "server/services/holder_service.h"
#include "server/services/requester_service.h"
#include "server/services/store_service.h"
#include "server/telemetry/trace_sampler.h"
#include "store/formats/output_file.h"
#include "transport/fabric.h"
#include "transport/socket.h"

namespace ckv {
namespace {

// A connection whose client is idle does not close by itself, so every drain may take this long.
constexpr Duration kReplyGrace = std::chrono::milliseconds(300);
// A drain ends the streams whose peers take nothing for this time, or at most twice as long.
constexpr Duration kStuckPeerMax = std::chrono::seconds(1);

}  // namespace

// In order of construction; destroyed in reverse.
struct Daemon::State {
  State(const Config& config_in, FileSystem* files, ReplayProgress* progress)
      : config(config_in),
        store_files(files),
        replay(progress),
        gate(config_in.rpc_thread_count_max / 2),
        sampler(config_in.trace_sample_one_in) {}

  // Gives the process the name that it was not given.
  absl::Status Name();
  absl::Status StartRoles();
  absl::Status StartHolder();
  absl::Status StartRequester();
  absl::Status StartServer();
  void StartRegistrations();
  void StartMembers();
  absl::Status ListenForPages();
  void ServePages();
  MemberRole MainRole() const { return holder ? MemberRole::kHolder : MemberRole::kRequester; }
  bool HearsDirectory() const { return directory_connected.load(std::memory_order_relaxed); }
  ProcessFacts Process() const { return ProcessFactsOf(*clock, started); }
  // The directory's address for peers; its own once it listens. From any thread.
  std::string DirectoryAddress() {
    if (!config.directory.empty()) return config.directory;
    absl::MutexLock lock(&published_mu);
    return published_address;
  }
  void AddRegistration(MemberRole role, LeaseGate* lease);
  void SetHealth(const char* service, bool serving, bool& was);

  Config config;
  FileSystem* const store_files;
  ReplayProgress* const replay;  // used by the start
  Clock* const clock = Clock::Real();
  DaemonBackends backends;
  ServiceGate gate;
  TraceSampler sampler;
  std::unique_ptr<SpanWriter> spans;  // null if none are written
  std::vector<std::unique_ptr<Fabric>> fabrics;
  std::vector<Fabric*> fabric_order;

  std::unique_ptr<DurableDirectory> directory_home;
  DirectoryState* directory = nullptr;  // its state
  std::unique_ptr<DirectoryServiceImpl> directory_service;

  std::unique_ptr<Holder> holder;
  std::unique_ptr<ChunkExpirer> expirer;
  std::unique_ptr<DaemonPlacement> placement;
  std::unique_ptr<HolderServiceImpl> holder_service;
  std::unique_ptr<StoreServiceImpl> store_service;
  std::unique_ptr<DaemonHealth> health;  // set before the server serves

  std::unique_ptr<DirectoryControl> directory_control;
  std::unique_ptr<HolderStubFactory> holder_stubs;
  std::unique_ptr<NetworkOracle> oracle;   // null if the requester has none
  std::shared_ptr<const Profile> profile;  // null if there is none
  std::unique_ptr<DaemonNear> near;        // set if a holder is a requester, too
  std::unique_ptr<Requester> requester;
  std::unique_ptr<DaemonReplicas> replicas;  // set if a holder is a requester, too
  std::unique_ptr<RequesterServiceImpl> requester_service;

  UniqueFd held_port;  // keeps the port of config.listen until the server has it
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<ControlAcceptor> acceptor;  // hands connections to `server`
  // Read only by the thread that starts the daemon: calls are served before these are known.
  std::string address;        // as peers get it
  std::string local_address;  // as this process reaches it
  // Guards published_address, which calls may read meanwhile.
  absl::Mutex published_mu;
  std::string published_address ABSL_GUARDED_BY(published_mu);
  std::atomic<bool> directory_connected{false};  // a hint for people; orders nothing
  bool holder_serving = false;
  bool requester_serving = false;
  bool directory_serving = false;
  bool whole_serving = false;

  std::vector<std::unique_ptr<DirectoryRegistrar>> registrars;
  std::vector<std::unique_ptr<Registration>> registrations;
  std::unique_ptr<ChannelWatch> directory_channel;  // null if the directory is of this process
  std::unique_ptr<WatchStub> watch;
  std::unique_ptr<DaemonScrub> scrub;  // set on a holder
  std::unique_ptr<WebServer> web;
  std::string metrics_address;  // as bound
  const Instant started = clock->Now();
  bool ready = false;
  bool drained = false;
};

absl::Status Daemon::State::Name() {
  FillConfig(config);
  if (!config.name.empty()) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(HostPort listen, HostPort::Parse(config.listen));
  CKV_ASSIGN_OR_RETURN(held_port, BindPort(listen));
  config.listen = listen.ToString();
  FillConfig(config);
  return absl::OkStatus();
}

absl::Status Daemon::State::StartRoles() {
  CKV_ASSIGN_OR_RETURN(spans, StartSpans(config, clock));
  // A directory has no lanes. Its host may list fabrics for others, whose device it does not see.
  const bool has_lanes = config.HasRole("holder") || config.HasRole("requester");
  for (const std::string& name : has_lanes ? config.fabrics : std::vector<std::string>()) {
    CKV_ASSIGN_OR_RETURN(const FabricKind kind, ParseFabricName(name));
    CKV_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric, MakeFabric(kind, config, clock));
    fabrics.push_back(std::move(fabric));
    fabric_order.push_back(fabrics.back().get());
  }
  if (config.HasRole("directory")) {
    CKV_ASSIGN_OR_RETURN(directory_home, OpenDirectory(config, clock, store_files, replay));
    directory = &directory_home->state();
    directory_service =
        std::make_unique<DirectoryServiceImpl>(directory, &gate, clock, directory_home.get());
    directory_service->TellProcess([this] { return Process(); });
    directory_service->TellFacts([this] { return health->Facts(); });
  }
  if (config.HasRole("holder")) CKV_RETURN_IF_ERROR(StartHolder());
  if (config.HasRole("requester")) CKV_RETURN_IF_ERROR(StartRequester());
  health = std::make_unique<DaemonHealth>(HealthParts{
      config.name, config.listen, config.store_path, clock, directory_home.get(), holder.get(),
      placement ? &placement->keeper() : nullptr, requester.get(), ProbeServer,
      [this] { return HearsDirectory(); }, [this] { return DirectoryAddress(); }});
  return absl::OkStatus();
}

absl::Status Daemon::State::StartHolder() {
  CKV_ASSIGN_OR_RETURN(HolderOptions options, HolderOptionsOf(config));
  options.clock = clock;
  options.fabrics = fabric_order;
  options.store_files = store_files;
  options.spans = spans.get();
  CKV_ASSIGN_OR_RETURN(holder, StartHolderOver(backends, config, options));
  expirer = std::make_unique<ChunkExpirer>(&holder->store());
  CKV_ASSIGN_OR_RETURN(placement, DaemonPlacement::Start(config, clock, directory, holder.get()));
  holder_service = std::make_unique<HolderServiceImpl>(holder.get(), config.name, &gate, clock);
  holder_service->TellProcess([this] { return Process(); });
  store_service = std::make_unique<StoreServiceImpl>(
      holder.get(), config.store_path, &gate, clock,
      [this](Instant deadline) { return placement->keeper().KeepNow(deadline); });
  holder_service->TellHealth([this] { return health->OfRole(MemberRole::kHolder); });
  return absl::OkStatus();
}

absl::Status Daemon::State::StartRequester() {
  CKV_ASSIGN_OR_RETURN(RequesterOptions options, RequesterOptionsOf(config));
  options.clock = clock;
  options.backend = backends.requester;
  options.fabrics = fabric_order;
  if (holder != nullptr) near = std::make_unique<DaemonNear>(holder.get());
  options.near_source = near.get();
  if (config.directory.empty()) {
    directory_control = std::make_unique<LocalDirectory>(directory);
  } else {
    directory_control = std::make_unique<DirectoryStub>(config.directory, clock);
  }
  holder_stubs = std::make_unique<HolderStubFactory>(clock);
  CKV_ASSIGN_OR_RETURN(oracle, StartOracle(config, clock));
  options.oracle = oracle.get();
  options.profile = profile;
  options.spans = spans.get();
  CKV_ASSIGN_OR_RETURN(requester,
                       Requester::Create(options, directory_control.get(), holder_stubs.get()));
  RequesterServiceOptions service;
  if (holder != nullptr) {
    replicas = std::make_unique<DaemonReplicas>(config, clock, directory, directory_control.get(),
                                                requester.get(), holder.get());
    holder_service->OnPut([this](const ChunkId& id) { replicas->keeper().Adopt(id); });
    service.replicas = &replicas->keeper();
    near->SetKeeper(&replicas->keeper());
  }
  service.id = config.name;
  service.directory_address = [this] { return DirectoryAddress(); };
  service.version = std::string(Version());
  service.process = [this] { return Process(); };
  service.sample_trace = [this] { return sampler.Sample(); };
  service.clock = clock;
  service.default_timeout = config.default_timeout;
  service.spin_max = options.spin_max;
  service.directory_connected = [this] { return HearsDirectory(); };
  requester_service =
      std::make_unique<RequesterServiceImpl>(std::move(service), requester.get(), &gate);
  return absl::OkStatus();
}

absl::Status Daemon::State::StartServer() {
  grpc::EnableDefaultHealthCheckService(true);
  KeepGrpcUp();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  CKV_ASSIGN_OR_RETURN(HostPort local, HostPort::Parse(config.listen));
  auto listening = ControlAcceptor::Listen(local, builder);
  if (!listening.ok()) return CannotListen(config.listen, listening.status());
  acceptor = *std::move(listening);
  const bool holder_only = directory == nullptr && requester == nullptr;
  const int message_bytes_max = holder_only ? kHolderMessageBytesMax : kMessageBytesMax;
  SetServerLimits(message_bytes_max, config.rpc_thread_count_max, builder);
  builder.experimental().SetInterceptorCreators(
      TraceInterceptors([this] { return sampler.Sample(); }, spans.get(), clock));
  if (directory_service) builder.RegisterService(directory_service.get());
  if (holder_service) builder.RegisterService(holder_service.get());
  if (store_service) builder.RegisterService(store_service.get());
  if (requester_service) builder.RegisterService(requester_service.get());
  server = builder.BuildAndStart();
  if (server == nullptr) return absl::ResourceExhaustedError("gRPC's server did not start");
  held_port.Reset();
  acceptor->Start();
  local.port = acceptor->port();
  HostPort told = local;
  if (!config.advertise.empty()) {
    CKV_ASSIGN_OR_RETURN(told, HostPort::Parse(config.advertise));
    if (told.port == 0) told.port = local.port;
  }
  address = told.ToString();
  {
    absl::MutexLock lock(&published_mu);
    published_address = address;
  }
  if (local.IsWildcard()) local.host = local.host == "::" ? "::1" : "127.0.0.1";
  local_address = local.ToString();
  return absl::OkStatus();
}

void Daemon::State::AddRegistration(MemberRole role, LeaseGate* lease) {
  RegistrationOptions options = RegistrationOptionsOf(config, role, clock);
  options.member.control_address = address;
  options.member.kernel_target = KernelTargetIdOf(backends.Of(role).kernel_target());
  options.health = [this, role] { return health->LastOfRole(role); };
  if (role == MemberRole::kHolder) {
    options.on_lease = [this](const LeaseGrant& grant, uint64_t placed_change_count) {
      placement->keeper().Note(grant, placed_change_count);
    };
  }
  registrars.push_back(MakeRegistrar(config, clock, directory, role));
  registrations.push_back(std::make_unique<Registration>(options, registrars.back().get(), lease));
}

void Daemon::State::StartRegistrations() {
  StartMembers();
  if (config.directory.empty() || registrations.empty()) return;
  directory_channel = std::make_unique<ChannelWatch>(config.directory, [this] {
    for (const auto& registration : registrations) registration->Prod();
  });
}

void Daemon::State::StartMembers() {
  if (holder) AddRegistration(MemberRole::kHolder, &holder->lease());
  if (replicas) replicas->SetRegistration(registrations.back().get());
  if (holder) {
    scrub =
        std::make_unique<DaemonScrub>(config, clock, holder.get(), address,
                                      config.directory.empty() ? local_address : config.directory);
  }
  if (!requester) return;
  AddRegistration(MemberRole::kRequester, nullptr);
  watch = std::make_unique<WatchStub>(
      WatchOptionsOf(config, clock, local_address),
      [this](std::string_view corpus) {
        if (corpus.empty()) directory_connected.store(true, std::memory_order_relaxed);
        requester->Forget(corpus);
      },
      [this](const absl::Status& status) {
        directory_connected.store(false, std::memory_order_relaxed);
        Log().warn("changes of corpora arrive late: {}", std::string(status.message()));
      },
      [this](const Member& member) { requester->Learn(member); });
}

absl::Status Daemon::State::ListenForPages() {
  if (config.metrics_address.empty()) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(web, StartWeb(config.metrics_address, clock));
  metrics_address = web->address();
  return absl::OkStatus();
}

void Daemon::State::ServePages() {
  if (web == nullptr) return;
  WebSources sources;
  sources.clock = clock;
  sources.name = config.name;
  sources.roles = config.role;
  sources.started = started;
  sources.version = std::string(Version());
  sources.commit = std::string(Commit());
  sources.kernel = std::string(backends.Of(MainRole()).kernel_target());
  sources.directory = directory;
  if (directory_home) sources.directory_log = directory_home->log();
  sources.holder = holder.get();
  if (placement) sources.placement = &placement->keeper();
  sources.requester = requester.get();
  sources.spans = spans.get();
  sources.findings = [this] { return health->Findings(); };
  if (replicas) sources.replicas = &replicas->keeper();
  if (requester_service) {
    sources.attend_count = [this] { return requester_service->attend_count(); };
    sources.attend_error_count = [this] { return requester_service->error_count(); };
    sources.directory_connected = [this] { return HearsDirectory(); };
  }
  for (const auto& one : registrations) sources.registrations.push_back(one.get());
  web->Serve(std::move(sources));
  Log().info("metrics at http://{0}/metrics, a page at http://{0}/", metrics_address);
}

void Daemon::State::SetHealth(const char* service, bool serving, bool& was) {
  if (std::exchange(was, serving) == serving) return;
  server->GetHealthCheckService()->SetServingStatus(service, serving);
}

Daemon::Daemon(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config, FileSystem* files,
                                                      ReplayProgress* replay) {
  LogGrpcErrors();
  auto state = std::make_unique<State>(config, files, replay);
  CKV_RETURN_IF_ERROR(PrepareReadyFile(config.ready_file));
  CKV_RETURN_IF_ERROR(state->Name());
  CKV_ASSIGN_OR_RETURN(state->profile, LoadProfile(config));
  CKV_ASSIGN_OR_RETURN(const auto kernels, SettleKernelTarget(config, state->profile.get()));
  CKV_ASSIGN_OR_RETURN(state->backends, SettleBackends(config, FolderOfProgram()));
  CKV_RETURN_IF_ERROR(state->ListenForPages());  // so that probes see a store being read
  CKV_RETURN_IF_ERROR(state->StartRoles());
  if (kernels.to_keep) KeepKernelTarget(config).IgnoreError();
  CKV_RETURN_IF_ERROR(state->StartServer());
  for (const auto& [service, present] :
       {std::pair{v1::DirectoryService::service_full_name(), state->directory != nullptr},
        std::pair{v1::HolderService::service_full_name(), state->holder != nullptr},
        std::pair{v1::RequesterService::service_full_name(), state->requester != nullptr}}) {
    if (present) state->server->GetHealthCheckService()->SetServingStatus(service, false);
  }
  state->server->GetHealthCheckService()->SetServingStatus("", false);
  state->StartRegistrations();
  state->ServePages();
  // From here on an error stops what serves already: its streams are closed without a wait.
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(state)));
  Log().info("ckvd {} '{}' serves {} at {}, kernels {}", Version(), daemon->state_->config.name,
             absl::StrJoin(config.role, "+"), daemon->address(),
             daemon->state_->backends.Of(daemon->state_->MainRole()).kernel_target());
  CKV_RETURN_IF_ERROR(daemon->Tick());
  return daemon;
}

Daemon::~Daemon() { Drain(state_->clock->Now()); }
const std::string& Daemon::name() const { return state_->config.name; }
const std::string& Daemon::address() const { return state_->address; }
const std::string& Daemon::metrics_address() const { return state_->metrics_address; }
bool Daemon::ready() const { return state_->ready; }

std::string Daemon::status() const {
  return DescribeDaemon(state_->registrations, state_->ready, state_->whole_serving, address());
}

std::vector<LivePart> Daemon::live_parts() const {
  return LivePartsOf(state_->holder.get(), state_->requester_service.get(), state_->local_address);
}

absl::Status Daemon::Tick() {
  State& state = *state_;
  if (state.drained) return absl::OkStatus();
  state.gate.CancelOverdue(state.clock->Now());
  bool registered = true;
  for (const auto& registration : state.registrations) {
    const Registration::Report report = registration->report();
    if (report.gave_up) return report.last_error;
    registered &= report.lease.has_value();
  }
  if (state.directory) {
    state.directory->Expire();
    state.directory->PublishRebuilt();
    state.SetHealth(v1::DirectoryService::service_full_name(), true, state.directory_serving);
  }
  if (state.holder) {
    state.expirer->Tick();
    const bool live = state.holder->lease().LiveAt(state.clock->Now());
    state.SetHealth(v1::HolderService::service_full_name(), live, state.holder_serving);
  }
  // A requester serves what it has cached while the directory is unreachable.
  if (state.requester && registered) {
    state.SetHealth(v1::RequesterService::service_full_name(), true, state.requester_serving);
  }
  // Every role of this process: the answer to a probe that names no service.
  state.SetHealth("",
                  (!state.directory || state.directory_serving) &&
                      (!state.holder || state.holder_serving) &&
                      (!state.requester || state.requester_serving),
                  state.whole_serving);
  state.health->Tick();
  if (state.web != nullptr) state.web->Note(state.whole_serving, status());
  if (state.ready || !registered) return absl::OkStatus();
  if (!state.config.ready_file.empty()) {
    CKV_RETURN_IF_ERROR(WriteOutput(state.config.ready_file, state.address + "\n"));
  }
  state.ready = true;
  return absl::OkStatus();
}

absl::Status Daemon::AwaitReady(Instant deadline) {
  for (const auto& registration : state_->registrations) {
    CKV_RETURN_IF_ERROR(registration->AwaitLease(deadline).status());
  }
  return Tick();
}

void Daemon::Drain(Instant deadline) {
  State& state = *state_;
  if (std::exchange(state.drained, true)) return;
  RemoveReadyFile(state.config.ready_file);
  if (state.web != nullptr) state.web->EndNotes();
  state.server->GetHealthCheckService()->SetServingStatus(false);
  state.gate.Close();
  state.scrub.reset();
  state.watch.reset();
  state.directory_channel.reset();
  state.directory_connected.store(false, std::memory_order_relaxed);
  // Calls in progress get half of the time; the rest is for the lanes. Leases are returned after
  // that: without one a holder would refuse requests that have arrived.
  const Instant now = state.clock->Now();
  const Instant half = now + std::max((deadline - now) / 2, Duration(0));
  const auto idle_by = [&state](Instant by) { return state.gate.AwaitIdle(*state.clock, by); };
  Instant look = now;
  while (!idle_by(look = std::min(half, look + kStuckPeerMax)) && look < half) {
    state.gate.EndStuck();
  }
  state.gate.End();
  idle_by(std::min(half + kReplyGrace, std::max(deadline, half)));
  if (state.holder) state.holder->Drain(std::max(deadline, now));
  state.web.reset();  // it reads the registrations
  if (state.replicas) {
    state.near->SetKeeper(nullptr);
    state.replicas->SetRegistration(nullptr);
  }
  state.registrations.clear();
  state.placement.reset();
  // By now only replies on their way out and idle connections are left.
  const Duration grace = deadline > now ? kReplyGrace : Duration(0);
  state.acceptor->Stop();
  state.server->Shutdown(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(grace.count(), GPR_TIMESPAN)));
}

}  // namespace ckv
