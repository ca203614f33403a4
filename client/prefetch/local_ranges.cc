#include "client/prefetch/local_ranges.h"

#include <utility>

#include "proto/base/status.h"

namespace ckv {
namespace {

// The key of recomputed rows in the local row cache. Ids are hashes, so no other chunk has this
// key.
ChunkId RecomputedId(ChunkId id) {
  for (uint8_t& byte : id.bytes) byte = static_cast<uint8_t>(~byte);
  return id;
}

}  // namespace

bool LocalRanges::HoldAll(PrefetchRange& range, const WatchedContext& watched,
                          const ContextRange& context_range, Instant now) {
  std::vector<ChunkId> held;
  bool all = true;
  for (uint32_t i = context_range.chunk_begin; i < context_range.chunk_end && all; ++i) {
    const ChunkId key = HoldOne(watched, i);
    all = key != ChunkId{};
    if (all) held.push_back(key);
  }
  if (all) {
    range.ids = std::move(held);
    range.BecomeLocal(now, /*by_others=*/true);
    return true;
  }
  for (const ChunkId& key : held) store_->Release(key);
  return false;
}

ChunkId LocalRanges::HoldOne(const WatchedContext& watched, uint32_t chunk) {
  const ChunkId& id = ChunkIdOf(*watched.context, chunk);
  const Geometry& geometry = watched.context->geometry();
  if (store_->Hold(id, geometry)) return id;
  if (here_ != nullptr) {
    const ContextChunk& at = watched.context->chunks()[chunk];
    auto rows = here_->Find(*watched.context->corpora()[at.part], at.ordinal);
    // They use cache space nevertheless: the holder cannot evict rows that are held here.
    const uint64_t bytes = LocalRowCache::BytesOf(geometry, at.token_count);
    if (rows != nullptr && store_->Adopt(id, geometry, std::move(rows), bytes).ok()) return id;
  }
  if (watched.can_recompute() && store_->Hold(RecomputedId(id), geometry)) return RecomputedId(id);
  return {};
}

uint64_t LocalRanges::HoldSome(PrefetchJob& job) {
  uint64_t bytes = 0;
  for (uint32_t i = job.context_range.chunk_begin; i < job.context_range.chunk_end; ++i) {
    const ChunkId key = HoldOne(*job.watched, i);
    if (key != ChunkId{}) {
      job.held.push_back(key);
      continue;
    }
    job.missing.push_back(i);
    bytes +=
        LocalRowCache::BytesOf(job.context().geometry(), job.context().chunks()[i].token_count);
  }
  return bytes;
}

absl::Status LocalRanges::Reserve(PrefetchJob& job) {
  job.recomputes = job.primitive == Primitive::kLocal;
  job.fills.clear();
  for (const uint32_t chunk : job.missing) {
    const ChunkId& id = ChunkIdOf(job.context(), chunk);
    CKV_ASSIGN_OR_RETURN(
        LocalRowFill fill,
        store_->Begin(job.recomputes ? RecomputedId(id) : id, job.context().geometry(),
                      job.context().chunks()[chunk].token_count));
    job.fills.push_back(std::move(fill));
  }
  return absl::OkStatus();
}

absl::Status LocalRanges::Adopt(PrefetchJob& job,
                                std::vector<std::shared_ptr<const LocalRows>> mapped) {
  std::vector<uint32_t> missing;
  std::vector<LocalRowFill> fills;
  for (size_t i = 0; i < mapped.size(); ++i) {
    if (mapped[i] == nullptr) {
      missing.push_back(job.missing[i]);
      fills.push_back(std::move(job.fills[i]));
      continue;
    }
    const ChunkId id = job.fills[i].id();
    const uint64_t bytes = job.fills[i].bytes();
    job.fills[i] = {};  // the copy takes over its space
    CKV_RETURN_IF_ERROR(store_->Adopt(id, job.context().geometry(), std::move(mapped[i]), bytes));
    job.held.push_back(id);
    job.mapped_bytes += bytes;
    ++job.mapped_count;
  }
  job.missing = std::move(missing);
  job.fills = std::move(fills);
  return absl::OkStatus();
}

void LocalRanges::Keep(PrefetchJob& job, Instant now) {
  // Rows of this process' holder belong to it: they are released once no context needs them.
  const bool by_others = here_ != nullptr ? job.held.size() > job.mapped_count
                                          : job.fills.empty() && job.mapped_count == 0;
  job.range->ids = std::move(job.held);
  for (LocalRowFill& fill : job.fills) {
    job.range->ids.push_back(fill.id());
    store_->Commit(std::move(fill));
  }
  job.range->BecomeLocal(now, by_others);
}

void LocalRanges::Drop(PrefetchJob& job) {
  for (const ChunkId& key : job.held) store_->Release(key);
  job.fills.clear();
}

void LocalRanges::Release(PrefetchRange& range) {
  range.state = PrefetchRange::State::kNotCached;
  range.borrowed = false;
  for (const ChunkId& key : range.ids) store_->Release(key);
  range.ids.clear();
}

bool LocalRanges::AddTo(LocalRowTable& table, const WatchedContext& watched,
                        const ContextRange& context_range) const {
  const ContextState& context = *watched.context;
  bool by_holders = true;
  for (uint32_t i = context_range.chunk_begin; i < context_range.chunk_end; ++i) {
    const ChunkId& id = ChunkIdOf(context, i);
    table[i] = store_->Find(id, context.geometry());
    if (table[i] != nullptr || !watched.can_recompute()) continue;
    table[i] = store_->Find(RecomputedId(id), context.geometry());
    by_holders = false;
  }
  return by_holders;
}

}  // namespace ckv
