// The states of a chunk range. The prefetcher's lock guards them:
//   kNotCached      Decide or Add queues it                      -> kQueued
//             Add finds all its chunks here                -> kCached
//   kQueued   BeginNext gives it to a copying thread       -> kCopying, or kCached if it is here
//   kCopying  End, after ReserveSpace, Adopt and the copy  -> kCached, or kNotCached after an
//   error. If a
//             context came to need it meanwhile            -> kQueued
//   kCached     EvictFor makes room, or a borrowed range loses its last user   -> kNotCached
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

using State = PrefetchRange::State;

}  // namespace

PrefetchPlan::PrefetchPlan(const PrefetcherOptions* options, const PrefetcherTools* tools,
                           LocalRowCache* store)
    : clock_(options->clock),
      tools_(tools),
      local_(store, tools->here),
      rule_({.capacity_bytes = options->local_cache_bytes}) {}

void PrefetchPlan::Add(const std::shared_ptr<WatchedContext>& watched,
                       std::shared_ptr<ContextWatcher> watcher) {
  watched->id = ++last_id_;
  watched->context->usage().Watch(std::move(watcher), watched->id);
  contexts_.emplace(watched->id, watched);
  const bool whole = watched->policy == ContextPolicy::kCache;
  std::vector<PrefetchRange*> became_cached;
  for (size_t i = 0; i < watched->uses.size(); ++i) {
    const ContextRange& context_range = watched->uses[i].range;
    std::unique_ptr<PrefetchRange>& range = ranges_[context_range.key];
    if (range == nullptr) {
      range = std::make_unique<PrefetchRange>();
      range->key = context_range.key;
      range->bytes = context_range.bytes;
    }
    range->users.push_back(watched->id);
    if (range->state == State::kNotCached && HoldAll(*range, *watched, context_range))
      became_cached.push_back(range.get());
    if (range->state == State::kCached)
      Record(*watched, i, Primitive::kFetch, PrefetchReason::kHere);
    if (!whole) continue;
    ++range->held;
    range->requested_by = watched->id;
    if (range->state != State::kNotCached) continue;
    Record(*watched, i, Primitive::kFetch, PrefetchReason::kPolicy);
    range->state = State::kQueued;
    queue_.AddFirst(range->key);
  }
  PublishTo(*watched);
  for (PrefetchRange* const range : became_cached)
    Publish(*range);  // to other contexts that have it
}

std::shared_ptr<WatchedContext> PrefetchPlan::Find(uint64_t id) const {
  const auto known = contexts_.find(id);
  return known == contexts_.end() ? nullptr : known->second;
}

bool PrefetchPlan::Settled(const WatchedContext& watched, absl::Status& status) const {
  bool all_cached = true;
  for (const WatchedContext::Use& use : watched.uses) {
    const PrefetchRange& range = *ranges_.at(use.range.key);
    status = range.state == State::kNotCached ? range.last_error : absl::OkStatus();
    if (!status.ok()) return true;
    all_cached &= range.state == State::kCached;
  }
  return all_cached;
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
    const PrefetchPrice price = {price_us * use.share, use.range.bytes};
    if (watched.opened) {
      rule_.SetPrice(use.use, price);
      continue;
    }
    std::optional<double> hint;
    if (watched.expect.steps) {
      hint = double(*watched.expect.steps) * watched.expect.agents.value_or(1) * layers *
             watched.call_us * use.share;
    }
    const uint32_t corpus = watched.context->chunks()[use.range.chunk_begin].part;
    use.use = rule_.Open(use.range.key, watched.context->corpora()[corpus]->name, price, hint, now);
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
  const bool cached_pays =
      lost_us >= (watched.cached_pays ? -kModelError * watched.cost.route_us : 0);
  if (watched.cached_pays != cached_pays) {
    watched.cached_pays = cached_pays;
    PublishTo(watched);
  }
  Price(watched, now);
  const double all_us = static_cast<double>(calls - watched.counted) * watched.call_us;
  // The context is examined again by then, because the load may have changed.
  double left_calls = static_cast<double>(calls - watched.counted) * 2 + 1;
  watched.counted = calls;
  for (size_t i = 0; i < watched.uses.size(); ++i) {
    const WatchedContext::Use& use = watched.uses[i];
    PrefetchRange& range = *ranges_[use.range.key];
    if (range.state == State::kCached) {
      rule_.CameLocal(use.use);
      range.saved_us += all_us * use.share;
    }
    Decide(watched, i, rule_.Lose(use.use, all_us * use.share, now));
    const double each_us = watched.call_us * use.share;
    const bool waits = range.state == State::kNotCached && !queue_.full();
    if (waits && each_us > 0)
      left_calls = std::min(left_calls, rule_.LeftUs(use.use, now) / each_us);
  }
  const auto more =
      static_cast<uint64_t>(std::clamp(std::ceil(left_calls), 1.0, double(kCallsMax)));
  if (!watched.context->closed()) watched.context->usage().SetDueAt(calls + more);
}

