// The prefetching half of the actor: its queue, space, transfers, and the tables that contexts get.

#include <algorithm>
#include <utility>
#include <vector>

#include "client/act/actor.h"
#include "client/act/watched.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// The key of recomputed rows in the local row cache. Ids are hashes, so no other chunk has this
// key.
ChunkId AnewId(ChunkId id) {
  for (uint8_t& byte : id.bytes) byte = static_cast<uint8_t>(~byte);
  return id;
}

}  // namespace

struct Actor::Job {
  std::shared_ptr<Watched> watched;
  ContextRun context_run;
  Run* run = nullptr;
  Primitive primitive = Primitive::kFetch;
  const void* source = nullptr;
  std::vector<ChunkId> held;      // keys of chunks that are here already, or were copied here
  std::vector<uint32_t> missing;  // chunks that are not
  std::vector<NearFill> fills;    // their memory, in the same order
  bool anew = false;              // rows are recomputed: the fills have keys of AnewId
  size_t mapped_count = 0;        // how many of `held` were mapped for this job
  uint64_t mapped_bytes = 0;
  uint32_t run_held = 0;               // Run::held when it began
  std::shared_ptr<const Corpus> kept;  // with `missing` at the cache of this host; or null

  const ContextState& context() const { return *watched->context; }
};

void Actor::Pull() {
  while (true) {
    Job job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Actor::HasPullOrStops));
      if (stopping_) return;
      if (!Begin(NextPull(), job)) continue;
    }
    const absl::Status status = Fill(job);
    absl::MutexLock lock(&mu_);
    End(job, status);
  }
}

size_t Actor::NextPull() const {
  for (size_t i = 0; i < queue_.size(); ++i) {
    const void* const source = SourceOf(*runs_.at(queue_[i]));
    if (std::count(sources_.begin(), sources_.end(), source) < kHolderFlowsMax) return i;
  }
  return queue_.size();
}

const void* Actor::SourceOf(const Run& run) const {
  const auto asker = contexts_.find(run.asker);
  const bool anew = asker != contexts_.end() && asker->second->can_recompute() &&
                    !asker->second->recompute_failed;
  return anew ? asker->second.get() : run.source;
}

bool Actor::Begin(size_t at, Job& job) {
  job.run = runs_[queue_[at]].get();
  queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(at));
  Run& run = *job.run;
  if (run.users.empty()) {  // closed meanwhile
    runs_.erase(run.key);
    return false;
  }
  const auto asker = contexts_.find(run.asker);
  job.watched = asker != contexts_.end() ? asker->second : contexts_[run.users.back()];
  const auto use = std::find_if(job.watched->uses.begin(), job.watched->uses.end(),
                                [&](const auto& each) { return each.run.key == run.key; });
  job.context_run = use->run;
  const auto [price_us, primitive] = PriceOf(*job.watched);
  run.price_us = price_us * use->share;
  job.primitive = primitive;
  if (HoldAll(run, *job.watched, job.context_run)) {  // prefetched for others meanwhile
    Publish(run);
    return false;
  }
  if (job.watched->opened) rule_.Pulling(use->use, options_.clock->Now());
  run.state = Run::State::kPulling;
  job.run_held = run.held;
  job.source = SourceOf(run);
  sources_.push_back(job.source);
  ++job_count_;
  ++stats_.pulls;
  return true;
}

bool Actor::HoldAll(Run& run, const Watched& watched, const ContextRun& context_run) {
  const ContextChunk& first = watched.context->chunks()[context_run.chunk_begin];
  run.source = tools_.source(watched.context->corpora()[first.part], first.ordinal);
  std::vector<ChunkId> held;
  bool all = true;
  for (uint32_t i = context_run.chunk_begin; i < context_run.chunk_end && all; ++i) {
    const ChunkId key = HoldOne(watched, i);
    all = key != ChunkId{};
    if (all) held.push_back(key);
  }
  if (all) {
    run.ids = std::move(held);
    run.BecomeNear(options_.clock->Now(), /*by_others=*/true);
    return true;
  }
  for (const ChunkId& key : held) store_.Release(key);
  return false;
}

