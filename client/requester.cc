// A call takes a call context. Attempts runs it there on the caller's thread, and again if another
// replica can cure its error. Submit returns a Ticket with the context. State has all parts.

#include "client/requester.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/call/attempts.h"
#include "client/call/call_context_pool.h"
#include "client/call/hedge.h"
#include "client/call/map.h"
#include "client/call/ticket_state.h"
#include "client/explain.h"
#include "client/holders/session_opener.h"
#include "client/live_costs.h"
#include "client/paged/fetch_into.h"
#include "client/plan/layer_call.h"
#include "client/prefetch/mapped_rows.h"
#include "client/prefetch/prefetcher.h"
#include "client/prefetch/step_costs.h"
#include "client/remeasure.h"
#include "proto/base/status.h"
#include "proto/host/lock_checks.h"

namespace ckv {
namespace {

PartialView Checked(const PartialView& out, uint32_t row_count) {
  CKV_CHECK(out.dtype == PartialDtype::kF32);
  CKV_CHECK(row_count == 0 || (out.o != nullptr && out.m != nullptr && out.l != nullptr));
  return out;
}

// How long Holders waits for the directory, because people wait for Holders.
constexpr Duration kMembersTimeout = std::chrono::seconds(1);

}  // namespace

struct Requester::State {
  State(const RequesterOptions& options, DirectoryControl* directory, HolderControlFactory* holders)
      : clock(options.clock),
        oracle(options.oracle),
        view(directory, options.clock),
        peers(&view, holders, options.profile, *options.backend),
        costs(&peers, options.oracle, options.clock, options.backend, options.lane_shape),
        opener(options.clock),
        pool(options.clock, options.call_count_max,
             [this, spin = options.spin_max, threads = options.call_threads] {
               return CallContext::Make(&link_options, &peers, spin, &counters, threads);
             }),
        attempts(options.clock, &pool, &view, &counters),
        // One to measure for contexts, one to measure again, and one for each flow.
        prefetch_pool(options.clock,
                      /*call_count_max=*/2 + PrefetchFlows(options.profile.get(), HostIdentity()),
                      [this, spin = options.spin_max] {
                        return CallContext::Make(&link_options, &peers, spin, &counters);
                      }),
        prefetch_attempts(options.clock, &prefetch_pool, &view, &counters),
        prefetcher({.clock = clock,
                    .local_cache_bytes = options.local_cache_bytes,
                    .reached = ReachesLocalRows(*options.backend),
                    .flow_count = PrefetchFlows(options.profile.get(), HostIdentity())},
                   Tools(options)),
        remeasurer(options.clock, &peers, [this](HolderPeer& peer, Instant by) {
          return MeasureDoubted(peer, [&](const Corpus& corpus, const Remeasure& measure) {
            return prefetch_attempts.Run(&corpus, by, [&](CallContext& context) -> AttemptResult {
              return {measure({peers, context.links, context.router, *clock, oracle}, by),
                      /*repeatable=*/true, /*may_wait=*/false};
            });
          });
        }) {
    link_options = LinkOptionsOf(options);
    link_options.counters = &counters;
    link_options.here = &costs.live_here();
    link_options.calls = &costs.live_calls();
    link_options.opener = &opener;
    if (!options.fabrics.empty()) return;
    own_fabrics.push_back(NewShmFabric(options.clock));
    own_fabrics.push_back(NewTcpFabric(options.clock));
    for (const auto& fabric : own_fabrics) link_options.fabrics.push_back(fabric.get());
  }

  // The prefetcher's fetches may wait for holders, and its threads end with it.
  ~State() { prefetch_attempts.Stop(); }

  // Attends a call. If `part` is not null, its chunks are the context of the only segment.
  absl::Status Attend(const LayerCall& call, const AttendCall* part, AttendBuffers buffers,
                      MemoryKind buffer_memory, AttendReport* report) {
    const auto checked_buffers = [&] { return Checked(buffers(), call.q.count); };
    CallCorpora corpora;
    bool again = false;
    const auto attend = [&](CallContext& context) -> AttemptResult {
      const ContextState* whole = nullptr;
      if (part != nullptr) {
        const auto state = context.contexts.For(part->corpus, part->chunks);
        if (!state.ok()) return {state.status()};
        whole = *state;
      }
      auto route = context.segments.Take(call, buffer_memory, std::exchange(again, true), whole);
      if (!route.ok()) return {route.status()};
      route->tries = context.tries;
      HedgedAttend hedged(&attempts, clock);
      absl::Status status = hedged.Run(context, *route, checked_buffers, report);
      if (absl::IsOutOfRange(status) && context.segments.HasCandidates()) {
        status = context.chooser.FindAgain(*route, context.segments);
        if (status.ok()) status = hedged.Run(context, *route, checked_buffers, report);
      }
      if (!status.ok()) corpora = CorporaOf(*route);
      context.segments.Clear();
      return {.status = std::move(status), .corpora = corpora};
    };
    return attempts.Run(/*corpus=*/nullptr, call.deadline, attend, call.trace);
  }

