// The threads of the prefetcher. mu_ guards the plan, and is free while costs are computed
// and rows are copied.
//   caller    Watch adds a context. With policy `cache`, it waits until the plan is settled
//   deciding  DecideAll takes the contexts that are due. Update computes costs, then changes the
//             plan
//   copying   CopyAll takes a job from the plan. Copy makes room, then recomputes, maps or fetches
// The destructor sets stopping_, wakes all threads, and joins them.

#include "client/prefetch/prefetcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/prefetch/context_ranges.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

uint32_t PrefetchFlows(const Profile* profile, std::string_view host_identity) {
  uint32_t most = 0;
  if (profile != nullptr && WhyNotFrom(*profile, host_identity).empty()) {
    for (const LaneProfile& lane : profile->lanes) {
      if (lane.fabric != "shm") most = std::max(most, lane.fetch_elbow);
    }
  }
  return most == 0 ? kPrefetchFlowsDefault : std::min(most, kPrefetchFlowsMax);
}

Prefetcher::Prefetcher(const PrefetcherOptions& options, PrefetcherTools tools)
    : options_(options),
      tools_(std::move(tools)),
      store_(options.local_cache_bytes),
      waker_(std::make_shared<PrefetchWaker>()),
      copier_(&options_, &tools_, &store_, &stopping_),
      costs_(&options_, &tools_),
      plan_(&options_, &tools_, &store_) {}

Prefetcher::~Prefetcher() {
  std::vector<Thread> threads;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    threads.swap(threads_);
  }
  waker_->Poke();
  for (Thread& thread : threads) thread.join();
}

void Prefetcher::StartThreads() {
  if (!threads_.empty()) return;
  threads_.emplace_back([this] { DecideAll(); });
  for (uint32_t i = 0; i < options_.flow_count; ++i) threads_.emplace_back([this] { CopyAll(); });
}

absl::Status Prefetcher::Watch(const std::shared_ptr<ContextState>& context,
                               const ContextSpec& spec, Instant deadline) {
  const ContextPolicy policy = spec.policy;
  if (policy == ContextPolicy::kRoute || !options_.reached ||
      (options_.local_cache_bytes == 0 && policy != ContextPolicy::kCache))
    return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(const std::shared_ptr<WatchedContext> watched, MakeWatched(context, spec));
  absl::MutexLock lock(&mu_);
  plan_.Add(watched, waker_);
  waker_->Expect(plan_.context_count());
  StartThreads();
  if (policy != ContextPolicy::kCache) return absl::OkStatus();

  absl::Status status;
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return plan_.Settled(*watched, status);
  };
  if (!options_.clock->Await(mu_, absl::Condition(&settled), deadline))
    status =
        absl::DeadlineExceededError("local row cache: not all rows had arrived by the deadline");
  if (!status.ok()) plan_.Unwatch(*watched);
  return status;
}

absl::StatusOr<std::shared_ptr<WatchedContext>> Prefetcher::MakeWatched(
    const std::shared_ptr<ContextState>& context, const ContextSpec& spec) const {
  auto watched = std::make_shared<WatchedContext>();
  watched->policy = spec.policy;
  watched->expect = spec.expect;
  if (spec.policy == ContextPolicy::kAuto) watched->recompute = spec.recompute;
  watched->context = context;
  watched->measured_at = options_.clock->Now();
  uint64_t bytes = 0;
  for (ContextRange& range : RangesOf(*context)) {
    bytes += range.bytes;
    // Recomputed rows are only for contexts that can recompute, so these have ranges of their own.
    if (watched->can_recompute()) range.key = ~range.key;
    WatchedContext::Use& use = watched->uses.emplace_back();
    use.range = range;
    use.share = static_cast<double>(range.tokens) / static_cast<double>(context->token_count());
  }
  if (spec.policy == ContextPolicy::kCache && bytes > options_.local_cache_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "local row cache: the context's rows are %d bytes, and the local row cache has %d: raise "
        "local_cache_bytes, or use policy auto or route",
        bytes, options_.local_cache_bytes));
  }
  watched->same_bits = spec.policy == ContextPolicy::kCache ||
                       std::all_of(context->corpora().begin(), context->corpora().end(),
                                   [&](const auto& corpus) { return tools_.same_target(corpus); });
  return watched;
}

void Prefetcher::DecideAll() {
  std::vector<uint64_t> due;
  while (true) {
    waker_->Take(*options_.clock, due);
    for (const uint64_t id : due) {
      std::shared_ptr<WatchedContext> watched;
      {
        absl::MutexLock lock(&mu_);
        if (stopping_) return;
        watched = plan_.Find(id);
      }
      if (watched != nullptr) Update(*watched);
    }
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    waker_->Done();
  }
}

void Prefetcher::Update(WatchedContext& watched) {
  const ContextUsage& usage = watched.context->usage();
  const SeenCalls calls = {usage.call_count(), usage.last_call(), usage.closed()};
  if (watched.policy == ContextPolicy::kCache) {
    absl::MutexLock lock(&mu_);
    if (calls.closed) plan_.Unwatch(watched);
    return;
  }
  absl::StatusOr<ContextCost> cost = absl::UnavailableError("no call has been made yet");
  if (calls.count > 0 && !calls.closed) {
    cost = costs_.Of(watched, calls.last);
    if (!cost.ok()) Log().debug("auto: {}; the context is routed", cost.status().ToString());
  }
  absl::MutexLock lock(&mu_);
  plan_.Update(watched, calls, cost);
}

void Prefetcher::CopyAll() {
  while (true) {
    PrefetchJob job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Prefetcher::HasWorkOrStops));
      if (stopping_) return;
      if (!plan_.BeginNext(job)) continue;
    }
    const absl::Status status = Copy(job);
    absl::MutexLock lock(&mu_);
    plan_.End(job, status, /*may_repeat=*/copier_.wanted());
  }
}

absl::Status Prefetcher::Copy(PrefetchJob& job) {
  if (job.primitive == Primitive::kFetch) copier_.CopyHere(job);
  {
    absl::MutexLock lock(&mu_);
    CKV_RETURN_IF_ERROR(plan_.ReserveSpace(job));
  }
  if (job.recomputes) {
    absl::Status status = Recompute(job);
    if (status.ok() || !copier_.wanted()) return status;
    Log().warn("auto: rows could not be recomputed: {}; fetching them instead", status.ToString());
    absl::MutexLock lock(&mu_);
    CKV_RETURN_IF_ERROR(plan_.ReserveSpaceToFetch(job));
  }
  copier_.KeepAtCache(job);
  CKV_ASSIGN_OR_RETURN(auto mapped, copier_.Map(job));
  {
    absl::MutexLock lock(&mu_);
    CKV_RETURN_IF_ERROR(plan_.Adopt(job, std::move(mapped)));
  }
  return copier_.Copy(job);
}

absl::Status Prefetcher::Recompute(PrefetchJob& job) {
  if (job.missing.empty()) return absl::OkStatus();
  const RowCopier::Recomputed made = copier_.Recompute(job);
  absl::MutexLock lock(&mu_);
  plan_.EndRecompute(job, made.status, made.tokens, made.took);
  return made.status;
}

PrefetcherStats Prefetcher::stats() const {
  absl::MutexLock lock(&mu_);
  return plan_.stats();
}

void Prefetcher::AwaitIdle() {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return plan_.idle() && waker_->idle();
  };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&idle));
}

}  // namespace ckv