void PrefetchPlan::Decide(WatchedContext& watched, size_t i, PrefetchVerdict verdict) {
  const WatchedContext::Use& use = watched.uses[i];
  PrefetchRange& range = *ranges_[use.range.key];
  if (!(watched.call_us > 0)) {
    const bool usable = watched.same_bits || !watched.shape.f32;
    return Record(watched, i, Primitive::kRoute,
                  usable ? PrefetchReason::kSlower : PrefetchReason::kOtherTarget);
  }
  if (range.state == State::kCached) {
    const bool mine = use.decided && use.decided->first != Primitive::kRoute;
    if (!mine) Record(watched, i, Primitive::kFetch, PrefetchReason::kHere);
    return;
  }
  if (range.state != State::kNotCached) return;
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
    case PrefetchVerdict::kCached:
      return Record(watched, i, Primitive::kRoute, PrefetchReason::kBelowThreshold);
  }
  if (queue_.full()) return Record(watched, i, Primitive::kRoute, PrefetchReason::kQueueFull);
  Record(watched, i, prices_.Of(watched).second,
         rule_.ByHint(use.use) ? PrefetchReason::kHint : PrefetchReason::kLostEnough);
  range.requested_by = watched.id;
  range.state = State::kQueued;
  queue_.Add(range.key);
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
    PrefetchRange& range = *ranges_[use.range.key];
    std::erase(range.users, watched.id);
    if (watched.policy == ContextPolicy::kCache) --range.held;
    if (!range.users.empty()) continue;
    // Borrowed chunks stay cached only as long as the ranges that fetched them.
    if (range.state == State::kCached && range.borrowed) {
      rule_.Evicted(range.key);
      local_.Release(range);
    }
    if (range.state == State::kNotCached) ranges_.erase(use.range.key);
  }
  watched.context->local_rows().Set(nullptr, false);
  contexts_.erase(watched.id);
}

bool PrefetchPlan::HasNext() const {
  return queue_.HasNext([this](uint64_t key) { return SourceOf(*ranges_.at(key)); });
}

const void* PrefetchPlan::SourceOf(const PrefetchRange& range) const {
  const auto requesting = contexts_.find(range.requested_by);
  const bool recomputes = requesting != contexts_.end() && requesting->second->can_recompute() &&
                          !requesting->second->recompute_failed;
  return recomputes ? requesting->second.get() : range.source;
}

bool PrefetchPlan::BeginNext(PrefetchJob& job) {
  const auto key = queue_.Take([this](uint64_t each) { return SourceOf(*ranges_.at(each)); });
  if (!key) return false;
  job.range = ranges_[*key].get();
  PrefetchRange& range = *job.range;
  if (range.users.empty()) {  // closed meanwhile
    ranges_.erase(range.key);
    return false;
  }
  const auto requesting = contexts_.find(range.requested_by);
  job.watched = requesting != contexts_.end() ? requesting->second : contexts_[range.users.back()];
  const auto use = std::find_if(job.watched->uses.begin(), job.watched->uses.end(),
                                [&](const auto& each) { return each.range.key == range.key; });
  job.context_range = use->range;
  const auto [price_us, primitive] = prices_.Of(*job.watched);
  range.price_us = price_us * use->share;
  job.primitive = primitive;
  if (HoldAll(range, *job.watched, job.context_range)) {  // prefetched for others meanwhile
    Publish(range);
    return false;
  }
  if (job.watched->opened) rule_.PrefetchBegan(use->use, clock_->Now());
  range.state = State::kCopying;
  job.range_held = range.held;
  job.source = SourceOf(range);
  queue_.Begin(job.source);
  ++stats_.prefetches;
  return true;
}

bool PrefetchPlan::HoldAll(PrefetchRange& range, const WatchedContext& watched,
                           const ContextRange& context_range) {
  const ContextChunk& first = watched.context->chunks()[context_range.chunk_begin];
  range.source = tools_->source(watched.context->corpora()[first.part], first.ordinal);
  return local_.HoldAll(range, watched, context_range, clock_->Now());
}

