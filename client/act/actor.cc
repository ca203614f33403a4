#include "client/act/actor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/act/watched.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// The most calls until a context is examined again.
constexpr uint64_t kCallsMax = uint64_t{1} << 40;
// The cost model's error over all query counts (deploy/bench.sh decision).
constexpr double kModelError = 0.12;

}  // namespace

std::string Actor::ModelOf(const Geometry& geometry) {
  return absl::StrCat(geometry.model, "@", geometry.revision);
}

// The actor as contexts see it. Outlives the actor, because contexts may.
class Actor::Waker final : public ContextWatcher {
 public:
  void Due(uint64_t context_id) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    due_.push_back(context_id);
  }
  void Poke() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    poked_ = true;
  }
  // Reserves space for the notifications of `contexts` contexts between two Takes, so that no call
  // allocates. A context may send a count, an end, and a count that was awaited too late.
  void Expect(size_t contexts) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    expected_ = std::max(expected_, 4 * contexts);
    due_.reserve(expected_);
  }
  // Waits for notifications, and moves them to `taken`.
  void Take(Clock& clock, std::vector<uint64_t>& taken) ABSL_LOCKS_EXCLUDED(mu_) {
    taken.clear();
    absl::MutexLock lock(&mu_);
    clock.Await(mu_, absl::Condition(this, &Waker::HasAny), kInstantMax);
    poked_ = false;
    busy_ = true;
    taken.reserve(expected_);
    taken.swap(due_);
  }
  // Call when everything that was taken is done.
  void Done() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    busy_ = false;
  }
  bool idle() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return !busy_ && !HasAny();
  }

 private:
  bool HasAny() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return poked_ || !due_.empty(); }
  absl::Mutex mu_;
  std::vector<uint64_t> due_ ABSL_GUARDED_BY(mu_);
  size_t expected_ ABSL_GUARDED_BY(mu_) = 0;
  bool poked_ ABSL_GUARDED_BY(mu_) = false;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
};

Actor::Actor(const ActorOptions& options, ActorTools tools)
    : options_(options),
      tools_(std::move(tools)),
      store_(options.near_bytes),
      waker_(std::make_shared<Waker>()),
      rule_({.room_bytes = options.near_bytes}) {}

Actor::~Actor() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    threads.swap(threads_);
  }
  waker_->Poke();
  for (std::thread& thread : threads) thread.join();
}

void Actor::StartThreads() {
  if (!threads_.empty()) return;
  threads_.emplace_back([this] { Work(); });
  for (uint32_t i = 0; i < kFlowsMax; ++i) threads_.emplace_back([this] { Pull(); });
}