ChunkId Actor::HoldOne(const Watched& watched, uint32_t chunk) {
  const ChunkId& id = ChunkIdOf(*watched.context, chunk);
  const Geometry& geometry = watched.context->geometry();
  if (store_.Hold(id, geometry)) return id;
  if (tools_.here != nullptr) {
    const ContextChunk& at = watched.context->chunks()[chunk];
    auto rows = tools_.here->Find(*watched.context->corpora()[at.part], at.ordinal);
    // They use cache space nevertheless: the holder cannot evict rows that are held here.
    const uint64_t bytes = NearStore::BytesOf(geometry, at.token_count);
    if (rows != nullptr && store_.Adopt(id, geometry, std::move(rows), bytes).ok()) return id;
  }
  if (watched.can_recompute() && store_.Hold(AnewId(id), geometry)) return AnewId(id);
  return {};
}

// Holds the chunks that are here, and reserves space for the others. Both in one step, because two
// jobs run at once.
absl::Status Actor::TakeRoom(Job& job) {
  uint64_t bytes = 0;
  for (uint32_t i = job.context_run.chunk_begin; i < job.context_run.chunk_end; ++i) {
    const ChunkId key = HoldOne(*job.watched, i);
    if (key != ChunkId{}) {
      job.held.push_back(key);
      continue;
    }
    job.missing.push_back(i);
    bytes += NearStore::BytesOf(job.context().geometry(), job.context().chunks()[i].token_count);
  }
  if (bytes > 0) EvictFor(*job.run, bytes);
  return TakeFills(job);
}

absl::Status Actor::TakeFills(Job& job) {
  job.anew = job.primitive == Primitive::kLocal;
  job.fills.clear();
  for (const uint32_t chunk : job.missing) {
    const ChunkId& id = ChunkIdOf(job.context(), chunk);
    CKV_ASSIGN_OR_RETURN(NearFill fill,
                         store_.Begin(job.anew ? AnewId(id) : id, job.context().geometry(),
                                      job.context().chunks()[chunk].token_count));
    job.fills.push_back(std::move(fill));
  }
  return absl::OkStatus();
}