absl::Status PrefetchPlan::ReserveSpace(PrefetchJob& job) {
  const uint64_t bytes = local_.HoldSome(job);
  if (bytes > 0) EvictFor(*job.range, bytes);
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
  PrefetchRange& range = *job.range;
  queue_.End(job.source);
  range.last_error = status;
  if (!status.ok()) {
    Log().debug("local row cache: a prefetch of {} bytes failed: {}", range.bytes,
                status.ToString());
    ++stats_.prefetches_failed;
    local_.Drop(job);  // so that a waiter sees the space free
    rule_.PrefetchFailed(range.key);
    if (range.held > job.range_held && may_repeat) {  // now needed in the cache, and may evict more
      range.state = State::kQueued;
      queue_.AddFirst(range.key);
      return;
    }
    range.state = State::kNotCached;
    if (range.users.empty()) ranges_.erase(range.key);
    return;
  }
  uint64_t filled_bytes = 0;
  for (const LocalRowFill& fill : job.fills) filled_bytes += fill.bytes();
  stats_.mapped_bytes += job.mapped_bytes;
  if (!job.recomputes) stats_.prefetched_bytes += filled_bytes;
  job.watched->context->local_rows().AddPrefetched(job.mapped_bytes + filled_bytes);
  local_.Keep(job, clock_->Now());
  if (range.borrowed && range.users.empty()) {
    rule_.Evicted(range.key);
    local_.Release(range);
    ranges_.erase(range.key);
    return;
  }
  Publish(range);
}

// Evicts ranges that saved less per byte and time than `wanted` promises, the least useful first,
// if that frees enough space. Rows that calls still attend keep their space until those calls end.
void PrefetchPlan::EvictFor(const PrefetchRange& wanted, uint64_t bytes) {
  UnwatchClosed();
  const Instant now = clock_->Now();
  const LocalRowCache& store = local_.store();
  const double promised = wanted.held > 0 ? 1e300 : 1 / static_cast<double>(wanted.bytes + 1);
  std::vector<std::pair<double, PrefetchRange*>> victims;
  uint64_t free_bytes =
      store.capacity_bytes() - std::min(store.used_bytes(), store.capacity_bytes());
  uint64_t evictable = 0;
  for (const auto& [key, range] : ranges_) {
    if (range->state != State::kCached || range->held > 0) continue;
    const double worth = range->Worth(now);
    // Chunks that another range also holds stay.
    const uint64_t freed = worth < promised ? store.BytesHeldOnce(range->ids) : 0;
    if (freed == 0) continue;
    victims.emplace_back(worth, range.get());
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

// Releases the ranges of closed contexts with policy `cache` that the deciding thread has not
// handled yet.
void PrefetchPlan::UnwatchClosed() {
  std::vector<std::shared_ptr<WatchedContext>> closed;
  for (const auto& [id, watched] : contexts_) {
    if (watched->policy == ContextPolicy::kCache && watched->context->closed())
      closed.push_back(watched);
  }
  for (const auto& watched : closed) Unwatch(*watched);
}

void PrefetchPlan::Evict(PrefetchRange& range) {
  ++stats_.evictions;
  rule_.Evicted(range.key);
  local_.Release(range);
  Publish(range);
  if (range.users.empty()) ranges_.erase(range.key);
}

void PrefetchPlan::Publish(PrefetchRange& range) {
  for (const uint64_t id : range.users) PublishTo(*contexts_[id]);
}

void PrefetchPlan::PublishTo(WatchedContext& watched) {
  auto table = std::make_shared<LocalRowTable>(watched.context->chunks().size());
  bool any = false, same_bits = watched.same_bits;
  for (const WatchedContext::Use& use : watched.uses) {
    const PrefetchRange& range = *ranges_[use.range.key];
    if (!watched.cached_pays || range.state != State::kCached) continue;
    any = true;
    same_bits &= local_.AddTo(*table, watched, use.range);
  }
  watched.context->local_rows().Set(any ? std::move(table) : nullptr, same_bits);
}

PrefetcherStats PrefetchPlan::stats() const {
  PrefetcherStats stats = stats_;
  stats.local_cache_bytes = local_.store().used_bytes();
  stats.local_cache_bytes_max = local_.store().capacity_bytes();
  stats.local_cache_chunks = local_.store().chunk_count();
  stats.routed_us = rule_.stats().routed_us;
  stats.saved_us = rule_.stats().saved_us;
  stats.prefetched_us = rule_.stats().paid_us;
  return stats;
}

}  // namespace ckv