absl::Status Actor::Watch(const std::shared_ptr<ContextState>& context, const ContextSpec& spec,
                          Instant deadline) {
  const ContextPolicy policy = spec.policy;
  if (policy == ContextPolicy::kRoute || !options_.reached ||
      (options_.near_bytes == 0 && policy != ContextPolicy::kNear))
    return absl::OkStatus();
  auto watched = std::make_shared<Watched>();
  watched->policy = policy;
  watched->expect = spec.expect;
  if (policy == ContextPolicy::kAuto) watched->recompute = spec.recompute;
  watched->context = context;
  watched->measured_at = options_.clock->Now();
  uint64_t bytes = 0;
  for (ContextRun& run : RunsOf(*context)) {
    bytes += run.bytes;
    // Recomputed rows are only for contexts that can recompute, so these have ranges of their own.
    if (watched->can_recompute()) run.key = ~run.key;
    Watched::Use& use = watched->uses.emplace_back();
    use.run = run;
    use.share = static_cast<double>(run.tokens) / static_cast<double>(context->token_count());
  }
  if (policy == ContextPolicy::kNear && bytes > options_.near_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("near: the context's rows are %d bytes, and the near store has %d: raise "
                        "near_bytes, or use policy auto or route",
                        bytes, options_.near_bytes));
  }
  watched->same_bits = policy == ContextPolicy::kNear ||
                       std::all_of(context->corpora().begin(), context->corpora().end(),
                                   [&](const auto& corpus) { return tools_.same_target(corpus); });
  absl::MutexLock lock(&mu_);
  watched->id = ++last_id_;
  context->usage().Watch(waker_, watched->id);
  contexts_.emplace(watched->id, watched);
  waker_->Expect(contexts_.size());
  std::vector<Run*> came_near;
  for (size_t i = 0; i < watched->uses.size(); ++i) {
    const ContextRun& context_run = watched->uses[i].run;
    std::unique_ptr<Run>& run = runs_[context_run.key];
    if (run == nullptr) {
      run = std::make_unique<Run>();
      run->key = context_run.key;
      run->bytes = context_run.bytes;
    }
    run->users.push_back(watched->id);
    if (run->state == Run::State::kFar && HoldAll(*run, *watched, context_run))
      came_near.push_back(run.get());
    if (run->state == Run::State::kNear) Decided(*watched, i, Primitive::kFetch, ActReason::kHere);
    if (policy != ContextPolicy::kNear) continue;
    ++run->held;
    run->asker = watched->id;
    if (run->state != Run::State::kFar) continue;
    Decided(*watched, i, Primitive::kFetch, ActReason::kPolicy);
    run->state = Run::State::kQueued;
    queue_.push_front(run->key);  // its caller waits
  }
  PublishTo(*watched);
  for (Run* const run : came_near) Publish(*run);  // to other contexts that have it
  StartThreads();
  if (policy != ContextPolicy::kNear) return absl::OkStatus();

  absl::Status status;
  // The whole context is in the local row cache, or a prefetch failed.
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    bool all_near = true;
    for (const Watched::Use& use : watched->uses) {
      const Run& run = *runs_[use.run.key];
      status = run.state == Run::State::kFar ? run.last_error : absl::OkStatus();
      if (!status.ok()) return true;
      all_near &= run.state == Run::State::kNear;
    }
    return all_near;
  };
  if (!options_.clock->Await(mu_, absl::Condition(&settled), deadline))
    status = absl::DeadlineExceededError("near: not all rows had arrived by the deadline");
  if (!status.ok()) Forget(*watched);
  return status;
}

void Actor::Work() {
  std::vector<uint64_t> due;
  while (true) {
    waker_->Take(*options_.clock, due);
    for (const uint64_t id : due) {
      std::shared_ptr<Watched> watched;
      {
        absl::MutexLock lock(&mu_);
        if (stopping_) return;
        if (const auto known = contexts_.find(id); known != contexts_.end())
          watched = known->second;
      }
      if (watched != nullptr) Update(watched);
    }
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    waker_->Done();
  }
}

void Actor::Update(const std::shared_ptr<Watched>& watched) {
  const uint64_t calls = watched->context->usage().call_count();
  const CallShape shape = watched->context->usage().last_call();
  const bool closed = watched->context->closed();
  if (watched->policy == ContextPolicy::kNear) {
    absl::MutexLock lock(&mu_);
    if (closed) Forget(*watched);
    return;
  }
  bool same_bits = true;
  absl::StatusOr<StepCost> cost = absl::UnavailableError("no call has been made yet");
  if (calls > 0 && !closed) {
    cost = CostOf(*watched, shape, &same_bits);
    if (!cost.ok()) Log().debug("auto: {}; the context is routed", cost.status().ToString());
  }
  absl::MutexLock lock(&mu_);
  if (cost.ok()) {
    const CallShape& known = watched->shape;
    const bool same = known.call_row_count == shape.call_row_count &&
                      known.selected == shape.selected && known.f32 == shape.f32;
    if (watched->known && !same) watched->context->usage().ForgetRouted();
    watched->known = true;
    watched->cost = *cost;
    watched->shape = shape;
    // Holders may have reported their targets since.
    if (watched->same_bits != same_bits) {
      watched->same_bits = same_bits;
      PublishTo(*watched);
    }
  }
  // Without new costs, the previous ones apply.
  if (watched->known) Count(*watched, calls);
  if (closed) {
    Forget(*watched);
  } else if (!watched->known) {
    for (size_t i = 0; i < watched->uses.size(); ++i)
      Decided(*watched, i, Primitive::kRoute, ActReason::kUnknown);
    watched->context->usage().SetDueAt(std::max<uint64_t>(1, 2 * calls));
  }
}

