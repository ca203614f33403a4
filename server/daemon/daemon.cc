// Starts and stops the parts of ckvd, on the thread that runs the daemon:
//   Start  clears the ready file; settles name, profile, kernel target and backends; listens for
//          pages; starts directory, holder and requester; server; registrations; serves pages
//   Tick   notes registrations and health, and writes the ready file once all roles are registered
//   Drain  ends ready file, health and new calls; scrub and watch; calls in progress, in half of
//          the time; the holder's lanes; pages; registrations; server
// The destructor drains without a wait, and destroys the parts in reverse order.

#include "server/daemon/daemon.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "attention/backend.h"
#include "attention/device/backend_library.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_log.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/base/version.h"
#include "server/daemon/daemon_parts.h"
#include "server/daemon/kernel_start.h"
#include "server/daemon/live_parts.h"
#include "server/daemon/roles/control_server.h"
#include "server/daemon/roles/directory_role.h"
#include "server/daemon/roles/holder_role.h"
#include "server/daemon/roles/membership.h"
#include "server/daemon/roles/requester_role.h"
#include "server/daemon/roles/shared.h"
#include "server/health/daemon_health.h"
#include "server/rpc/server_limits.h"
#include "server/rpc/service_gate.h"
#include "server/web/web_server.h"
#include "store/formats/output_file.h"

namespace ckv {
namespace {

// A connection whose client is idle does not close by itself, so every drain may take this long.
constexpr Duration kReplyGrace = std::chrono::milliseconds(300);
// A drain ends the streams whose peers take nothing for this time, or at most twice as long.
constexpr Duration kStuckPeerMax = std::chrono::seconds(1);
// The service of a probe that names none: every role of this process.
constexpr char kWholeProcess[] = "";

}  // namespace

// In order of construction; destroyed in reverse.
struct Daemon::State {
  explicit State(const Config& config) : shared(config) {}

  absl::Status StartRoles(FileSystem* files, ReplayProgress* replay,
                          std::shared_ptr<const Profile> profile);
  absl::Status StartServer();
  void StartMembers();
  absl::Status ListenForPages();
  void ServePages();
  MemberRole MainRole() const { return holder ? MemberRole::kHolder : MemberRole::kRequester; }
  DirectoryState* LocalDirectory() { return directory ? &directory->state() : nullptr; }
  Holder* HolderOrNull() { return holder ? &holder->holder() : nullptr; }
  Requester* RequesterOrNull() { return requester ? &requester->requester() : nullptr; }
  void NoteHealth(bool registered);

  DaemonShared shared;
  // Null without the role.
  std::unique_ptr<DirectoryRole> directory;
  std::unique_ptr<HolderRole> holder;
  std::unique_ptr<DaemonHealth> health;  // set before the server serves
  std::unique_ptr<RequesterRole> requester;