  // Calls `select` with a call context. `state` is that of the call's context of chunks.
  absl::Status Select(const SelectRowsCall& call, const std::shared_ptr<const ContextState>& state,
                      absl::FunctionRef<absl::Status(CallContext&, const RowSelection&)> select) {
    if (state == nullptr || state->closed())
      return absl::FailedPreconditionError("select: the context is closed");
    counters.selections.fetch_add(1, std::memory_order_relaxed);
    CallCorpora corpora;
    for (const auto& corpus : state->corpora()) corpora.push_back(corpus.get());
    const auto run = [&](CallContext& context) -> AttemptResult {
      const auto cached = ReachesLocalRows(*link_options.backend) ? state->cached() : nullptr;
      return {.status = select(context, {call, *state, cached.get()}), .corpora = corpora};
    };
    return attempts.Run(/*corpus=*/nullptr, call.deadline, run, call.trace);
  }

  // Runs a call, and counts how long it took if it succeeded.
  absl::Status Timed(LatencyHistogram& histogram, absl::FunctionRef<absl::Status()> call) {
    const Instant begin = clock->Now();
    absl::Status status = call();
    if (status.ok()) histogram.Add(clock->Now() - begin);
    return status;
  }

  absl::Status Fetch(const FetchCall& call, const Fetcher::Place* place, Fetcher::Sink sink,
                     Attempts& by) {
    counters.fetches.fetch_add(1, std::memory_order_relaxed);
    uint64_t shown = 0;
    bool refused = false;
    const auto show = [&](const FetchedRows& run) {
      absl::Status status = sink(run);
      refused = !status.ok();
      return status;
    };
    const auto fetch = [&](CallContext& context) {
      absl::Status status = context.fetcher.Fetch(call, place, show, shown);
      const uint64_t before = std::exchange(shown, context.fetcher.shown());
      return AttemptResult{std::move(status), !refused, /*may_wait=*/true, shown > before};
    };
    return by.Run(call.corpus.get(), call.deadline, fetch, call.trace);
  }

  absl::StatusOr<MappedChunk> Map(const MapCall& call, Attempts& by) {
    absl::StatusOr<MappedChunk> mapped = absl::UnknownError("no holder was queried");
    const auto map = [&](CallContext& context) {
      mapped = MapChunk(call, context.links, context.exchange, *clock);
      return AttemptResult{mapped.status(), /*repeatable=*/!call.may_be_refused};
    };
    CKV_RETURN_IF_ERROR(by.Run(call.corpus.get(), call.deadline, map));
    return mapped;
  }

  PrefetcherTools Tools(const RequesterOptions& of) {
    PrefetcherTools tools;
    tools.cost = [this](const PrefetcherTools::Work& work) { return Cost(work); };
    tools.measure = [this](const PrefetcherTools::Work& work, Instant deadline) {
      ExplainCall call;
      call.corpus = work.corpus;
      call.chunks = work.chunks;
      call.query_rows = work.query_rows;
      call.select = work.selected;
      call.deadline = deadline;
      return Measure(call, prefetch_attempts).status();
    };
    tools.same_target = [this](const std::shared_ptr<const Corpus>& corpus) {
      return costs.HaveTarget(corpus, KernelTargetIdOf(link_options.backend->kernel_target()));
    };
    tools.source = [this](const std::shared_ptr<const Corpus>& corpus,
                          uint32_t chunk) -> const void* {
      const auto groups = costs.GroupsOf(corpus);
      if (!groups.ok() || (*groups)->Of(chunk) == ChunkGroups::kNoGroup) return nullptr;
      return (*groups)->PeersOf((*groups)->Of(chunk)).front();
    };
    tools.here = of.local_row_source;
    if (of.host_cache != nullptr) tools.keep = std::bind_front(&HostCache::Keep, of.host_cache);
    tools.map = [this](const MapCall& call) -> absl::StatusOr<std::shared_ptr<const LocalRows>> {
      const Instant begin = clock->Now();
      CKV_ASSIGN_OR_RETURN(MappedChunk chunk, Map(call, prefetch_attempts));
      costs.ObserveMap(call, clock->Now() - begin);
      return std::make_shared<MappedRows>(std::move(chunk), call.corpus->geometry.tensor_count());
    };
    tools.fetch = [this](const FetchCall& call, const PrefetcherTools::Place& place,
                         const std::function<bool()>& wanted) {
      const Fetcher::Place to = place;
      const Instant begin = clock->Now();
      absl::Status status = Fetch(
          call, &to,
          [&](const FetchedRows&) {
            return wanted() ? absl::OkStatus() : absl::CancelledError("the requester is closing");
          },
          prefetch_attempts);
      const Duration took = clock->Now() - begin;
      if (status.ok()) costs.ObservePrefetch(call, took);
      if (status.ok()) counters.prefetch.Add(took);
      return status;
    };
    return tools;
  }

