#include "client/requester.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/explain.h"
#include "client/fetch_into.h"
#include "client/map.h"
#include "client/retry.h"
#include "client/session_pool.h"
#include "proto/status.h"
#include "spdlog/spdlog.h"

namespace ckv {
namespace {

constexpr uint32_t kEngineCountMax = 4096;
// A stale handle or session is resolved anew once; a second refusal is the answer.
constexpr int kResolveRetryMax = 1;
// Of Holders, which people wait for; a directory that is away has not got more to say.
constexpr Duration kMembersTimeout = std::chrono::seconds(1);

// Of none given, shm and tcp are taken.
bool HasFabric(const RequesterOptions& options, FabricKind kind) {
  if (options.fabrics.empty()) return kind == FabricKind::kShm || kind == FabricKind::kTcp;
  return std::any_of(options.fabrics.begin(), options.fabrics.end(),
                     [&](const Fabric* fabric) { return fabric->kind() == kind; });
}

absl::Status CheckOptions(const RequesterOptions& options, const DirectoryControl* directory,
                          const HolderControlFactory* holders) {
  if (directory == nullptr || holders == nullptr || options.clock == nullptr)
    return absl::InvalidArgumentError("requester: directory, holders and clock are needed");
  if (options.engine_count_max == 0 || options.engine_count_max > kEngineCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("requester: engine_count_max %d, 1 to %d",
                                                      options.engine_count_max, kEngineCountMax));
  }
  if (options.spin_max < Duration::zero() || options.connect_timeout <= Duration::zero())
    return absl::InvalidArgumentError("requester: spin_max or connect_timeout is negative");
  if (options.fabric && !HasFabric(options, *options.fabric)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "requester: fabric %s is not among its fabrics", FabricName(*options.fabric)));
  }
  return ValidateLaneShape(options.lane_shape);
}

// What an attempt says beside its status.
struct Outcome {
  bool stale = false;      // a new session would cure the error
  bool repeatable = true;  // nothing was shown to the caller yet
};

}  // namespace

struct Requester::State {
  State(const RequesterOptions& options, DirectoryControl* directory, HolderControlFactory* holders)
      : clock(options.clock),
        oracle(options.oracle),
        view(directory),
        peers(&view, holders, options.profile),
        pool(options.clock, options.engine_count_max, [this, spin = options.spin_max] {
          return std::make_unique<CallEngine>(&link_options, &peers, spin, &counters);
        }) {
    link_options.requester = options.id;
    link_options.host_identity = HostIdentity();
    link_options.clock = options.clock;
    link_options.fabrics = options.fabrics;
    link_options.shape = options.lane_shape;
    link_options.connect_timeout = options.connect_timeout;
    link_options.forced = options.fabric;
    link_options.rdma_fallback = options.rdma_fallback;
    link_options.counters = &counters;
    link_options.oracle = options.oracle;
    if (!options.fabrics.empty()) return;
    own_fabrics.push_back(NewShmFabric(options.clock));
    own_fabrics.push_back(NewTcpFabric(options.clock));
    for (const auto& fabric : own_fabrics) link_options.fabrics.push_back(fabric.get());
  }

  RequesterConstants Here(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu) {
    const Profile* const profile = peers.seed().For(geometry);
    if (profile == nullptr) return MeasuredHere(geometry);
    RequesterConstants constants = profile->here;
    if (constants.attend.empty())
      constants.attend_per_row_token_us = MeasuredHere(geometry).attend_per_row_token_us;
    return constants;
  }

  RequesterConstants MeasuredHere(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu) {
    const auto key = std::make_tuple(geometry.d_qk, geometry.d_v, geometry.d_rope, geometry.dtype);
    {
      absl::MutexLock lock(&mu);
      if (const auto it = here.find(key); it != here.end()) return it->second;
    }
    const RequesterConstants measured = CalibrateHere(geometry, *clock);
    absl::MutexLock lock(&mu);
    if (here.size() >= kCalibrationCountMax) here.clear();
    return here.emplace(key, measured).first->second;
  }
  static constexpr size_t kCalibrationCountMax = 64;