  std::unique_ptr<ControlServer> server;
  std::unique_ptr<Membership> members;
  std::unique_ptr<WebServer> web;  // null if the config wants none
  std::string metrics_address;     // as bound
  bool ready = false;
  bool drained = false;
};

absl::Status Daemon::State::StartRoles(FileSystem* files, ReplayProgress* replay,
                                       std::shared_ptr<const Profile> profile) {
  const Config& config = shared.config;
  CKV_RETURN_IF_ERROR(shared.Start());
  if (config.HasRole("directory")) {
    CKV_ASSIGN_OR_RETURN(directory, DirectoryRole::Start(&shared, files, replay));
    directory->service().ReportFacts([this] { return health->Facts(); });
  }
  if (config.HasRole("holder")) {
    CKV_ASSIGN_OR_RETURN(holder, HolderRole::Start(&shared, files, LocalDirectory()));
    holder->holder_service().ReportHealth([this] { return health->OfRole(MemberRole::kHolder); });
  }
  if (config.HasRole("requester")) {
    CKV_ASSIGN_OR_RETURN(requester, RequesterRole::Start(&shared, LocalDirectory(), holder.get(),
                                                         std::move(profile)));
  }
  health = std::make_unique<DaemonHealth>(HealthParts{
      config.name, config.listen, config.store_path, shared.clock, config.repair_bytes_per_second,
      directory ? &directory->home() : nullptr, HolderOrNull(),
      holder ? &holder->placement() : nullptr, RequesterOrNull(), ProbeServer,
      [this] { return shared.HearsDirectory(); }, [this] { return shared.DirectoryAddress(); }});
  return absl::OkStatus();
}

absl::Status Daemon::State::StartServer() {
  std::vector<grpc::Service*> services;
  if (directory) services.push_back(&directory->service());
  if (holder) services.push_back(&holder->holder_service());
  if (holder) services.push_back(&holder->store_service());
  if (requester) services.push_back(&requester->service());
  const bool holder_only = directory == nullptr && requester == nullptr;
  CKV_ASSIGN_OR_RETURN(
      server, ControlServer::Start(&shared, services,
                                   holder_only ? kHolderMessageBytesMax : kMessageBytesMax,
                                   directory && directory->etcd() != nullptr
                                       ? LeaderSource([this] { return directory->Leader(); })
                                       : LeaderSource()));
  if (directory) server->AddHealth(v1::DirectoryService::service_full_name());
  if (holder) server->AddHealth(v1::HolderService::service_full_name());
  if (requester) server->AddHealth(v1::RequesterService::service_full_name());
  server->AddHealth(kWholeProcess);
  return absl::OkStatus();
}

void Daemon::State::StartMembers() {
  members =
      std::make_unique<Membership>(&shared, LocalDirectory(), health.get(), server->address());
  if (directory) directory->Stand(server->address());
  if (holder) {
    members->AddHolder(holder.get());
    if (requester) requester->SetRegistration(members->registrations().back().get());
    const std::string& directory_address = shared.config.directory;
    holder->StartScrub(server->address(),
                       directory_address.empty() ? server->local_address() : directory_address);
  }
  if (requester) {
    members->AddRequester();
    members->StartWatch(&requester->requester(), server->local_address());
  }
  members->WatchChannel();
}

absl::Status Daemon::State::ListenForPages() {
  if (shared.config.metrics_address.empty()) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(web, StartWeb(shared.config.metrics_address, shared.clock));
  metrics_address = web->address();
  return absl::OkStatus();
}

void Daemon::State::ServePages() {
  if (web == nullptr) return;
  WebSources sources;
  sources.clock = shared.clock;
  sources.name = shared.config.name;
  sources.roles = shared.config.role;
  sources.started = shared.started;
  sources.version = std::string(Version());
  sources.commit = std::string(Commit());
  sources.kernel = std::string(shared.backends.Of(MainRole()).kernel_target());
  sources.directory = LocalDirectory();
  if (directory) sources.directory_log = directory->home().log();
  if (directory) sources.etcd = directory->etcd();
  sources.holder = HolderOrNull();
  if (holder) sources.placement = &holder->placement();
  if (holder) sources.copies = &holder->copies();
  sources.requester = RequesterOrNull();
  sources.spans = shared.spans.get();
  sources.findings = [this] { return health->Findings(); };
  if (holder) sources.holder_load = [this] { return health->LastLoad(); };
  if (requester) {
    sources.replicas = requester->replicas();
    sources.attend_count = [this] { return requester->service().attend_count(); };
    sources.attend_error_count = [this] { return requester->service().error_count(); };
    sources.directory_connected = [this] { return shared.HearsDirectory(); };
  }
  for (const auto& one : members->registrations()) sources.registrations.push_back(one.get());
  web->Serve(std::move(sources));
  Log().info("metrics at http://{0}/metrics, a page at http://{0}/", metrics_address);
}

void Daemon::State::NoteHealth(bool registered) {
  bool whole = true;
  if (directory) server->SetHealth(v1::DirectoryService::service_full_name(), true);
  if (holder) {
    const std::string name = v1::HolderService::service_full_name();
    server->SetHealth(name, holder->HasLease());
    whole &= server->serving(name);
  }
  if (requester) {
    // A requester serves what it has cached while the directory is unreachable.
    const std::string name = v1::RequesterService::service_full_name();
    if (registered) server->SetHealth(name, true);
    whole &= server->serving(name);
  }
  server->SetHealth(kWholeProcess, whole);
}

Daemon::Daemon(std::unique_ptr<State> state) : state_(std::move(state)) {}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config, FileSystem* files,
                                                      ReplayProgress* replay) {
  LogGrpcErrors();
  auto state = std::make_unique<State>(config);
  CKV_RETURN_IF_ERROR(PrepareReadyFile(config.ready_file));
  CKV_RETURN_IF_ERROR(state->shared.Name());
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<const Profile> profile, LoadProfile(config));
  CKV_ASSIGN_OR_RETURN(const auto kernels, SettleKernelTarget(config, profile.get()));
  CKV_ASSIGN_OR_RETURN(state->shared.backends, SettleBackends(config, FolderOfProgram()));
  CKV_RETURN_IF_ERROR(state->ListenForPages());  // so that probes see a store being read
  CKV_RETURN_IF_ERROR(state->StartRoles(files, replay, std::move(profile)));
  if (kernels.to_keep) KeepKernelTarget(config).IgnoreError();
  CKV_RETURN_IF_ERROR(state->StartServer());
  state->StartMembers();
  state->ServePages();
  // From here on an error stops what serves already: its streams are closed without a wait.
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(state)));
  Log().info("ckvd {} '{}' serves {} at {}, kernels {}", Version(), daemon->name(),
             absl::StrJoin(config.role, "+"), daemon->address(),
             daemon->state_->shared.backends.Of(daemon->state_->MainRole()).kernel_target());
  CKV_RETURN_IF_ERROR(daemon->Tick());
  return daemon;
}

