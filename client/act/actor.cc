#include "client/act/actor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// Calls after which a context is looked at again if nothing can be said of its future.
constexpr uint64_t kCallsMax = uint64_t{1} << 40;

}  // namespace

// The contexts' end of the actor. It outlives the actor, since contexts may.
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
  // Waits for something, and takes it.
  std::vector<uint64_t> Take(Clock& clock) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    clock.Await(mu_, absl::Condition(this, &Waker::HasAny), kInstantMax);
    poked_ = false;
    busy_ = true;
    return std::exchange(due_, {});
  }
  // Everything that was taken is done.
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
  bool poked_ ABSL_GUARDED_BY(mu_) = false;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
};

// A run of chunks that some watched context attends, or that is near.
struct Actor::Run {
  enum class State : uint8_t { kFar, kQueued, kPulling, kNear };
  uint64_t key = 0;
  uint64_t bytes = 0;
  State state = State::kFar;
  uint32_t held = 0;            // contexts that must have it near
  std::vector<uint64_t> users;  // ids of contexts
  std::vector<ChunkId> ids;     // while it is near
  absl::Status last_error;      // the last pull's
  double price_us = 0;
  double saved_us = 0;  // since it came near
  Instant near_since{};
  void BecomeNear(Instant now) {
    state = State::kNear;
    near_since = now;
    saved_us = 0;
  }
  // Time saved a byte and microsecond. A pull promised its price within that time.
  double Worth(Instant now) const {
    const double us = static_cast<double>((now - near_since).count()) / 1e3;
    return (price_us + saved_us) / (us + price_us + 1) / static_cast<double>(bytes + 1);
  }
};

struct Actor::Watched {
  struct Use {
    ContextRun run;
    PullRule::UseId use = 0;
    double share = 0;  // the run's part of its corpus' tokens
  };
  uint64_t id = 0;
  ContextPolicy policy = ContextPolicy::kRoute;
  ContextExpectation expect;
  std::shared_ptr<ContextState> context;
  std::vector<Use> uses;
  bool same_bits = false;  // near rows give the bits of the holders, or the caller forced them
  bool opened = false;     // in the rule, once costs are known
  uint64_t counted = 0;
  CallShape shape;
  double own_count = 0;  // own rows of a call, on average since the last look
  uint64_t own_sum = 0;
  StepCost cost;
  bool near_pays = true;  // as the cost model has it; else its near rows are not used
  double call_us = 0;     // lost by a call that is routed
  Instant cost_at{};
};

Actor::Actor(const ActorOptions& options, ActorTools tools)
    : options_(options),
      tools_(std::move(tools)),
      store_(options.near_bytes),
      waker_(std::make_shared<Waker>()),
      rule_({.room_bytes = options.near_bytes}) {}

Actor::~Actor() {
  stopping_ = true;
  waker_->Poke();
  if (thread_.joinable()) thread_.join();
}

absl::Status Actor::Watch(const std::shared_ptr<ContextState>& context, ContextPolicy policy,
                          const ContextExpectation& expect, Instant deadline) {
  if (policy == ContextPolicy::kRoute ||
      (options_.near_bytes == 0 && policy != ContextPolicy::kNear))
    return absl::OkStatus();
  auto watched = std::make_shared<Watched>();
  watched->policy = policy;
  watched->expect = expect;
  watched->context = context;
  uint64_t bytes = 0;
  std::vector<uint64_t> part_tokens(context->corpora().size());
  for (const ContextRun& run : RunsOf(*context)) {
    bytes += run.bytes;
    part_tokens[context->chunks()[run.chunk_begin].part] += run.tokens;
    watched->uses.push_back({.run = run});
  }
  if (policy == ContextPolicy::kNear && bytes > options_.near_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("near: the context's rows are %d bytes, and the near store has %d: raise "
                        "near_bytes, or use "
                        "policy auto or route",
                        bytes, options_.near_bytes));
  }
  for (Watched::Use& use : watched->uses) {
    const uint32_t part = context->chunks()[use.run.chunk_begin].part;
    use.share = static_cast<double>(use.run.tokens) / static_cast<double>(part_tokens[part]);
  }
  watched->same_bits = policy == ContextPolicy::kNear ||
                       std::all_of(context->corpora().begin(), context->corpora().end(),
                                   [&](const auto& corpus) { return tools_.same_target(*corpus); });
  absl::MutexLock lock(&mu_);
  watched->id = ++last_id_;
  context->Watch(waker_, watched->id);
  contexts_.emplace(watched->id, watched);
  for (const Watched::Use& use : watched->uses) {
    std::unique_ptr<Run>& run = runs_[use.run.key];
    if (run == nullptr) {
      run = std::make_unique<Run>();
      run->key = use.run.key;
      run->bytes = use.run.bytes;
    }
    run->users.push_back(watched->id);
    if (run->state == Run::State::kFar) HoldAll(*run, *context, use.run);
    if (policy != ContextPolicy::kNear) continue;
    ++run->held;
    if (run->state != Run::State::kFar) continue;
    run->state = Run::State::kQueued;
    queue_.push_back(run->key);
  }
  PublishTo(*watched);
  if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
  if (policy != ContextPolicy::kNear) return absl::OkStatus();

  waker_->Poke();
  absl::Status status;
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::all_of(watched->uses.begin(), watched->uses.end(),
                       [&](const Watched::Use& use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                         const Run& run = *runs_[use.run.key];
                         if (run.state == Run::State::kFar) status = run.last_error;
                         return run.state == Run::State::kNear || run.state == Run::State::kFar;
                       });
  };
  if (!options_.clock->Await(mu_, absl::Condition(&settled), deadline))
    status = absl::DeadlineExceededError("near: the rows had not all come by the deadline");
  if (!status.ok()) Forget(*watched);
  return status;
}