  // Runs `attempt(engine, &outcome)` on an engine; again where that would cure the error, and after
  // the wait that an overloaded holder asks for.
  template <typename Attempt>
  absl::Status WithEngine(const Corpus* corpus, Instant deadline, Attempt attempt) {
    retry_budget.Earn();
    for (int retry = 0;; ++retry) {
      Outcome outcome;
      absl::Status status = OnOneEngine(corpus, deadline, attempt, &outcome);
      if (!absl::IsResourceExhausted(status) || !outcome.repeatable || retry == kRetryCountMax ||
          !AwaitRetry(status, deadline)) {
        return status;
      }
      spdlog::debug("{}; trying again", status.ToString());
    }
  }

  // Once more at once if a new session would cure the error, and with each replica that is left.
  template <typename Attempt>
  absl::Status OnOneEngine(const Corpus* corpus, Instant deadline, Attempt& attempt,
                           Outcome* outcome) {
    auto engine = pool.Take(deadline);
    if (!engine.ok()) return engine.status();
    LinkTable& links = (*engine)->router.links();
    links.BeginCall();
    for (int retry = 0;;) {
      *outcome = {};
      absl::Status status = attempt(**engine, outcome);
      if (status.ok()) return status;
      const bool late = clock->Now() >= deadline;
      if (outcome->stale && retry < kResolveRetryMax && !late) {
        ++retry;
        spdlog::debug("{}; resolving anew", status.ToString());
        continue;
      }
      if (absl::IsNotFound(status)) view.Forget(*corpus);
      // Its chunks may have been placed elsewhere meanwhile.
      if (absl::IsUnavailable(status)) view.Doubt(*corpus);
      if (late || !outcome->repeatable || !MayFailOver(status) || !links.FailOver(status) ||
          (absl::IsResourceExhausted(status) && !retry_budget.Spend())) {
        return status;
      }
      retry = 0;
      counters.failovers.fetch_add(1, std::memory_order_relaxed);
      spdlog::debug("{}; asking a replica", status.ToString());
    }
  }

  // Whether another holder may answer what one answered with `status`.
  static bool MayFailOver(const absl::Status& status) {
    switch (status.code()) {
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kDeadlineExceeded:  // of connecting: the call's own is not over
      case absl::StatusCode::kNotFound:
      case absl::StatusCode::kDataLoss:
      case absl::StatusCode::kFailedPrecondition:
      case absl::StatusCode::kAborted:
      case absl::StatusCode::kResourceExhausted:  // at the price of a retry
        return true;
      default:
        return false;
    }
  }