Daemon::~Daemon() { Drain(state_->shared.clock->Now()); }
const std::string& Daemon::name() const { return state_->shared.config.name; }
const std::string& Daemon::address() const { return state_->server->address(); }
const std::string& Daemon::metrics_address() const { return state_->metrics_address; }
bool Daemon::ready() const { return state_->ready; }

std::string Daemon::status() const {
  return DescribeDaemon(state_->members->registrations(), state_->ready,
                        state_->server->serving(kWholeProcess), address());
}

std::vector<LivePart> Daemon::live_parts() const {
  State& state = *state_;
  return LivePartsOf(state.HolderOrNull(), state.requester ? &state.requester->service() : nullptr,
                     state.server->local_address());
}

absl::Status Daemon::Tick() {
  State& state = *state_;
  if (state.drained) return absl::OkStatus();
  state.shared.gate.CancelOverdue(state.shared.clock->Now());
  CKV_ASSIGN_OR_RETURN(const bool registered, state.members->IsRegistered());
  if (state.directory) state.directory->Tick();
  if (state.holder) state.holder->Tick();
  state.NoteHealth(registered);
  state.health->Tick();
  if (state.web != nullptr) state.web->Note(state.server->serving(kWholeProcess), status());
  if (state.ready || !registered) return absl::OkStatus();
  const std::string& ready_file = state.shared.config.ready_file;
  if (!ready_file.empty()) CKV_RETURN_IF_ERROR(WriteOutput(ready_file, address() + "\n"));
  state.ready = true;
  return absl::OkStatus();
}

absl::Status Daemon::AwaitReady(Instant deadline) {
  CKV_RETURN_IF_ERROR(state_->members->Await(deadline));
  return Tick();
}

void Daemon::Drain(Instant deadline) {
  State& state = *state_;
  if (std::exchange(state.drained, true)) return;
  Clock& clock = *state.shared.clock;
  ServiceGate& gate = state.shared.gate;
  RemoveReadyFile(state.shared.config.ready_file);
  if (state.web != nullptr) state.web->EndNotes();
  state.server->EndHealth();
  if (state.directory) state.directory->EndLead();
  gate.Close();
  if (state.holder) state.holder->EndScrub();
  state.members->EndWatch();
  // After this process's own, which would report that it was cut off.
  if (state.directory) state.directory->state().EndWatches();
  // Calls in progress get half of the time; the rest is for the lanes. Leases are returned after
  // that: without one a holder would refuse requests that have arrived.
  const Instant now = clock.Now();
  const Instant half = now + std::max((deadline - now) / 2, Duration(0));
  Instant look = now;
  while (!gate.AwaitIdle(clock, look = std::min(half, look + kStuckPeerMax)) && look < half) {
    gate.EndStuck();
  }
  gate.End();
  gate.AwaitIdle(clock, std::min(half + kReplyGrace, std::max(deadline, half)));
  if (state.holder) state.holder->holder().Drain(std::max(deadline, now));
  state.web.reset();  // it reads the registrations
  if (state.requester) state.requester->EndCopies();
  state.members->EndRegistrations();
  if (state.holder) state.holder->EndPlacement();
  // By now only replies on their way out and idle connections are left.
  state.server->Shutdown(deadline > now ? kReplyGrace : Duration(0));
}

}  // namespace ckv