absl::StatusOr<StepCost> Actor::CostOf(Watched& watched, const CallShape& shape, bool* same_bits) {
  const ContextState& context = *watched.context;
  const bool old = options_.clock->Now() > watched.measured_at + kMeasuredAgeMax;
  StepCost cost;
  // Parts are routed in parallel, but attended here one after another.
  for (uint32_t part = 0; part < context.corpora().size(); ++part) {
    ActorTools::Work work;
    work.corpus = context.corpora()[part];
    work.query_rows = shape.call_row_count;
    work.selected = shape.selected;
    for (const ContextChunk& chunk : context.chunks()) {
      if (chunk.part == part) work.chunks.push_back(chunk.ordinal);
    }
    if (work.chunks.empty()) continue;
    absl::StatusOr<StepCost> of_part = tools_.cost(work);
    if (!of_part.ok() || old) {
      if (absl::Status status = Measure(watched, work); !status.ok()) return status;
      of_part = tools_.cost(work);
    }
    if (!of_part.ok()) return of_part;
    *same_bits &= tools_.same_target(work.corpus);
    cost.route_us = std::max(cost.route_us, of_part->route_us);
    cost.near_us += of_part->near_us;
    cost.pull_us += of_part->pull_us;
    cost.prefill_token_us = of_part->prefill_token_us;
  }
  return cost;
}

absl::Status Actor::Measure(Watched& watched, const ActorTools::Work& work) {
  const Instant begin = options_.clock->Now();
  if (begin < measure_again_) return absl::UnavailableError("a holder was too slow to be measured");
  watched.measured_at = begin;
  absl::Status status = tools_.measure(work, begin + options_.measure_timeout);
  const Instant end = options_.clock->Now();
  if (!status.ok()) measure_again_ = end + (end - begin) * kMeasureShare;
  return status;
}

// Returns how much longer a routed step takes than one over cached rows. Uses the measured times of
// routed calls if there are any, because the model omits that both ends sleep between calls. That
// costs up to half of a short call. Own rows are attended while holders compute, but after or
// before cached rows, on the same thread.
double Actor::LostUs(const Watched& watched) {
  const auto tokens = static_cast<double>(watched.context->token_count());
  const double selected = watched.shape.selected;
  const double attended = std::max(1.0, selected > 0 ? std::min(selected, tokens) : tokens);
  const double own_us = watched.cost.near_us * watched.own_count / attended;
  const double measured_us =
      watched.context->usage().routed_us() * watched.context->geometry().layers;
  const double routed_us = measured_us > 0 ? measured_us : watched.cost.route_us;
  return std::max(own_us, routed_us) - (own_us + watched.cost.near_us);
}

std::pair<double, Primitive> Actor::PriceOf(const Watched& watched) const {
  const std::pair<double, Primitive> pull = {watched.cost.pull_us, Primitive::kFetch};
  if (!watched.can_recompute() || watched.recompute_failed) return pull;
  const Geometry& geometry = watched.context->geometry();
  double token_us = watched.recompute.us_per_token;
  if (!(token_us > 0)) token_us = watched.cost.prefill_token_us.value_or(0);
  if (const auto made = made_us_.find(ModelOf(geometry)); made != made_us_.end())
    token_us = made->second;
  const double us = token_us * static_cast<double>(watched.context->token_count());
  return token_us > 0 && us < pull.first ? std::pair(us, Primitive::kLocal) : pull;
}