  // Waits as the status asks for, without an engine. False: it does not ask, or its wait is too
  // long, or too many retries were made.
  bool AwaitRetry(const absl::Status& status, Instant deadline) {
    const std::optional<Duration> after = RetryAfterOf(status);
    const Instant now = clock->Now();
    if (!after || *after > kRetryWaitMax || *after >= deadline - now) return false;
    if (!retry_budget.Spend()) {
      counters.retries_refused.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    counters.retries.fetch_add(1, std::memory_order_relaxed);
    WaitUntil(now + *after);
    return true;
  }

  void WaitUntil(Instant instant) {
    absl::Mutex wait_mu;
    absl::MutexLock lock(&wait_mu);
    const bool never = false;
    clock->Await(wait_mu, absl::Condition(&never), instant);
  }

  absl::Status Fetch(const FetchCall& call, const Fetcher::Place* place, Fetcher::Sink sink) {
    const auto fetch = [&](CallEngine& engine, Outcome* outcome) {
      absl::Status status = engine.fetcher.Fetch(call, place, sink, &outcome->stale);
      outcome->repeatable = !engine.fetcher.delivered();
      return status;
    };
    return WithEngine(call.corpus.get(), call.deadline, fetch);
  }

  // One attempt of a FetchInto, or two where a new session was needed.
  absl::Status FetchOn(CacheFetch& fetch) {
    const auto pieces = [&](const RowRun& run) { return fetch.Pieces(run); };
    const auto take = [&](const FetchedRows& run) { return fetch.Take(run); };
    const auto attempt = [&](CallEngine& engine, Outcome* outcome) {
      const FetchFrom from = fetch.Resume();
      return engine.fetcher.FetchOn(fetch.canonical(), from, pieces, take, &outcome->stale);
    };
    const FetchCall& call = fetch.canonical();
    return WithEngine(call.corpus.get(), call.deadline, attempt);
  }

  Clock* const clock;
  NetworkOracle* const oracle;
  LinkOptions link_options;
  RouteCounters counters;
  RetryBudget retry_budget;
  std::vector<std::unique_ptr<Fabric>> own_fabrics;
  DirectoryView view;
  PeerTable peers;
  absl::Mutex mu;
  std::map<std::tuple<uint32_t, uint32_t, uint32_t, RowDtype>, RequesterConstants> here
      ABSL_GUARDED_BY(mu);
  EnginePool pool;  // last: its lanes go before what they use
};

absl::StatusOr<std::unique_ptr<Requester>> Requester::Create(const RequesterOptions& options,
                                                             DirectoryControl* directory,
                                                             HolderControlFactory* holders) {
  CKV_RETURN_IF_ERROR(CheckOptions(options, directory, holders));
  return std::unique_ptr<Requester>(
      new Requester(std::make_unique<State>(options, directory, holders)));
}

Requester::Requester(std::unique_ptr<State> state) : state_(std::move(state)) {}
Requester::~Requester() = default;

absl::StatusOr<std::shared_ptr<const Corpus>> Requester::Resolve(std::string_view name,
                                                                 std::string_view tenant,
                                                                 Instant deadline) {
  return state_->view.Resolve(name, tenant, deadline);
}

absl::StatusOr<std::shared_ptr<const Corpus>> Requester::ResolveChunks(std::span<const ChunkId> ids,
                                                                       const Geometry& geometry,
                                                                       std::string_view tenant,
                                                                       Instant deadline) {
  return state_->view.ResolveChunks(ids, geometry, tenant, deadline);
}

void Requester::Forget(std::string_view name) { state_->view.Forget(name); }

absl::Status Requester::Attend(const AttendCall& call, const PartialView& out,
                               AttendReport* report) {
  return Attend(
      call, [&out] { return out; }, report);
}

absl::Status Requester::Attend(const AttendCall& call, AttendRoom room, AttendReport* report) {
  const auto checked_room = [&] {
    const PartialView out = room();
    CKV_CHECK(out.dtype == PartialDtype::kF32);
    CKV_CHECK(call.q.count == 0 || (out.o != nullptr && out.m != nullptr && out.l != nullptr));
    return out;
  };
  const auto attend = [&](CallEngine& engine, Outcome* outcome) {
    return engine.router.Attend(call, checked_room, report, &outcome->stale);
  };
  return state_->WithEngine(call.corpus.get(), call.deadline, attend);
}

absl::Status Requester::Fetch(const FetchCall& call,
                              absl::FunctionRef<absl::Status(const FetchedRows&)> sink) {
  return state_->Fetch(call, /*place=*/nullptr, sink);
}

absl::Status Requester::Fetch(const FetchCall& call,
                              absl::FunctionRef<std::span<std::byte>(const RowRun&)> place,
                              absl::FunctionRef<absl::Status(const FetchedRows&)> sink) {
  return state_->Fetch(call, &place, sink);
}

absl::Status Requester::FetchSelection(const SelectionCall& call,
                                       absl::FunctionRef<absl::Status(const SelectedRows&)> sink) {
  const auto fetch = [&](CallEngine& engine, Outcome* outcome) {
    absl::Status status = engine.fetcher.FetchSelection(call, sink, &outcome->stale);
    outcome->repeatable = !engine.fetcher.delivered();
    return status;
  };
  return state_->WithEngine(call.corpus.get(), call.deadline, fetch);
}

absl::Status Requester::FetchSelection(
    const SelectionCall& call, absl::FunctionRef<std::span<std::byte>(uint32_t layer)> place) {
  return FetchSelection(call, [&](const SelectedRows& chosen) {
    return PutSelected(call, chosen, place(chosen.layer));
  });
}

absl::Status Requester::FetchInto(const FetchCall& call, PagedCache& cache,
                                  CacheSequenceId sequence, FetchIntoReport* report) {
  const Instant begin = state_->clock->Now();
  CKV_ASSIGN_OR_RETURN(CacheFetch fetch, CacheFetch::Begin(call, cache, sequence));
  absl::Status status;
  int reopening = 0;  // since the last whole layer
  uint32_t reopen_count = 0;
  while (!fetch.whole()) {
    const uint64_t whole_before = fetch.whole_count();
    status = state_->FetchOn(fetch);
    if (fetch.whole_count() > whole_before) reopening = 0;
    if (status.ok() || !CanReopen(status) || ++reopening > kReopenCountMax) break;
    const Instant next = state_->clock->Now() + ReopenWait(reopening);
    if (next >= call.deadline) break;
    spdlog::debug("{}; going on", fetch.Describe(status).ToString());
    ++reopen_count;
    if (reopening > 1) state_->WaitUntil(next);
  }
  if (report != nullptr) *report = {fetch.rows_taken(), reopen_count, state_->clock->Now() - begin};
  if (!status.ok()) return fetch.Describe(status);
  return std::move(fetch).Commit();
}

absl::StatusOr<MappedChunk> Requester::Map(const MapCall& call) {
  MappedChunk mapped;
  const auto map = [&](CallEngine& engine, Outcome* outcome) -> absl::Status {
    CKV_ASSIGN_OR_RETURN(
        mapped, MapChunk(call, engine.router, *state_->clock, state_->counters, &outcome->stale));
    return absl::OkStatus();
  };
  CKV_RETURN_IF_ERROR(state_->WithEngine(call.corpus.get(), call.deadline, map));
  return mapped;
}

absl::StatusOr<Requester::Explanation> Requester::Explain(const ExplainCall& call) {
  if (call.corpus == nullptr) return absl::InvalidArgumentError("explain: no corpus");
  const RequesterConstants here = state_->Here(call.corpus->geometry);
  Explanation explanation;
  const auto measure = [&](CallEngine& engine, Outcome*) -> absl::Status {
    const ExplainTools tools = {state_->peers, engine.router, *state_->clock, state_->oracle};
    CKV_ASSIGN_OR_RETURN(MeasuredInput measured, MeasureDecisionInput(call, here, tools));
    explanation.input = std::move(measured.input);
    explanation.holders = std::move(measured.holders);
    return absl::OkStatus();
  };
  CKV_RETURN_IF_ERROR(state_->WithEngine(call.corpus.get(), call.deadline, measure));
  explanation.decision = Decide(explanation.input);
  explanation.flips = Flips(explanation.input);
  explanation.sensitivities = Sensitivities(explanation.input);
  explanation.summary = DescribeDecision(explanation.decision, explanation.input);
  return explanation;
}

RequesterStats Requester::Stats() const {
  const RouteCounters& counters = state_->counters;
  const auto read = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  return {.discarded_reply_count = read(counters.discarded),
          .rdma_fallback_count = read(counters.rdma_fallbacks),
          .retry_count = read(counters.retries),
          .retry_refused_count = read(counters.retries_refused),
          .failover_count = read(counters.failovers)};
}

std::vector<HolderView> Requester::Holders() const {
  state_->peers.Refresh(state_->clock->Now() + kMembersTimeout);
  return KnownHolders();
}

std::vector<HolderView> Requester::KnownHolders() const { return state_->peers.Views(); }

}  // namespace ckv
