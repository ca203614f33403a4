// The states of a chunk range. The prefetcher's lock guards them:
//   kFar      Decide or Add queues it                      -> kQueued
//             Add finds all its chunks here                -> kNear
//   kQueued   BeginNext gives it to a copying thread       -> kPulling, or kNear if it is here
//   kPulling  End, after ReserveSpace, Adopt and the copy  -> kNear, or kFar after an error. If a
//             context came to need it meanwhile            -> kQueued
//   kNear     EvictFor makes room, or a borrowed range loses its last user   -> kFar
// Update leads to Decide: TakeCost, Count and Price report the calls to the rule, which decides.

#include "client/prefetch/prefetch_plan.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// The most calls until a context is examined again.
constexpr uint64_t kCallsMax = uint64_t{1} << 40;
// The cost model's error over all query counts (deploy/bench.sh decision).
constexpr double kModelError = 0.12;

using State = PrefetchRun::State;

}  // namespace

PrefetchPlan::PrefetchPlan(const PrefetcherOptions* options, const PrefetcherTools* tools,
                           LocalRowCache* store)
    : clock_(options->clock),
      tools_(tools),
      local_(store, tools->here),
      rule_({.capacity_bytes = options->near_bytes}) {}

void PrefetchPlan::Add(const std::shared_ptr<WatchedContext>& watched,
                       std::shared_ptr<ContextWatcher> watcher) {
  watched->id = ++last_id_;
  watched->context->usage().Watch(std::move(watcher), watched->id);
  contexts_.emplace(watched->id, watched);
  const bool whole = watched->policy == ContextPolicy::kNear;
  std::vector<PrefetchRun*> came_near;
  for (size_t i = 0; i < watched->uses.size(); ++i) {
    const ContextRun& context_run = watched->uses[i].run;
    std::unique_ptr<PrefetchRun>& run = runs_[context_run.key];
    if (run == nullptr) {
      run = std::make_unique<PrefetchRun>();
      run->key = context_run.key;
      run->bytes = context_run.bytes;
    }
    run->users.push_back(watched->id);
    if (run->state == State::kFar && HoldAll(*run, *watched, context_run))
      came_near.push_back(run.get());
    if (run->state == State::kNear) Record(*watched, i, Primitive::kFetch, PrefetchReason::kHere);
    if (!whole) continue;
    ++run->held;
    run->requested_by = watched->id;
    if (run->state != State::kFar) continue;
    Record(*watched, i, Primitive::kFetch, PrefetchReason::kPolicy);
    run->state = State::kQueued;
    queue_.AddFirst(run->key);
  }
  PublishTo(*watched);
  for (PrefetchRun* const run : came_near) Publish(*run);  // to other contexts that have it
}

std::shared_ptr<WatchedContext> PrefetchPlan::Find(uint64_t id) const {
  const auto known = contexts_.find(id);
  return known == contexts_.end() ? nullptr : known->second;
}

bool PrefetchPlan::Settled(const WatchedContext& watched, absl::Status& status) const {
  bool all_near = true;
  for (const WatchedContext::Use& use : watched.uses) {
    const PrefetchRun& run = *runs_.at(use.run.key);
    status = run.state == State::kFar ? run.last_error : absl::OkStatus();
    if (!status.ok()) return true;
    all_near &= run.state == State::kNear;
  }
  return all_near;
}

void PrefetchPlan::Update(WatchedContext& watched, const SeenCalls& calls,
                          const absl::StatusOr<ContextCost>& cost) {
  if (cost.ok()) TakeCost(watched, calls.last, *cost);
  // Without new costs, the previous ones apply.
  if (watched.known) Count(watched, calls.count);
  if (calls.closed) {
    Unwatch(watched);
  } else if (!watched.known) {
    for (size_t i = 0; i < watched.uses.size(); ++i)
      Record(watched, i, Primitive::kRoute, PrefetchReason::kUnknown);
    watched.context->usage().SetDueAt(std::max<uint64_t>(1, 2 * calls.count));
  }
}

void PrefetchPlan::TakeCost(WatchedContext& watched, const CallShape& shape,
                            const ContextCost& cost) {
  const CallShape& known = watched.shape;
  const bool same = known.call_row_count == shape.call_row_count &&
                    known.selected == shape.selected && known.f32 == shape.f32;
  if (watched.known && !same) watched.context->usage().ForgetRouted();
  watched.known = true;
  watched.cost = cost.step;
  watched.shape = shape;
  // Holders may have reported their targets since.
  if (watched.same_bits == cost.same_bits) return;
  watched.same_bits = cost.same_bits;
  PublishTo(watched);
}