void Actor::Work() {
  while (true) {
    const std::vector<uint64_t> due = waker_->Take(*options_.clock);
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
    // One pull at a time; what came due meanwhile goes first.
    PullNext();
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    if (!queue_.empty()) waker_->Poke();
    waker_->Done();
  }
}

void Actor::Update(const std::shared_ptr<Watched>& watched) {
  const uint64_t calls = watched->context->call_count();
  const CallShape shape = watched->context->last_call();
  const bool closed = watched->context->closed();
  if (watched->policy == ContextPolicy::kNear) {
    absl::MutexLock lock(&mu_);
    if (closed) Forget(*watched);
    return;
  }
  const Instant now = options_.clock->Now();
  const bool same = watched->shape.call_row_count == shape.call_row_count &&
                    watched->shape.row_count == shape.row_count &&
                    watched->shape.selected == shape.selected;
  absl::Status unknown;
  if (calls > 0 && !closed && (!watched->opened || !same || now > watched->cost_at + kCostAgeMax)) {
    StepCost cost;
    // Parts are asked side by side, and attended here one after another.
    const std::span<const ContextChunk> chunks = watched->context->chunks();
    for (uint32_t part = 0; part < watched->context->corpora().size() && unknown.ok(); ++part) {
      std::vector<uint32_t> ordinals;
      for (const ContextChunk& chunk : chunks) {
        if (chunk.part == part) ordinals.push_back(chunk.ordinal);
      }
      if (ordinals.empty()) continue;
      const auto of_part =
          tools_.cost(watched->context->corpora()[part], ordinals, shape.call_row_count,
                      shape.selected, now + options_.cost_timeout);
      unknown = of_part.status();
      if (!unknown.ok()) break;
      cost.route_us = std::max(cost.route_us, of_part->route_us);
      cost.near_us += of_part->near_us;
      cost.pull_us += of_part->pull_us;
    }
    if (unknown.ok()) {
      watched->cost = cost;
      watched->cost_at = now;
      watched->shape = shape;
    } else {
      Log().debug("auto: {}; the context is routed", unknown.ToString());
    }
  }
  if (calls > watched->counted) {
    const uint64_t own_sum = watched->context->own_sum();
    watched->own_count = static_cast<double>(own_sum - watched->own_sum) /
                         static_cast<double>(calls - watched->counted);
    watched->own_sum = own_sum;
  }
  absl::MutexLock lock(&mu_);
  if (unknown.ok() && watched->cost_at != Instant{}) Count(*watched, calls);
  if (closed) {
    Forget(*watched);
    return;
  }
  if (!unknown.ok()) watched->context->SetDueAt(std::max<uint64_t>(1, 2 * calls));
}

// What a routed step takes over a near one. Own rows are attended while holders compute, but after
// or before near rows, on the same thread.
double Actor::LostUs(const Watched& watched) {
  const auto tokens = static_cast<double>(watched.context->token_count());
  const double selected = watched.shape.selected;
  const double attended = std::max(1.0, selected > 0 ? std::min(selected, tokens) : tokens);
  const double own_us = watched.cost.near_us * watched.own_count / attended;
  return std::max(own_us, watched.cost.route_us) - (own_us + watched.cost.near_us);
}