  absl::StatusOr<MeasuredInput> Measure(const ExplainCall& call, Attempts& by) {
    absl::StatusOr<MeasuredInput> measured = absl::UnknownError("no holder was queried");
    CKV_ASSIGN_OR_RETURN(const RequesterConstants constants, costs.Here(call.corpus->geometry));
    CKV_RETURN_IF_ERROR(
        by.Run(call.corpus.get(), call.deadline, [&](CallContext& context) -> AttemptResult {
          const ExplainTools tools = {peers, context.links, context.router, *clock, oracle};
          measured = MeasureDecisionInput(call, constants, tools);
          // Reports the current state of holders, so it does not wait for one.
          return {measured.status(), /*repeatable=*/true, /*may_wait=*/false};
        }));
    remeasurer.Start();
    return measured;
  }

  // Returns the cost of one step, and of a prefetch.
  absl::StatusOr<StepCost> Cost(const PrefetcherTools::Work& work) {
    CKV_ASSIGN_OR_RETURN(DecisionInput input, costs.KnownInput({.corpus = work.corpus,
                                                                .chunks = work.chunks,
                                                                .query_rows = work.query_rows,
                                                                .select = work.selected}));
    return StepCostOf(std::move(input));
  }

  // Attempts of a FetchInto, counted in `count`.
  absl::Status FetchOn(CacheFetch& fetch, uint32_t& count) {
    const auto spans = [&](const RowRun& run) { return fetch.Spans(run); };
    const auto attempt = [&](CallContext& context) {
      ++count;
      const FetchFrom from = fetch.Resume();
      const auto take = [&](const FetchedRows& run) { return fetch.Take(run, *context.stream); };
      const uint64_t before = fetch.whole_count();
      absl::Status status = context.fetcher.FetchOn(fetch.canonical(), from, spans, take);
      return AttemptResult{std::move(status), /*repeatable=*/true, /*may_wait=*/true,
                           fetch.whole_count() > before};
    };
    const FetchCall& call = fetch.canonical();
    return attempts.Run(call.corpus.get(), call.deadline, attempt, call.trace);
  }