void PrefetchPlan::Price(WatchedContext& watched, Instant now) {
  const double price_us = prices_.Of(watched).first;
  const double layers = watched.context->geometry().layers;
  for (WatchedContext::Use& use : watched.uses) {
    const PrefetchPrice price = {price_us * use.share, use.run.bytes};
    if (watched.opened) {
      rule_.SetPrice(use.use, price);
      continue;
    }
    std::optional<double> hint;
    if (watched.expect.steps) {
      hint = double(*watched.expect.steps) * watched.expect.agents.value_or(1) * layers *
             watched.call_us * use.share;
    }
    const uint32_t corpus = watched.context->chunks()[use.run.chunk_begin].part;
    use.use = rule_.Open(use.run.key, watched.context->corpora()[corpus]->name, price, hint, now);
  }
  watched.opened = true;
}

// Reports to the rule what the calls since the last report lost, and queues the ranges that it
// wants in the cache.
void PrefetchPlan::Count(WatchedContext& watched, uint64_t calls) {
  const Instant now = clock_->Now();
  const double layers = watched.context->geometry().layers;
  // A segment's share of the cost of its call.
  const double part = static_cast<double>(watched.shape.row_count) /
                      std::max(1.0, static_cast<double>(watched.shape.call_row_count));
  if (calls > watched.counted) {
    const uint64_t own_sum = watched.context->usage().own_sum();
    watched.own_count = static_cast<double>(own_sum - watched.own_sum) /
                        static_cast<double>(calls - watched.counted);
    watched.own_sum = own_sum;
  }
  // Calls with f32 partials do not use cached rows if holders have another kernel target.
  const double lost_us = watched.same_bits || !watched.shape.f32 ? LostUs(watched) : 0;
  watched.call_us = std::max(0.0, lost_us) * part / layers;
  // Cached rows stay in use, unless they are slower by more than the model's error.
  const bool near_pays = lost_us >= (watched.near_pays ? -kModelError * watched.cost.route_us : 0);
  if (watched.near_pays != near_pays) {
    watched.near_pays = near_pays;
    PublishTo(watched);
  }
  Price(watched, now);
  const double all_us = static_cast<double>(calls - watched.counted) * watched.call_us;
  // The context is examined again by then, because the load may have changed.
  double left_calls = static_cast<double>(calls - watched.counted) * 2 + 1;
  watched.counted = calls;
  for (size_t i = 0; i < watched.uses.size(); ++i) {
    const WatchedContext::Use& use = watched.uses[i];
    PrefetchRun& run = *runs_[use.run.key];
    if (run.state == State::kNear) {
      rule_.CameLocal(use.use);
      run.saved_us += all_us * use.share;
    }
    Decide(watched, i, rule_.Lose(use.use, all_us * use.share, now));
    const double each_us = watched.call_us * use.share;
    const bool waits = run.state == State::kFar && !queue_.full();
    if (waits && each_us > 0)
      left_calls = std::min(left_calls, rule_.LeftUs(use.use, now) / each_us);
  }
  const auto more =
      static_cast<uint64_t>(std::clamp(std::ceil(left_calls), 1.0, double(kCallsMax)));
  if (!watched.context->closed()) watched.context->usage().SetDueAt(calls + more);
}

void PrefetchPlan::Decide(WatchedContext& watched, size_t i, PrefetchVerdict verdict) {
  const WatchedContext::Use& use = watched.uses[i];
  PrefetchRun& run = *runs_[use.run.key];
  if (!(watched.call_us > 0)) {
    const bool usable = watched.same_bits || !watched.shape.f32;
    return Record(watched, i, Primitive::kRoute,
                  usable ? PrefetchReason::kSlower : PrefetchReason::kOtherTarget);
  }
  if (run.state == State::kNear) {
    const bool mine = use.decided && use.decided->first != Primitive::kRoute;
    if (!mine) Record(watched, i, Primitive::kFetch, PrefetchReason::kHere);
    return;
  }
  if (run.state != State::kFar) return;
  switch (verdict) {
    case PrefetchVerdict::kPrefetch:
      break;
    case PrefetchVerdict::kNever:
      return Record(watched, i, Primitive::kRoute, PrefetchReason::kNever);
    case PrefetchVerdict::kTooLarge:
      return Record(watched, i, Primitive::kRoute, PrefetchReason::kNoRoom);
    case PrefetchVerdict::kTooSoon:
      return Record(watched, i, Primitive::kRoute, PrefetchReason::kTooSoon);
    case PrefetchVerdict::kBelowThreshold:
    case PrefetchVerdict::kNear:
      return Record(watched, i, Primitive::kRoute, PrefetchReason::kBelowThreshold);
  }
  if (queue_.full()) return Record(watched, i, Primitive::kRoute, PrefetchReason::kQueueFull);
  Record(watched, i, prices_.Of(watched).second,
         rule_.ByHint(use.use) ? PrefetchReason::kHint : PrefetchReason::kLostEnough);
  run.requested_by = watched.id;
  run.state = State::kQueued;
  queue_.Add(run.key);
}