// Tells the rule what the calls since the last time lost, and queues what it wants pulled.
void Actor::Count(Watched& watched, uint64_t calls) {
  const Instant now = options_.clock->Now();
  const StepCost& cost = watched.cost;
  const double layers = watched.context->geometry().layers;
  // A segment's part of what its call costs.
  const double part = static_cast<double>(watched.shape.row_count) /
                      std::max(1.0, static_cast<double>(watched.shape.call_row_count));
  const double lost_us = LostUs(watched);
  watched.call_us = std::max(0.0, lost_us) * part / layers;
  if (watched.near_pays != (lost_us >= 0)) {
    watched.near_pays = lost_us >= 0;
    PublishTo(watched);
  }
  for (Watched::Use& use : watched.uses) {
    const PullPrice price = {cost.pull_us * use.share / double(watched.context->corpora().size()),
                             use.run.bytes};
    if (watched.opened) {
      rule_.SetPrice(use.use, price);
      continue;
    }
    std::optional<double> hint;
    if (watched.expect.steps) hint = *watched.expect.steps * layers * watched.call_us * use.share;
    const uint32_t corpus = watched.context->chunks()[use.run.chunk_begin].part;
    use.use = rule_.Open(use.run.key, watched.context->corpora()[corpus]->name, price, hint, now);
  }
  watched.opened = true;
  const double all_us = static_cast<double>(calls - watched.counted) * watched.call_us;
  watched.counted = calls;
  double left_calls = static_cast<double>(calls) + 1;  // then the load may have changed
  for (Watched::Use& use : watched.uses) {
    Run& run = *runs_[use.run.key];
    if (run.state == Run::State::kNear) rule_.CameNear(use.use);
    const PullVerdict verdict = rule_.Lose(use.use, all_us * use.share, now);
    if (run.state == Run::State::kNear) run.saved_us += all_us * use.share;
    if (verdict == PullVerdict::kPull && run.state == Run::State::kFar && watched.call_us > 0 &&
        queue_.size() < kQueuedPullsMax) {
      run.state = Run::State::kQueued;
      queue_.push_back(run.key);
    }
    const double each_us = watched.call_us * use.share;
    if (each_us > 0) left_calls = std::min(left_calls, rule_.LeftUs(use.use, now) / each_us);
  }
  const auto more =
      static_cast<uint64_t>(std::clamp(std::ceil(left_calls), 1.0, double(kCallsMax)));
  if (!watched.context->closed()) watched.context->SetDueAt(calls + more);
}

void Actor::Forget(Watched& watched) {
  if (!contexts_.contains(watched.id)) return;
  for (const Watched::Use& use : watched.uses) {
    if (watched.opened) rule_.Close(use.use);
    Run& run = *runs_[use.run.key];
    std::erase(run.users, watched.id);
    if (watched.policy == ContextPolicy::kNear) --run.held;
    if (run.users.empty() && run.state == Run::State::kFar) runs_.erase(use.run.key);
  }
  watched.context->SetNear(nullptr, false);
  contexts_.erase(watched.id);
}

void Actor::PullNext() {
  std::shared_ptr<Watched> watched;
  ContextRun context_run;
  Run* run = nullptr;
  std::vector<NearFill> fills;
  {
    absl::MutexLock lock(&mu_);
    if (queue_.empty() || stopping_) return;
    run = runs_[queue_.front()].get();
    queue_.pop_front();
    if (run->users.empty()) {  // closed meanwhile
      runs_.erase(run->key);
      return;
    }
    watched = contexts_[run->users.front()];
    for (Watched::Use& use : watched->uses) {
      if (use.run.key != run->key) continue;
      context_run = use.run;
      run->price_us = watched->cost.pull_us * use.share;
      if (watched->opened) rule_.Pulling(use.use, options_.clock->Now());
    }
    run->state = Run::State::kPulling;
    ++stats_.pulls;
    auto room = TakeRoom(*run, *watched->context, context_run);
    if (room.ok()) {
      fills = *std::move(room);
    } else {
      run->last_error = room.status();
    }
  }
  absl::Status status =
      fills.empty() ? absl::Status() : Fill(*watched->context, context_run, fills);
  absl::MutexLock lock(&mu_);
  if (fills.empty()) status = run->last_error;
  run->last_error = status;
  if (!status.ok()) {
    Log().debug("near: a pull of {} bytes failed: {}", run->bytes, status.ToString());
    ++stats_.pulls_failed;
    run->state = Run::State::kFar;
    rule_.PullFailed(run->key);
    if (run->users.empty()) runs_.erase(run->key);
    return;
  }
  for (NearFill& fill : fills) {
    run->ids.push_back(fill.id());
    store_.Commit(std::move(fill));
  }
  stats_.pulled_bytes += run->bytes;
  run->BecomeNear(options_.clock->Now());
  Publish(*run);
}

