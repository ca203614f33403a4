#include "server/daemon/metrics.h"

#include <netdb.h>
#include <netinet/in.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>

#include <array>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/daemon/metrics_directory.h"
#include "server/daemon/metrics_page.h"
#include "server/daemon/metrics_process.h"
#include "transport/socket.h"

namespace ckv {
namespace {

using Labels = MetricLabels;
using Page = MetricsPage;

// Threads that answer, and so scrapes at once: one that hangs must not hide the process.
constexpr size_t kScrapeCountMax = 2;
// How long a connection that says nothing may hold one of those threads.
constexpr const char* kSilenceMs = "1000";

constexpr absl::Duration kKnockInterval = absl::Milliseconds(5);

constexpr FabricKind kFabrics[] = {FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp,
                                   FabricKind::kVerbs};

double Seconds(double ns) { return ns / 1e9; }

void AddHolderTraffic(const HolderStats& stats, Page& page) {
  page.Counter("ckv_holder_requests_total",
               "Frames that came over lanes, of every kind: probes, too.", stats.request_count);
  page.Counter("ckv_holder_query_rows_total", "Query rows of the attends among them.",
               stats.query_row_count);
  page.Counter("ckv_holder_kernel_calls_total",
               "Calls of the attention kernel; requests that are ready together share one.",
               stats.batch_count);
  page.Counter("ckv_holder_compute_seconds_total",
               "Time that kernel calls took, beside the polling thread as well. At a rate near 1 "
               "that thread does little else: the holder is full.",
               Seconds(static_cast<double>(stats.compute_ns)));
  page.Counter("ckv_holder_long_requests_total",
               "Requests computed beside the polling thread, over 2^29 multiply-adds each.",
               stats.long_count);
  page.Counter("ckv_holder_pushes_total", "Replies to fetches that carried rows.",
               stats.push_count);
  page.Counter("ckv_holder_push_bytes_total", "Bytes of rows in them.", stats.push_bytes);
  page.Counter("ckv_holder_maps_total", "Chunks handed to requesters of this host to map.",
               stats.map_count);
  page.Counter("ckv_holder_received_bytes_total", "Bytes of frames that came over lanes.",
               stats.bytes_in);
  page.Counter("ckv_holder_sent_bytes_total", "Bytes of frames that went over lanes.",
               stats.bytes_out);
  page.Counter("ckv_holder_sleeps_total",
               "Times the dispatcher had nothing to poll for and slept on its lanes' events.",
               stats.sleep_count);
}

void AddHolderRefusals(const HolderStats& stats, Page& page) {
  page.ByCode("ckv_holder_errors_total", "Requests answered with an error, by status code.",
              stats.errors);
  page.Family(MetricType::Counter, "ckv_holder_refusals_total",
              "Requests refused before any data was touched. queue_full, queue_work, no_time: "
              "overloaded, add holders or send less; no_lease: the directory was not reached for "
              "half a lease; stale_session: requesters open a new one by themselves.");
  for (size_t i = 0; i < stats.refusals.size(); ++i) {
    page.Add({{"reason", std::string(kRefusalNames[i])}}, static_cast<double>(stats.refusals[i]));
  }
  page.Counter("ckv_holder_expired_total",
               "Requests dropped because their deadline had passed: they waited too long, or were "
               "sent with too little time.",
               stats.expired_count);
  page.ByCode("ckv_holder_session_refusals_total",
              "Sessions that were not opened. FAILED_PRECONDITION: another model, revision or "
              "wire version asks; RESOURCE_EXHAUSTED: session_count_max or the lanes' memory; "
              "UNAVAILABLE: no lease, or no fabric that both sides have.",
              stats.session_refusals);
}

void AddHolderState(const HolderStats& stats, Page& page) {
  page.Family(MetricType::Gauge, "ckv_holder_queue_requests",
              "Requests that wait: attend, bulk (parts of large attends), long (computed beside "
              "the polling thread), push (fetches and maps), cold (chunks read from the device).");
  for (size_t i = 0; i < stats.queues.size(); ++i) {
    page.Add({{"queue", std::string(kQueueNames[i])}}, stats.queues[i].request_count);
  }
  page.Family(MetricType::Gauge, "ckv_holder_queue_multiply_adds",
              "Work of the requests that wait, as estimated on arrival; pushes have none.");
  for (size_t i = 0; i < stats.queues.size(); ++i) {
    page.Add({{"queue", std::string(kQueueNames[i])}}, static_cast<double>(stats.queues[i].work));
  }
  page.Gauge("ckv_holder_sessions", "Sessions that are open; the limit is session_count_max.",
             stats.session_count);
  page.Family(MetricType::Gauge, "ckv_holder_lanes", "Lanes that are up, by fabric.");
  for (const FabricKind kind : kFabrics) {
    page.Add({{"fabric", std::string(FabricName(kind))}}, stats.lanes[static_cast<size_t>(kind)]);
  }
  const ChunkTableStats& table = stats.table;
  page.Gauge("ckv_holder_chunks", "Chunks held.", table.chunk_count);
  page.Gauge("ckv_holder_tokens", "Tokens of the chunks held.", table.token_count);
  page.Gauge("ckv_holder_pins", "Pins on chunks: requests that are reading now.", table.pin_count);
  page.Gauge(
      "ckv_holder_store_used_bytes",
      "Memory taken by rows. Near capacity, chunks become cold, or, without store.path, puts "
      "are refused.",
      table.used_bytes);
  page.Gauge("ckv_holder_store_capacity_bytes", "Memory for rows (store.capacity).",
             table.capacity_bytes);
}

void AddHolderStore(const HolderStats& stats, Page& page) {
  page.Gauge("ckv_holder_cold_chunks", "Chunks held on the device only.", stats.table.cold_count);
  page.Counter(
      "ckv_holder_cold_requests_total",
      "Requests that waited for the device: their chunks were cold. A high share of all: raise "
      "store.capacity, or add holders.",
      stats.cold_count);
  page.Counter(
      "ckv_holder_stripe_hits_total",
      "Stripes (32 rows) that selections needed of cold chunks and that earlier ones had read.",
      stats.stripe_hit_count);
  page.Counter(
      "ckv_holder_stripe_reads_total",
      "Stripes that selections needed of cold chunks and that were read from the device. Many "
      "beside few hits: raise store.stripe_percent or store.capacity.",
      stats.stripe_read_count);
  page.Gauge("ckv_holder_stripe_bytes", "Memory taken by stripes that selections read.",
             stats.stripe_bytes);
  page.Gauge("ckv_holder_shadow_chunks",
             "Chunks held on the device only, with fp8 copies in memory.", stats.shadow_count);
  page.Counter("ckv_holder_approximate_requests_total",
               "Requests that allow an approximation and were answered from fp8 copies.",
               stats.approximate_count);
  page.Counter("ckv_holder_store_loads_total", "Cold chunks read into memory.", stats.load_count);
  page.Counter("ckv_holder_store_load_bytes_total", "Bytes of the rows of chunks read into memory.",
               stats.load_bytes);
  page.Counter("ckv_holder_store_evictions_total", "Hot chunks that became cold to make room.",
               stats.table.evicted_count);
  page.Counter("ckv_holder_store_damaged_total",
               "Chunks found damaged and taken out; a file is in quarantine/ with its reason. Any "
               "increase: look at the device, and at the memory's ECC counters.",
               stats.damaged_count);
  page.Counter(
      "ckv_holder_store_healed_total",
      "Damage in memory or in a file that the other one made good. Any increase: as for damaged.",
      stats.healed_count);
  page.Counter("ckv_holder_store_unreadable_total",
               "Chunks that a check could not read: the device fails. They stay.",
               stats.scrub.unreadable_count);
  page.Counter("ckv_holder_store_repaired_total", "Damaged chunks got again from a replica.",
               stats.scrub.repaired_count);
  page.Counter(
      "ckv_holder_store_repair_failures_total",
      "Damaged chunks that no replica gave: lost here. ckvctl corpus verify says which; load "
      "their corpora again.",
      stats.scrub.repair_failure_count);
  page.Gauge("ckv_holder_store_repairs_pending", "Damaged chunks still tried for.",
             stats.scrub.repair_pending_count);
  page.Counter(
      "ckv_holder_store_scrubbed_bytes_total",
      "Bytes checked in the background, in memory and on the device. A rate of 0 for minutes: "
      "store.scrub_bytes_per_second is 0, or the device hangs.",
      stats.scrub.checked_bytes);
  page.Counter("ckv_holder_store_scrub_passes_total",
               "Times that the background check came to the last chunk.", stats.scrub.pass_count);
}

void AddPeers(const std::vector<HolderView>& holders, Page& page) {
  const auto family = [&](std::string_view name, std::string_view help, auto value) {
    page.Family(MetricType::Gauge, name, help);
    for (const HolderView& holder : holders)
      page.Add({{"holder", holder.member.id.name}}, value(holder));
  };
  page.Family(MetricType::Gauge, "ckv_requester_lanes",
              "Lanes open to a holder, under the fabric that was chosen for it last.");
  for (const HolderView& holder : holders) {
    page.Add(
        {{"holder", holder.member.id.name}, {"fabric", std::string(FabricName(holder.fabric))}},
        holder.lane_count);
  }
  family("ckv_requester_holder_connected",
         "1: a lane to the holder is up and none was found broken since.",
         [](const HolderView& holder) { return holder.connected ? 1 : 0; });
  family("ckv_requester_holder_fallback",
         "1: lanes to the holder are tcp where they should be verbs; ckvctl status says why.",
         [](const HolderView& holder) { return holder.fallback.empty() ? 0 : 1; });
  family("ckv_requester_holder_in_flight", "Requests posted to the holder and not answered.",
         [](const HolderView& holder) { return holder.in_flight; });
  family("ckv_requester_holder_probe_seconds",
         "Round trip without payload, as last measured. If 0, it is not measured yet.",
         [](const HolderView& holder) { return holder.constants.t_probe_us / 1e6; });
  family("ckv_requester_holder_bandwidth_bytes_per_second",
         "Bandwidth of transfers, as last measured. If 0, it is not measured yet.",
         [](const HolderView& holder) { return holder.constants.bandwidth_bytes_per_s; });
  // If nothing is known there is no sample: 0 would say that the model is exact.
  page.Family(
      MetricType::Gauge, "ckv_requester_holder_model_error_ratio",
      "How far predicted route times are off: the median of |measured / predicted - 1| over "
      "the last 64 attends of one frame. Above 0.25 for long: run ckvctl calibrate.");
  for (const HolderView& holder : holders) {
    if (holder.model_error) page.Add({{"holder", holder.member.id.name}}, *holder.model_error);
  }
}

void AddNear(const RequesterStats& stats, Page& page) {
  page.Gauge("ckv_requester_near_bytes",
             "Room that near chunks take, mapped ones included, of requester.near_bytes.",
             stats.near.bytes);
  page.Gauge("ckv_requester_near_chunks", "Chunks that are near.", stats.near.chunk_count);
  page.Counter("ckv_requester_pulls_total", "Pulls of runs of chunks, failed ones included.",
               stats.near.pull_count);
  page.Counter(
      "ckv_requester_pulls_failed_total",
      "Pulls that failed. The contexts went on by routing; the log says why at level debug.",
      stats.near.pull_failed_count);
  page.Counter("ckv_requester_near_evictions_total",
               "Runs of chunks evicted for others. A rate near that of pulls: raise "
               "requester.near_bytes.",
               stats.near.eviction_count);
  page.Counter("ckv_requester_pulled_bytes_total", "Bytes of pulled rows.",
               stats.near.pulled_bytes);
  page.Counter("ckv_requester_mapped_bytes_total",
               "Bytes of rows of holders on this host, used where they lie instead of pulled.",
               stats.near.mapped_bytes);
  page.Counter("ckv_requester_routed_seconds_total",
               "Time lost by routing what could have been near, by the cost model.",
               stats.near.routed_us / 1e6);
  page.Counter("ckv_requester_near_saved_seconds_total",
               "Time saved by rows that were near, by the cost model.", stats.near.saved_us / 1e6);
  page.Counter("ckv_requester_pull_seconds_total", "Time of all pulls, by the cost model.",
               stats.near.pulled_us / 1e6);
  page.Counter("ckv_requester_reused_tokens_total",
               "Tokens of contexts that were opened. Without their rows each would have been "
               "prefilled again.",
               stats.reused_token_count);
  page.Counter("ckv_requester_recomputed_tokens_total",
               "Tokens made anew by contexts' own functions.", stats.near.recomputed_token_count);
  page.Family(
      MetricType::Counter, "ckv_requester_decisions_total",
      "Decisions on runs of chunks of contexts of policy auto and near, by what is done and "
      "why. Many of constants_unknown: a holder cannot be measured; the log says why at "
      "level debug.");
  for (size_t primitive = 0; primitive < kPrimitiveCount; ++primitive) {
    for (size_t reason = 0; reason < kActReasonCount; ++reason) {
      page.Add({{"primitive", std::string(PrimitiveName(static_cast<Primitive>(primitive)))},
                {"reason", std::string(ActReasonName(static_cast<ActReason>(reason)))}},
               static_cast<double>(stats.near.decisions[primitive][reason]));
    }
  }
}

void AddRequester(const MetricsSources& sources, Page& page) {
  const RequesterStats stats = sources.requester->Stats();
  if (sources.attend_count) {
    page.Counter("ckv_requester_attends_total", "Attends over gRPC, by calls and by streams.",
                 sources.attend_count());
    page.Counter("ckv_requester_attend_errors_total", "Attends over gRPC that failed.",
                 sources.attend_error_count());
  }
  page.Counter("ckv_requester_retries_total",
               "Requests sent again as an overloaded holder asked. A rate near a tenth of all "
               "requests says that the fleet is too small.",
               stats.retry_count);
  page.Counter("ckv_requester_retries_refused_total",
               "Retries not made because a tenth of all requests were retries: callers saw "
               "RESOURCE_EXHAUSTED.",
               stats.retry_refused_count);
  page.Counter("ckv_requester_fetches_total",
               "Fetches of rows, of selected rows and into caches, failed ones included.",
               stats.fetch_count);
  page.Counter("ckv_requester_explains_total", "Explains, failed ones included.",
               stats.explain_count);
  AddNear(stats, page);
  page.Counter("ckv_requester_failovers_total",
               "Calls that went on with a replica after a holder had failed them. An increase "
               "without a restart or an overload: ckvctl status says which holder is in trouble.",
               stats.failover_count);
  page.Counter("ckv_requester_reopens_total",
               "Sessions opened anew for a call because the holder's lane broke or its epoch had "
               "moved on. A few for each restart; a steady rate: a network or a holder that comes "
               "and goes.",
               stats.reopen_count);
  page.Counter("ckv_requester_discarded_replies_total",
               "Replies that nobody waited for any more: their calls had ended.",
               stats.discarded_reply_count);
  page.Counter("ckv_requester_rdma_fallbacks_total",
               "Lanes opened over tcp that should be of verbs. Any increase: repair RDMA, or take "
               "verbs out of the fabrics.",
               stats.rdma_fallback_count);
  if (sources.directory_connected) {
    page.Gauge("ckv_requester_directory_connected",
               "1: changes of corpora come as they happen. 0 for long: the directory is away.",
               sources.directory_connected() ? 1 : 0);
  }
  AddPeers(sources.requester->KnownHolders(), page);
}

std::string_view RoleName(MemberRole role) {
  return role == MemberRole::kHolder ? "holder" : "requester";
}

void AddLeases(const MetricsSources& sources, Page& page) {
  std::vector<std::pair<Labels, Registration::Report>> reports;
  for (const Registration* registration : sources.registrations) {
    reports.push_back(
        {{{"role", std::string(RoleName(registration->role()))}}, registration->report()});
  }
  const auto family = [&](MetricType type, std::string_view name, std::string_view help,
                          auto value) {
    page.Family(type, name, help);
    for (const auto& [labels, report] : reports)
      page.Add(labels, static_cast<double>(value(report)));
  };
  using Report = Registration::Report;
  family(MetricType::Gauge, "ckv_lease_held",
         "If 1, the directory knows this process in this role. If 0, its lease has run out, or "
         "none was "
         "given.",
         [](const Report& report) { return report.lease.has_value() ? 1 : 0; });
  family(MetricType::Counter, "ckv_lease_registrations_total",
         "Leases taken. More than one: a lease was lost, and the holder's sessions with it.",
         [](const Report& report) { return report.registration_count; });
  family(MetricType::Counter, "ckv_lease_renewals_total", "Renewals that succeeded.",
         [](const Report& report) { return report.renewal_count; });
  family(MetricType::Counter, "ckv_lease_failures_total",
         "Calls to the directory that failed: it is away, slow, or denied the lease.",
         [](const Report& report) { return report.failure_count; });
}

void AddReplicas(const ReplicaStats& stats, Page& page) {
  page.Gauge("ckv_replicas_chunks", "Copies made here that this holder answers for.",
             stats.chunk_count);
  page.Gauge("ckv_replicas_bytes", "Memory of the store that copies take.", stats.bytes);
  page.Gauge("ckv_replicas_limit_bytes", "Most memory that copies may take (replicas.percent).",
             stats.bytes_max);
  page.Counter("ckv_replicas_fetched_total", "Chunks that were copied.", stats.fetched_count);
  page.Counter("ckv_replicas_fetched_bytes_total", "Bytes of their rows.", stats.fetched_bytes);
  page.Counter("ckv_replicas_evicted_total",
               "Copies dropped to make room for others. A rate near that of copies made: the limit "
               "is too small for what is asked for.",
               stats.evicted_count);
  page.Counter("ckv_replicas_announce_failures_total",
               "Calls to announce copies that failed: the directory is away, or the lease is lost.",
               stats.announce_failure_count);
}

// A connection that says nothing.
void Knock(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) return;
  const UniqueFd fd(
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (fd.valid()) (void)connect(fd.get(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
}

class Reader final : public prometheus::Collectable {
 public:
  explicit Reader(MetricsSources sources) : sources_(std::move(sources)) {}

  std::vector<MetricFamily> Collect() const override {
    Page page;
    page.Family(MetricType::Gauge, "ckv_build_info",
                "1; what runs is in the labels. Holders of one fleet must run the same version and "
                "kernel, or partials differ in their last bits.");
    page.Add(
        {{"version", sources_.version}, {"commit", sources_.commit}, {"kernel", sources_.kernel}},
        1);
    AddProcess(page);
    if (!sources_.registrations.empty()) AddLeases(sources_, page);
    if (sources_.directory != nullptr) AddDirectory(*sources_.directory, page);
    if (sources_.placement != nullptr) AddPlacement(*sources_.placement, page);
    if (sources_.directory_log != nullptr) AddDirectoryLog(*sources_.directory_log, page);
    if (sources_.holder != nullptr) {
      const HolderStats stats = sources_.holder->stats();
      page.Gauge("ckv_holder_lease_live",
                 "If 1, this holder may answer. If 0, it refuses every request; look at "
                 "ckv_lease_failures_total and at the directory.",
                 sources_.holder->lease().LiveAt(sources_.clock->Now()) ? 1 : 0);
      AddHolderTraffic(stats, page);
      AddHolderRefusals(stats, page);
      AddHolderState(stats, page);
      AddHolderStore(stats, page);
    }
    if (sources_.requester != nullptr) AddRequester(sources_, page);
    if (sources_.replicas != nullptr) AddReplicas(sources_.replicas->stats(), page);
    return page.Take();
  }

 private:
  const MetricsSources sources_;
};

}  // namespace

struct MetricsServer::State {
  // `address` is listened on while this lives.
  explicit State(const std::string& address)
      : exposer(std::in_place, std::vector<std::string>{"listening_ports", address, "num_threads",
                                                        std::to_string(kScrapeCountMax),
                                                        "request_timeout_ms", kSilenceMs}) {}

  std::shared_ptr<prometheus::Collectable> reader;
  std::optional<prometheus::Exposer> exposer;  // but for the end, there
};

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address) {
  const auto error = [&] {
    return absl::UnavailableError(absl::StrFormat("metrics: cannot listen on %s", address));
  };
  auto bound = HostPort::Parse(address);
  if (!bound.ok()) return error();
  std::unique_ptr<State> state;
  // The exposer reports by exceptions, and does not say why it cannot listen; none passes here.
  try {
    state = std::make_unique<State>(address);
  } catch (const std::exception&) {
    return error();
  }
  const std::vector<int> ports = state->exposer->GetListeningPorts();
  if (ports.empty()) return error();
  bound->port = static_cast<uint16_t>(ports[0]);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(state), *bound));
}

MetricsServer::MetricsServer(std::unique_ptr<State> state, const HostPort& address)
    : state_(std::move(state)), bound_(address), address_(address.ToString()) {}

void MetricsServer::Serve(MetricsSources sources) {
  state_->reader = std::make_shared<Reader>(std::move(sources));
  state_->exposer->RegisterCollectable(state_->reader);
}

// The exposer's listening thread looks whether it shall end once in 2 s, or when a connection
// comes: so they come until it has.
MetricsServer::~MetricsServer() {
  absl::Notification ended;
  std::thread ending([&] {
    state_->exposer.reset();
    ended.Notify();
  });
  while (!ended.WaitForNotificationWithTimeout(kKnockInterval)) Knock(bound_);
  ending.join();
}

}  // namespace ckv