void Actor::Open(Watched& watched, Instant now) {
  const double price_us = PriceOf(watched).first;
  const double layers = watched.context->geometry().layers;
  for (Watched::Use& use : watched.uses) {
    const PullPrice price = {price_us * use.share, use.run.bytes};
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
void Actor::Count(Watched& watched, uint64_t calls) {
  const Instant now = options_.clock->Now();
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
  Open(watched, now);
  const double all_us = static_cast<double>(calls - watched.counted) * watched.call_us;
  // The context is examined again by then, because the load may have changed.
  double left_calls = static_cast<double>(calls - watched.counted) * 2 + 1;
  watched.counted = calls;
  for (size_t i = 0; i < watched.uses.size(); ++i) {
    const Watched::Use& use = watched.uses[i];
    Run& run = *runs_[use.run.key];
    if (run.state == Run::State::kNear) {
      rule_.CameNear(use.use);
      run.saved_us += all_us * use.share;
    }
    Act(watched, i, rule_.Lose(use.use, all_us * use.share, now));
    const double each_us = watched.call_us * use.share;
    const bool waits = run.state == Run::State::kFar && queue_.size() < kQueuedPullsMax;
    if (waits && each_us > 0)
      left_calls = std::min(left_calls, rule_.LeftUs(use.use, now) / each_us);
  }
  const auto more =
      static_cast<uint64_t>(std::clamp(std::ceil(left_calls), 1.0, double(kCallsMax)));
  if (!watched.context->closed()) watched.context->usage().SetDueAt(calls + more);
}

void Actor::Act(Watched& watched, size_t i, PullVerdict verdict) {
  const Watched::Use& use = watched.uses[i];
  Run& run = *runs_[use.run.key];
  if (!(watched.call_us > 0)) {
    const bool usable = watched.same_bits || !watched.shape.f32;
    return Decided(watched, i, Primitive::kRoute,
                   usable ? ActReason::kSlower : ActReason::kOtherTarget);
  }
  if (run.state == Run::State::kNear) {
    const bool mine = use.decided && use.decided->first != Primitive::kRoute;
    if (!mine) Decided(watched, i, Primitive::kFetch, ActReason::kHere);
    return;
  }
  if (run.state != Run::State::kFar) return;
  switch (verdict) {
    case PullVerdict::kPull:
      break;
    case PullVerdict::kNever:
      return Decided(watched, i, Primitive::kRoute, ActReason::kNever);
    case PullVerdict::kNoRoom:
      return Decided(watched, i, Primitive::kRoute, ActReason::kNoRoom);
    case PullVerdict::kTooSoon:
      return Decided(watched, i, Primitive::kRoute, ActReason::kTooSoon);
    case PullVerdict::kBelowThreshold:
    case PullVerdict::kNear:
      return Decided(watched, i, Primitive::kRoute, ActReason::kBelowThreshold);
  }
  if (queue_.size() >= kQueuedPullsMax)
    return Decided(watched, i, Primitive::kRoute, ActReason::kQueueFull);
  Decided(watched, i, PriceOf(watched).second,
          rule_.ByHint(use.use) ? ActReason::kHint : ActReason::kLostEnough);
  run.asker = watched.id;
  run.state = Run::State::kQueued;
  queue_.push_back(run.key);
}

void Actor::Decided(Watched& watched, size_t i, Primitive primitive, ActReason reason) {
  const std::pair decided = {primitive, reason};
  if (watched.uses[i].decided == decided) return;
  watched.uses[i].decided = decided;
  ++stats_.decisions[size_t(primitive)][size_t(reason)];
}

void Actor::Forget(Watched& watched) {
  if (!contexts_.contains(watched.id)) return;
  for (const Watched::Use& use : watched.uses) {
    if (watched.opened) rule_.Close(use.use);
    Run& run = *runs_[use.run.key];
    std::erase(run.users, watched.id);
    if (watched.policy == ContextPolicy::kNear) --run.held;
    if (!run.users.empty()) continue;
    // Borrowed chunks stay cached only as long as the ranges that fetched them.
    if (run.state == Run::State::kNear && run.borrowed) {
      rule_.Evicted(run.key);
      ReleaseAll(run);
    }
    if (run.state == Run::State::kFar) runs_.erase(use.run.key);
  }
  watched.context->local_rows().Set(nullptr, false);
  contexts_.erase(watched.id);
}

Actor::Stats Actor::stats() const {
  absl::MutexLock lock(&mu_);
  Stats stats = stats_;
  stats.near_bytes = store_.used_bytes();
  stats.near_bytes_max = store_.room_bytes();
  stats.near_chunks = store_.chunk_count();
  stats.routed_us = rule_.stats().routed_us;
  stats.saved_us = rule_.stats().saved_us;
  stats.pulled_us = rule_.stats().pulled_us;
  return stats;
}

void Actor::AwaitIdle() {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return queue_.empty() && job_count_ == 0 && waker_->idle();
  };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&idle));
}

}  // namespace ckv