bool Actor::HoldAll(Run& run, const ContextState& context, const ContextRun& context_run) {
  std::vector<ChunkId> held;
  bool all = true;
  for (uint32_t i = context_run.chunk_begin; i < context_run.chunk_end && all; ++i) {
    const ContextChunk& chunk = context.chunks()[i];
    const ChunkId& id = context.corpora()[chunk.part]->chunks[chunk.ordinal].id;
    all = store_.Hold(id, context.geometry());
    if (all) held.push_back(id);
  }
  if (all) {
    run.ids = std::move(held);
    run.BecomeNear(options_.clock->Now());
    return true;
  }
  for (const ChunkId& id : held) store_.Release(id);
  return false;
}

absl::StatusOr<std::vector<NearFill>> Actor::TakeRoom(const Run& run, const ContextState& context,
                                                      const ContextRun& context_run) {
  while (store_.used_bytes() + run.bytes > store_.room_bytes() && EvictOne(run)) {
  }
  std::vector<NearFill> fills;
  for (uint32_t i = context_run.chunk_begin; i < context_run.chunk_end; ++i) {
    const ContextChunk& chunk = context.chunks()[i];
    const ChunkId& id = context.corpora()[chunk.part]->chunks[chunk.ordinal].id;
    CKV_ASSIGN_OR_RETURN(NearFill fill, store_.Begin(id, context.geometry(), chunk.token_count));
    fills.push_back(std::move(fill));
  }
  return fills;
}

// Evicts the run that has saved the least a byte and time, if that is less than `for_run` promises.
bool Actor::EvictOne(const Run& for_run) {
  const Instant now = options_.clock->Now();
  Run* victim = nullptr;
  double least = for_run.held > 0 ? 1e300 : 1 / static_cast<double>(for_run.bytes + 1);
  for (auto& [key, run] : runs_) {
    if (run->state != Run::State::kNear || run->held > 0) continue;
    const double worth = run->Worth(now);
    if (worth >= least) continue;
    least = worth;
    victim = run.get();
  }
  if (victim == nullptr) return false;
  victim->state = Run::State::kFar;
  ++stats_.evictions;
  rule_.Evicted(victim->key);
  for (const ChunkId& id : victim->ids) store_.Release(id);
  victim->ids.clear();
  Publish(*victim);
  if (victim->users.empty()) runs_.erase(victim->key);
  return true;
}

absl::Status Actor::Fill(const ContextState& context, const ContextRun& run,
                         std::vector<NearFill>& fills) const {
  const ContextChunk& first = context.chunks()[run.chunk_begin];
  const uint64_t row_bytes = context.geometry().row_bytes();
  const auto place = [&](const RowRun& rows) {
    return fills[rows.chunk - first.ordinal]
        .layer(rows.layer)
        .subspan(rows.token_begin * row_bytes, rows.token_count * row_bytes);
  };
  const auto wanted = [this] { return !stopping_.load(std::memory_order_relaxed); };
  FetchCall call;
  call.corpus = context.corpora()[first.part];
  call.chunk_begin = first.ordinal;
  call.chunk_end = first.ordinal + (run.chunk_end - run.chunk_begin);
  const uint32_t layers = context.geometry().layers;
  const auto layers_each = static_cast<uint32_t>(
      std::clamp<uint64_t>(kSliceBytes / (run.tokens * row_bytes + 1), 1, layers));
  for (uint32_t layer = 0; layer < layers; layer += layers_each) {
    if (!wanted()) return absl::CancelledError("the requester is closing");
    call.layer_begin = layer;
    call.layer_end = std::min(layers, layer + layers_each);
    call.deadline = options_.clock->Now() + options_.slice_timeout;
    CKV_RETURN_IF_ERROR(tools_.pull(call, place, wanted));
  }
  return absl::OkStatus();
}

void Actor::Publish(Run& run) {
  for (const uint64_t id : run.users) PublishTo(*contexts_[id]);
}

void Actor::PublishTo(Watched& watched) {
  const ContextState& context = *watched.context;
  auto table = std::make_shared<NearTable>(context.chunks().size());
  bool any = false;
  for (const Watched::Use& use : watched.uses) {
    if (!watched.near_pays || runs_[use.run.key]->state != Run::State::kNear) continue;
    any = true;
    for (uint32_t i = use.run.chunk_begin; i < use.run.chunk_end; ++i) {
      const ContextChunk& chunk = context.chunks()[i];
      (*table)[i] =
          store_.Find(context.corpora()[chunk.part]->chunks[chunk.ordinal].id, context.geometry());
    }
  }
  watched.context->SetNear(any ? std::move(table) : nullptr, watched.same_bits);
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
    return queue_.empty() && waker_->idle();
  };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&idle));
}

}  // namespace ckv