  Clock* const clock;
  NetworkOracle* const oracle;
  LinkOptions link_options;
  CallCounters counters;
  std::vector<std::unique_ptr<Fabric>> own_fabrics;
  DirectoryView view;
  PeerTable peers;
  LiveCosts costs;
  SessionOpener opener;  // has orders of the links of both pools
  CallContextPool pool;  // its lanes are destroyed before what they use
  Attempts attempts;
  // The prefetcher's own, so that it takes none from calls.
  CallContextPool prefetch_pool;
  Attempts prefetch_attempts;
  Prefetcher prefetcher;  // its threads use all of the others
  Remeasurer remeasurer;  // so does its own
};

absl::StatusOr<std::unique_ptr<Requester>> Requester::Create(const RequesterOptions& options,
                                                             DirectoryControl* directory,
                                                             HolderControlFactory* holders) {
  if (directory == nullptr || holders == nullptr)
    return absl::InvalidArgumentError("requester: directory and holders are needed");
  CKV_RETURN_IF_ERROR(ValidateRequesterOptions(options));
  EndLockOrderChecks();
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

std::shared_ptr<const Corpus> Requester::Kept(std::string_view name,
                                              std::string_view tenant) const {
  return state_->view.Kept(name, tenant);
}
absl::StatusOr<TenantKey> Requester::TenantKeyOf(std::string_view tenant, Instant deadline) {
  return state_->view.TenantKeyOf(tenant, deadline);
}
absl::StatusOr<PromptMatch> Requester::MatchPrompt(const PromptCall& call) {
  return state_->view.MatchPrompt(call);
}
void Requester::Invalidate(std::string_view name) { state_->view.Invalidate(name); }
void Requester::OnMemberUp(const Member& member) { state_->peers.OnMemberUp(member); }

absl::Status Requester::Attend(const AttendCall& call, const PartialView& out,
                               AttendReport* report) {
  return Attend(
      call, [&out] { return out; }, report, out.memory);
}

absl::Status Requester::Attend(const AttendCall& call, AttendBuffers buffers, AttendReport* report,
                               MemoryKind buffer_memory) {
  if (call.corpus == nullptr) return absl::InvalidArgumentError("attend: no corpus");
  Segment segment;
  const LayerCall whole = LayerCallOf(call, segment);
  return state_->Attend(whole, &call, buffers, buffer_memory, report);
}

absl::StatusOr<Context> Requester::Open(const ContextSpec& spec, Instant deadline) {
  CKV_ASSIGN_OR_RETURN(std::shared_ptr<ContextState> state, ContextState::Make(spec.parts));
  // Opens the sessions and resolves the handles that the first call would need, on one of the call
  // contexts.
  const RouteSegment segment = {.row_count = 1, .context = state.get()};
  const RouteCall call = {.segments = {&segment, 1}, .deadline = deadline};
  const CallCorpora corpora = CorporaOf(call);
  const auto warm_up = [&](CallContext& context) {
    return AttemptResult{
        .status = context.router.Warm(call), .may_wait = spec.await_holders, .corpora = corpora};
  };
  absl::Status warm = state_->attempts.Run(/*corpus=*/nullptr, deadline, warm_up);
  // Unless the caller awaits holders, unreachable ones are no error: calls wait for them.
  const bool away = absl::IsUnavailable(warm) || absl::IsDeadlineExceeded(warm);
  if (spec.await_holders || !away) CKV_RETURN_IF_ERROR(warm);
  CKV_RETURN_IF_ERROR(state_->prefetcher.Watch(state, spec, deadline));
  state_->counters.reused_tokens.fetch_add(state->token_count(), std::memory_order_relaxed);
  return Context(std::move(state), spec.expect);
}

absl::Status Requester::Attend(const LayerCall& call, const PartialView& out,
                               AttendReport* report) {
  return state_->Attend(
      call, /*part=*/nullptr, [&out] { return out; }, out.memory, report);
}

absl::Status Requester::Attend(const Context& context, uint32_t layer, const QueryView& q,
                               const PartialView& out, Instant deadline) {
  const Segment segment = {.row_count = q.count, .context = &context};
  const LayerCall call = {.layer = layer, .q = q, .segments = {&segment, 1}, .deadline = deadline};
  return Attend(call, out, /*report=*/nullptr);
}

absl::StatusOr<Ticket> Requester::Submit(const LayerCall& call, const PartialView& out,
                                         AttendReport* report) {
  return Submit(call, out, report, /*may_wait=*/true);
}

absl::StatusOr<Ticket> Requester::TrySubmit(const LayerCall& call, const PartialView& out,
                                            AttendReport* report) {
  return Submit(call, out, report, /*may_wait=*/false);
}

absl::StatusOr<Ticket> Requester::Submit(const LayerCall& call, const PartialView& out,
                                         AttendReport* report, bool may_wait) {
  LayerCallSegments segments;
  CKV_ASSIGN_OR_RETURN(const RouteCall route, segments.Take(call, out.memory));
  CKV_RETURN_IF_ERROR(CheckRouteCall(route, *state_->link_options.backend));
  CKV_ASSIGN_OR_RETURN(CallContextPool::Lease lease, state_->pool.TryTake());
  return Ticket(std::make_unique<TicketState>(&state_->attempts, state_->clock, std::move(lease),
                                              std::move(segments), route,
                                              Checked(out, call.q.count), report, may_wait));
}

absl::Status Requester::Fetch(const FetchCall& call,
                              absl::FunctionRef<absl::Status(const FetchedRows&)> sink) {
  return state_->Timed(state_->counters.fetch, [&] {
    return state_->Fetch(call, /*place=*/nullptr, sink, state_->attempts);
  });
}

absl::Status Requester::Fetch(const FetchCall& call,
                              absl::FunctionRef<std::span<std::byte>(const RowRun&)> place,
                              absl::FunctionRef<absl::Status(const FetchedRows&)> sink) {
  return state_->Timed(state_->counters.fetch,
                       [&] { return state_->Fetch(call, &place, sink, state_->attempts); });
}

absl::Status Requester::SelectRows(const SelectRowsCall& call, std::span<int32_t> rows,
                                   SelectRowsReport* report) {
  return state_->Select(call, StateOf(call),
                        [&](CallContext& context, const RowSelection& selection) {
                          return context.selector.Select(selection, rows, report);
                        });
}

absl::StatusOr<RowChoice> Requester::ChooseRows(const SelectRowsCall& call,
                                                SelectRowsReport* report) {
  RowChoice choice;
  CKV_RETURN_IF_ERROR(
      state_->Select(call, StateOf(call), [&](CallContext& context, const RowSelection& selection) {
        auto made = context.chooser.Choose(selection, call.context->state_, report);
        if (!made.ok()) return made.status();
        choice = RowChoice(*std::move(made));
        return absl::OkStatus();
      }));
  return choice;
}

absl::Status Requester::FetchSelection(const SelectionCall& call,
                                       absl::FunctionRef<absl::Status(const SelectedRows&)> sink) {
  state_->counters.fetches.fetch_add(1, std::memory_order_relaxed);
  uint64_t shown = 0;
  bool refused = false;
  const auto show = [&](const SelectedRows& chosen) {
    absl::Status status = sink(chosen);
    refused = !status.ok();
    return status;
  };
  const auto fetch = [&](CallContext& context) {
    absl::Status status = context.fetcher.FetchSelection(call, show, shown);
    const uint64_t before = std::exchange(shown, context.fetcher.shown());
    return AttemptResult{std::move(status), !refused, /*may_wait=*/true, shown > before};
  };
  return state_->Timed(state_->counters.fetch, [&] {
    return state_->attempts.Run(call.corpus.get(), call.deadline, fetch, call.trace);
  });
}

absl::Status Requester::FetchSelection(
    const SelectionCall& call, absl::FunctionRef<std::span<std::byte>(uint32_t layer)> place) {
  return FetchSelection(call, [&](const SelectedRows& chosen) {
    return PutSelected(call, chosen, place(chosen.layer));
  });
}

absl::Status Requester::FetchInto(const FetchCall& call, PagedCache& cache,
                                  CacheSequenceId sequence, FetchIntoReport* report) {
  state_->counters.fetches.fetch_add(1, std::memory_order_relaxed);
  const Instant begin = state_->clock->Now();
  CKV_ASSIGN_OR_RETURN(CacheFetch fetch,
                       CacheFetch::Begin(call, cache, sequence, *state_->link_options.backend));
  uint32_t attempt_count = 0;
  const absl::Status status =
      fetch.whole() ? absl::OkStatus() : state_->FetchOn(fetch, attempt_count);
  if (report != nullptr) {
    const uint32_t reopen_count = attempt_count == 0 ? 0 : attempt_count - 1;
    *report = {fetch.rows_taken(), reopen_count, state_->clock->Now() - begin};
  }
  if (!status.ok()) return fetch.Describe(status);
  state_->counters.fetch.Add(state_->clock->Now() - begin);
  return std::move(fetch).Commit();
}

absl::StatusOr<MappedChunk> Requester::Map(const MapCall& call) {
  return state_->Map(call, state_->attempts);
}

absl::StatusOr<Requester::Explanation> Requester::Explain(const ExplainCall& call) {
  state_->counters.explains.fetch_add(1, std::memory_order_relaxed);
  if (call.corpus == nullptr) return absl::InvalidArgumentError("explain: no corpus");
  CKV_ASSIGN_OR_RETURN(MeasuredInput measured, state_->Measure(call, state_->attempts));
  const auto is_cached = [&](const ChunkPlacement& chunk) {
    return state_->prefetcher.IsLocal(chunk.id, call.corpus->geometry);
  };
  return ExplanationOf(call, std::move(measured), state_->peers, state_->costs.live_calls(),
                       is_cached);
}

absl::StatusOr<std::vector<GroupEstimate>> Requester::Estimate(const EstimateCall& call) const {
  return state_->costs.Estimate(call, [&](uint32_t chunk) {
    return state_->prefetcher.IsLocal(call.corpus->chunks[chunk].id, call.corpus->geometry);
  });
}

absl::Status Requester::ReportPrefill(const Geometry& geometry, uint64_t tokens, Duration took) {
  return state_->costs.prefill().Report(geometry, tokens, took);
}

std::vector<ChunkId> Requester::LocalChunks() const { return state_->prefetcher.LocalChunks(); }

RequesterStats Requester::Stats(size_t corpus_count_max) const {
  return StatsOf(state_->counters, state_->prefetcher.stats(), corpus_count_max);
}

std::vector<HolderView> Requester::Holders() const {
  state_->peers.Refresh(state_->clock->Now() + kMembersTimeout);
  return KnownHolders();
}
std::vector<HolderView> Requester::KnownHolders() const { return state_->peers.Views(); }

}  // namespace ckv