void PrefetchPlan::Record(WatchedContext& watched, size_t i, Primitive primitive,
                          PrefetchReason reason) {
  const std::pair decided = {primitive, reason};
  if (watched.uses[i].decided == decided) return;
  watched.uses[i].decided = decided;
  ++stats_.decisions[size_t(primitive)][size_t(reason)];
}

void PrefetchPlan::Unwatch(WatchedContext& watched) {
  if (!contexts_.contains(watched.id)) return;
  for (const WatchedContext::Use& use : watched.uses) {
    if (watched.opened) rule_.Close(use.use);
    PrefetchRun& run = *runs_[use.run.key];
    std::erase(run.users, watched.id);
    if (watched.policy == ContextPolicy::kNear) --run.held;
    if (!run.users.empty()) continue;
    // Borrowed chunks stay cached only as long as the ranges that fetched them.
    if (run.state == State::kNear && run.borrowed) {
      rule_.Evicted(run.key);
      local_.Release(run);
    }
    if (run.state == State::kFar) runs_.erase(use.run.key);
  }
  watched.context->local_rows().Set(nullptr, false);
  contexts_.erase(watched.id);
}

bool PrefetchPlan::HasNext() const {
  return queue_.HasNext([this](uint64_t key) { return SourceOf(*runs_.at(key)); });
}

const void* PrefetchPlan::SourceOf(const PrefetchRun& run) const {
  const auto requesting = contexts_.find(run.requested_by);
  const bool recomputes = requesting != contexts_.end() && requesting->second->can_recompute() &&
                          !requesting->second->recompute_failed;
  return recomputes ? requesting->second.get() : run.source;
}

bool PrefetchPlan::BeginNext(PrefetchJob& job) {
  const auto key = queue_.Take([this](uint64_t each) { return SourceOf(*runs_.at(each)); });
  if (!key) return false;
  job.run = runs_[*key].get();
  PrefetchRun& run = *job.run;
  if (run.users.empty()) {  // closed meanwhile
    runs_.erase(run.key);
    return false;
  }
  const auto requesting = contexts_.find(run.requested_by);
  job.watched = requesting != contexts_.end() ? requesting->second : contexts_[run.users.back()];
  const auto use = std::find_if(job.watched->uses.begin(), job.watched->uses.end(),
                                [&](const auto& each) { return each.run.key == run.key; });
  job.context_run = use->run;
  const auto [price_us, primitive] = prices_.Of(*job.watched);
  run.price_us = price_us * use->share;
  job.primitive = primitive;
  if (HoldAll(run, *job.watched, job.context_run)) {  // prefetched for others meanwhile
    Publish(run);
    return false;
  }
  if (job.watched->opened) rule_.PrefetchBegan(use->use, clock_->Now());
  run.state = State::kPulling;
  job.run_held = run.held;
  job.source = SourceOf(run);
  queue_.Begin(job.source);
  ++stats_.pulls;
  return true;
}

bool PrefetchPlan::HoldAll(PrefetchRun& run, const WatchedContext& watched,
                           const ContextRun& context_run) {
  const ContextChunk& first = watched.context->chunks()[context_run.chunk_begin];
  run.source = tools_->source(watched.context->corpora()[first.part], first.ordinal);
  return local_.HoldAll(run, watched, context_run, clock_->Now());
}

absl::Status PrefetchPlan::ReserveSpace(PrefetchJob& job) {
  const uint64_t bytes = local_.HoldSome(job);
  if (bytes > 0) EvictFor(*job.run, bytes);
  return local_.Reserve(job);
}

absl::Status PrefetchPlan::ReserveSpaceToFetch(PrefetchJob& job) {
  job.primitive = Primitive::kFetch;
  return local_.Reserve(job);
}

absl::Status PrefetchPlan::Adopt(PrefetchJob& job,
                                 std::vector<std::shared_ptr<const LocalRows>> mapped) {
  return local_.Adopt(job, std::move(mapped));
}

void PrefetchPlan::EndRecompute(PrefetchJob& job, const absl::Status& status, uint64_t tokens,
                                Duration took) {
  if (!status.ok()) {
    job.watched->recompute_failed = true;
    return;
  }
  const double us = double(took.count()) / 1e3;
  prices_.TakeRecomputed(job.context().geometry(), us / double(tokens));
  stats_.recomputed_tokens += tokens;
  stats_.recompute.Add(took);
}

