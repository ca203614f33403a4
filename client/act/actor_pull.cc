// The pulling half of the actor: room, transfers, and the tables that contexts get.

#include <algorithm>
#include <utility>
#include <vector>

#include "client/act/actor.h"
#include "client/act/watched.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

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
    const auto asker = contexts_.find(run->asker);
    watched = asker != contexts_.end() ? asker->second : contexts_[run->users.back()];
    for (Watched::Use& use : watched->uses) {
      if (use.run.key != run->key) continue;
      context_run = use.run;
      run->price_us = watched->cost.pull_us * use.share;
    }
    if (HoldAll(*run, *watched->context, context_run)) {  // pulled for others meanwhile
      Publish(*run);
      return;
    }
    for (const Watched::Use& use : watched->uses) {
      if (use.run.key == run->key && watched->opened) rule_.Pulling(use.use, options_.clock->Now());
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
  run->BecomeNear(options_.clock->Now(), /*by_others=*/false);
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
    run.BecomeNear(options_.clock->Now(), /*by_others=*/true);
    return true;
  }
  for (const ChunkId& id : held) store_.Release(id);
  return false;
}

absl::StatusOr<std::vector<NearFill>> Actor::TakeRoom(const Run& run, const ContextState& context,
                                                      const ContextRun& context_run) {
  EvictFor(run);
  std::vector<NearFill> fills;
  for (uint32_t i = context_run.chunk_begin; i < context_run.chunk_end; ++i) {
    const ContextChunk& chunk = context.chunks()[i];
    const ChunkId& id = context.corpora()[chunk.part]->chunks[chunk.ordinal].id;
    CKV_ASSIGN_OR_RETURN(NearFill fill, store_.Begin(id, context.geometry(), chunk.token_count));
    fills.push_back(std::move(fill));
  }
  return fills;
}

// Evicts runs that have saved less a byte and time than `wanted` promises, those that saved the
// least first, if that makes enough room. Rows that calls still attend keep their room until they
// end.
void Actor::EvictFor(const Run& wanted) {
  const Instant now = options_.clock->Now();
  const double promised = wanted.held > 0 ? 1e300 : 1 / static_cast<double>(wanted.bytes + 1);
  std::vector<std::pair<double, Run*>> victims;
  uint64_t room = store_.room_bytes() - std::min(store_.used_bytes(), store_.room_bytes());
  uint64_t evictable = 0;
  for (const auto& [key, run] : runs_) {
    if (run->state != Run::State::kNear || run->held > 0 || run->borrowed) continue;
    const double worth = run->Worth(now);
    if (worth >= promised) continue;
    victims.emplace_back(worth, run.get());
    evictable += run->bytes;
  }
  if (room + evictable < wanted.bytes) return;
  std::sort(victims.begin(), victims.end());
  for (const auto& [worth, victim] : victims) {
    if (room >= wanted.bytes) return;
    room += victim->bytes;
    Evict(*victim);
  }
}

void Actor::Evict(Run& run) {
  ++stats_.evictions;
  rule_.Evicted(run.key);
  ReleaseAll(run);
  Publish(run);
  if (run.users.empty()) runs_.erase(run.key);
}

void Actor::ReleaseAll(Run& run) {
  run.state = Run::State::kFar;
  run.borrowed = false;
  for (const ChunkId& id : run.ids) store_.Release(id);
  run.ids.clear();
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

}  // namespace ckv