// Gets the rows in the way that costs least, or by a fetch if that fails.
absl::Status Actor::Fill(Job& job) {
  if (tools_.here != nullptr && job.primitive == Primitive::kFetch) CopyHere(job);
  {
    absl::MutexLock lock(&mu_);
    CKV_RETURN_IF_ERROR(TakeRoom(job));
  }
  if (job.anew) {
    absl::Status status = MakeAnew(job);
    if (status.ok() || !wanted()) return status;
    Log().warn("auto: rows could not be recomputed: {}; fetching them instead", status.ToString());
    job.primitive = Primitive::kFetch;
    absl::MutexLock lock(&mu_);
    CKV_RETURN_IF_ERROR(TakeFills(job));
  }
  KeepAtCache(job);
  CKV_RETURN_IF_ERROR(MapRows(job));
  // Neighbours are fetched together.
  for (size_t begin = 0, end = 0; begin < job.missing.size(); begin = end) {
    end = begin + 1;
    while (end < job.missing.size() && job.missing[end] == job.missing[end - 1] + 1) ++end;
    absl::Status status = PullRows(job, begin, end);
    if (!status.ok() && job.kept != nullptr && wanted()) {
      job.kept = nullptr;  // fall back to the holders
      status = PullRows(job, begin, end);
    }
    CKV_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// Returns when to give up a copy of this many bytes.
Instant Actor::CopiedBy(uint64_t bytes) const {
  return options_.clock->Now() +
         options_.slice_timeout * static_cast<int64_t>(1 + bytes / kSliceBytes);
}

// Copies missing chunks to this process' holder. Copies that succeed are found there even if others
// fail.
void Actor::CopyHere(const Job& job) {
  const ContextState& context = job.context();
  const ContextChunk& first = context.chunks()[job.context_run.chunk_begin];
  const std::shared_ptr<const Corpus>& corpus = context.corpora()[first.part];
  std::vector<uint32_t> missing;
  uint64_t bytes = 0;
  for (uint32_t i = job.context_run.chunk_begin; i < job.context_run.chunk_end; ++i) {
    const ContextChunk& chunk = context.chunks()[i];
    if (IsNear(corpus->chunks[chunk.ordinal].id, context.geometry())) continue;
    if (tools_.here->Find(*corpus, chunk.ordinal) != nullptr) continue;
    missing.push_back(chunk.ordinal);
    bytes += NearStore::BytesOf(context.geometry(), chunk.token_count);
  }
  if (missing.empty()) return;
  const absl::Status status = tools_.here->Copy(corpus, missing, CopiedBy(bytes));
  if (!status.ok()) Log().debug("auto: no copies in this process' holder: {}", status.ToString());
}

// Makes the cache of this host store the missing chunks. They are then mapped or fetched from
// there.
void Actor::KeepAtCache(Job& job) const {
  if (!tools_.keep || job.missing.empty()) return;
  const ContextState& context = job.context();
  std::vector<uint32_t> chunks;
  uint64_t bytes = 0;
  for (size_t i = 0; i < job.missing.size(); ++i) {
    chunks.push_back(context.chunks()[job.missing[i]].ordinal);
    bytes += job.fills[i].bytes();
  }
  const auto& corpus = context.corpora()[context.chunks()[job.missing.front()].part];
  auto kept = tools_.keep(corpus, chunks, CopiedBy(bytes));
  if (kept.ok()) {
    job.kept = *std::move(kept);
  } else {
    Log().debug("auto: no copies at the cache of this host: {}", kept.status().ToString());
  }
}

// Maps the missing chunks that holders on this host hand over in time. All requesters of the host
// share these copies, but they use cache space like other rows: a cached chunk keeps its copy
// alive.
absl::Status Actor::MapRows(Job& job) {
  if (tools_.map == nullptr) return absl::OkStatus();
  const ContextState& context = job.context();
  std::vector<std::shared_ptr<const NearRows>> mapped(job.missing.size());
  const Instant deadline = options_.clock->Now() + kMapTimeout;
  for (size_t i = 0; i < job.missing.size(); ++i) {
    if (!wanted()) return absl::CancelledError("the requester is closing");
    const ContextChunk& at = context.chunks()[job.missing[i]];
    auto rows = tools_.map({.corpus = job.kept ? job.kept : context.corpora()[at.part],
                            .chunk = at.ordinal,
                            .deadline = deadline,
                            .may_be_refused = true});
    if (rows.ok()) {
      mapped[i] = *std::move(rows);
      continue;
    }
    Log().debug("auto: a chunk is not mapped: {}", rows.status().ToString());
    // This chunk is not on this host; the next one may be.
    if (!absl::IsUnimplemented(rows.status())) break;
  }
  return Adopt(job, std::move(mapped));
}

// Replaces fills by mapped rows; both are in the same order.
absl::Status Actor::Adopt(Job& job, std::vector<std::shared_ptr<const NearRows>> mapped) {
  std::vector<uint32_t> missing;
  std::vector<NearFill> fills;
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < mapped.size(); ++i) {
    if (mapped[i] == nullptr) {
      missing.push_back(job.missing[i]);
      fills.push_back(std::move(job.fills[i]));
      continue;
    }
    const ChunkId id = job.fills[i].id();
    const uint64_t bytes = job.fills[i].bytes();
    job.fills[i] = {};  // the copy takes over its space
    CKV_RETURN_IF_ERROR(store_.Adopt(id, job.context().geometry(), std::move(mapped[i]), bytes));
    job.held.push_back(id);
    job.mapped_bytes += bytes;
    ++job.mapped_count;
  }
  job.missing = std::move(missing);
  job.fills = std::move(fills);
  return absl::OkStatus();
}

absl::Status Actor::MakeAnew(Job& job) {
  const ContextState& context = job.context();
  if (job.missing.empty()) return absl::OkStatus();
  const Instant begin = options_.clock->Now();
  // Includes chunks in between that are already here: later rows are computed from earlier ones.
  RecomputeCall call;
  const ContextChunk& first = context.chunks()[job.missing.front()];
  call.corpus = context.corpora()[first.part];
  call.chunk_begin = first.ordinal;
  call.chunk_end = context.chunks()[job.missing.back()].ordinal + 1;
  std::vector<std::byte> unused;  // rows of chunks that are here
  call.rows = [&](uint32_t ordinal, uint32_t layer) {
    for (size_t i = 0; i < job.missing.size(); ++i) {
      if (context.chunks()[job.missing[i]].ordinal == ordinal) return job.fills[i].layer(layer);
    }
    unused.resize(uint64_t{call.corpus->chunks[ordinal].token_count} *
                  context.geometry().row_bytes());
    return std::span(unused);
  };
  call.wanted = [this] { return wanted(); };
  absl::Status status = job.watched->recompute.make(call);
  uint64_t tokens = 0;
  for (uint32_t i = call.chunk_begin; i < call.chunk_end; ++i)
    tokens += call.corpus->chunks[i].token_count;
  const Duration took = options_.clock->Now() - begin;
  const double us = double(took.count()) / 1e3;
  absl::MutexLock lock(&mu_);
  if (!status.ok()) {
    job.watched->recompute_failed = true;
    return status;
  }
  const auto [known, is_new] = made_us_.emplace(ModelOf(context.geometry()), us / double(tokens));
  if (!is_new) known->second = (known->second + us / double(tokens)) / 2;
  stats_.recomputed_tokens += tokens;
  stats_.recompute.Add(took);
  return status;
}

absl::Status Actor::PullRows(Job& job, size_t begin, size_t end) const {
  const ContextState& context = job.context();
  const ContextChunk& first = context.chunks()[job.missing[begin]];
  const uint64_t row_bytes = context.geometry().row_bytes();
  const auto place = [&](const RowRun& rows) {
    return job.fills[begin + (rows.chunk - first.ordinal)]
        .layer(rows.layer)
        .subspan(rows.token_begin * row_bytes, rows.token_count * row_bytes);
  };
  FetchCall call;
  call.corpus = job.kept ? job.kept : context.corpora()[first.part];
  call.chunk_begin = first.ordinal;
  call.chunk_end = first.ordinal + static_cast<uint32_t>(end - begin);
  uint64_t tokens = 0;
  for (size_t i = begin; i < end; ++i) tokens += context.chunks()[job.missing[i]].token_count;
  const uint32_t layers = context.geometry().layers;
  const auto layers_each = static_cast<uint32_t>(
      std::clamp<uint64_t>(kSliceBytes / (tokens * row_bytes + 1), 1, layers));
  for (uint32_t layer = 0; layer < layers; layer += layers_each) {
    if (!wanted()) return absl::CancelledError("the requester is closing");
    call.layer_begin = layer;
    call.layer_end = std::min(layers, layer + layers_each);
    call.deadline = options_.clock->Now() + options_.slice_timeout;
    CKV_RETURN_IF_ERROR(tools_.pull(call, place, [this] { return wanted(); }));
  }
  return absl::OkStatus();
}

void Actor::End(Job& job, const absl::Status& status) {
  Run& run = *job.run;
  --job_count_;
  sources_.erase(std::find(sources_.begin(), sources_.end(), job.source));
  run.last_error = status;
  if (!status.ok()) {
    Log().debug("near: a pull of {} bytes failed: {}", run.bytes, status.ToString());
    ++stats_.pulls_failed;
    for (const ChunkId& key : job.held) store_.Release(key);
    job.fills.clear();  // so that a waiter sees the space free
    rule_.PullFailed(run.key);
    if (run.held > job.run_held && wanted()) {  // now needed in the cache, and may evict more
      run.state = Run::State::kQueued;
      queue_.push_front(run.key);
      return;
    }
    run.state = Run::State::kFar;
    if (run.users.empty()) runs_.erase(run.key);
    return;
  }
  // Rows of this process' holder belong to it: they are released once no context needs them.
  const bool by_others = tools_.here != nullptr ? job.held.size() > job.mapped_count
                                                : job.fills.empty() && job.mapped_count == 0;
  run.ids = std::move(job.held);
  stats_.mapped_bytes += job.mapped_bytes;
  job.watched->context->local_rows().AddPulled(job.mapped_bytes);
  for (NearFill& fill : job.fills) {
    run.ids.push_back(fill.id());
    if (!job.anew) stats_.pulled_bytes += fill.bytes();
    job.watched->context->local_rows().AddPulled(fill.bytes());
    store_.Commit(std::move(fill));
  }
  run.BecomeNear(options_.clock->Now(), by_others);
  if (by_others && run.users.empty()) {
    rule_.Evicted(run.key);
    ReleaseAll(run);
    runs_.erase(run.key);
    return;
  }
  Publish(run);
}

// Evicts ranges that saved less per byte and time than `wanted` promises, the least useful first,
// if that frees enough space. Rows that calls still attend keep their space until those calls end.
void Actor::EvictFor(const Run& wanted, uint64_t bytes) {
  ForgetClosed();
  const Instant now = options_.clock->Now();
  const double promised = wanted.held > 0 ? 1e300 : 1 / static_cast<double>(wanted.bytes + 1);
  std::vector<std::pair<double, Run*>> victims;
  uint64_t room = store_.room_bytes() - std::min(store_.used_bytes(), store_.room_bytes());
  uint64_t evictable = 0;
  for (const auto& [key, run] : runs_) {
    if (run->state != Run::State::kNear || run->held > 0) continue;
    const double worth = run->Worth(now);
    // Chunks that another range also holds stay.
    const uint64_t freed = worth < promised ? store_.BytesHeldOnce(run->ids) : 0;
    if (freed == 0) continue;
    victims.emplace_back(worth, run.get());
    evictable += freed;
  }
  if (room + evictable < bytes) return;
  std::sort(victims.begin(), victims.end());
  for (const auto& [worth, victim] : victims) {
    if (room >= bytes) return;
    room += store_.BytesHeldOnce(victim->ids);
    Evict(*victim);
  }
}

// Releases the ranges of closed contexts with policy `near` that the actor's thread has not handled
// yet.
void Actor::ForgetClosed() {
  std::vector<std::shared_ptr<Watched>> closed;
  for (const auto& [id, watched] : contexts_) {
    if (watched->policy == ContextPolicy::kNear && watched->context->closed())
      closed.push_back(watched);
  }
  for (const auto& watched : closed) Forget(*watched);
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
  for (const ChunkId& key : run.ids) store_.Release(key);
  run.ids.clear();
}

void Actor::Publish(Run& run) {
  for (const uint64_t id : run.users) PublishTo(*contexts_[id]);
}

void Actor::PublishTo(Watched& watched) {
  const ContextState& context = *watched.context;
  auto table = std::make_shared<NearTable>(context.chunks().size());
  bool any = false, same_bits = watched.same_bits;
  for (const Watched::Use& use : watched.uses) {
    const Run& run = *runs_[use.run.key];
    if (!watched.near_pays || run.state != Run::State::kNear) continue;
    any = true;
    for (uint32_t i = use.run.chunk_begin; i < use.run.chunk_end; ++i) {
      const ChunkId& id = ChunkIdOf(context, i);
      std::shared_ptr<const NearRows>& rows = (*table)[i];
      rows = store_.Find(id, context.geometry());
      if (rows != nullptr || !watched.can_recompute()) continue;
      rows = store_.Find(AnewId(id), context.geometry());
      same_bits = false;
    }
  }
  watched.context->local_rows().Set(any ? std::move(table) : nullptr, same_bits);
}

}  // namespace ckv