void PrefetchPlan::End(PrefetchJob& job, const absl::Status& status, bool may_repeat) {
  PrefetchRun& run = *job.run;
  queue_.End(job.source);
  run.last_error = status;
  if (!status.ok()) {
    Log().debug("near: a pull of {} bytes failed: {}", run.bytes, status.ToString());
    ++stats_.pulls_failed;
    local_.Drop(job);  // so that a waiter sees the space free
    rule_.PrefetchFailed(run.key);
    if (run.held > job.run_held && may_repeat) {  // now needed in the cache, and may evict more
      run.state = State::kQueued;
      queue_.AddFirst(run.key);
      return;
    }
    run.state = State::kFar;
    if (run.users.empty()) runs_.erase(run.key);
    return;
  }
  uint64_t filled_bytes = 0;
  for (const LocalRowFill& fill : job.fills) filled_bytes += fill.bytes();
  stats_.mapped_bytes += job.mapped_bytes;
  if (!job.recomputes) stats_.pulled_bytes += filled_bytes;
  job.watched->context->local_rows().AddPulled(job.mapped_bytes + filled_bytes);
  local_.Keep(job, clock_->Now());
  if (run.borrowed && run.users.empty()) {
    rule_.Evicted(run.key);
    local_.Release(run);
    runs_.erase(run.key);
    return;
  }
  Publish(run);
}

// Evicts ranges that saved less per byte and time than `wanted` promises, the least useful first,
// if that frees enough space. Rows that calls still attend keep their space until those calls end.
void PrefetchPlan::EvictFor(const PrefetchRun& wanted, uint64_t bytes) {
  UnwatchClosed();
  const Instant now = clock_->Now();
  const LocalRowCache& store = local_.store();
  const double promised = wanted.held > 0 ? 1e300 : 1 / static_cast<double>(wanted.bytes + 1);
  std::vector<std::pair<double, PrefetchRun*>> victims;
  uint64_t free_bytes =
      store.capacity_bytes() - std::min(store.used_bytes(), store.capacity_bytes());
  uint64_t evictable = 0;
  for (const auto& [key, run] : runs_) {
    if (run->state != State::kNear || run->held > 0) continue;
    const double worth = run->Worth(now);
    // Chunks that another range also holds stay.
    const uint64_t freed = worth < promised ? store.BytesHeldOnce(run->ids) : 0;
    if (freed == 0) continue;
    victims.emplace_back(worth, run.get());
    evictable += freed;
  }
  if (free_bytes + evictable < bytes) return;
  std::sort(victims.begin(), victims.end());
  for (const auto& [worth, victim] : victims) {
    if (free_bytes >= bytes) return;
    free_bytes += store.BytesHeldOnce(victim->ids);
    Evict(*victim);
  }
}

// Releases the ranges of closed contexts with policy `near` that the deciding thread has not
// handled yet.
void PrefetchPlan::UnwatchClosed() {
  std::vector<std::shared_ptr<WatchedContext>> closed;
  for (const auto& [id, watched] : contexts_) {
    if (watched->policy == ContextPolicy::kNear && watched->context->closed())
      closed.push_back(watched);
  }
  for (const auto& watched : closed) Unwatch(*watched);
}

void PrefetchPlan::Evict(PrefetchRun& run) {
  ++stats_.evictions;
  rule_.Evicted(run.key);
  local_.Release(run);
  Publish(run);
  if (run.users.empty()) runs_.erase(run.key);
}

void PrefetchPlan::Publish(PrefetchRun& run) {
  for (const uint64_t id : run.users) PublishTo(*contexts_[id]);
}

void PrefetchPlan::PublishTo(WatchedContext& watched) {
  auto table = std::make_shared<LocalRowTable>(watched.context->chunks().size());
  bool any = false, same_bits = watched.same_bits;
  for (const WatchedContext::Use& use : watched.uses) {
    const PrefetchRun& run = *runs_[use.run.key];
    if (!watched.near_pays || run.state != State::kNear) continue;
    any = true;
    same_bits &= local_.AddTo(*table, watched, use.run);
  }
  watched.context->local_rows().Set(any ? std::move(table) : nullptr, same_bits);
}

PrefetcherStats PrefetchPlan::stats() const {
  PrefetcherStats stats = stats_;
  stats.near_bytes = local_.store().used_bytes();
  stats.near_bytes_max = local_.store().capacity_bytes();
  stats.near_chunks = local_.store().chunk_count();
  stats.routed_us = rule_.stats().routed_us;
  stats.saved_us = rule_.stats().saved_us;
  stats.pulled_us = rule_.stats().paid_us;
  return stats;
}

}  // namespace ckv
