// A chunk passes through these states: not cached, queued (Update or Hold wants it), copying
// (NextCopy has made room), cached (EndCopy). Evictions and failures lead back to the first.

#include "client/simulate/fleet_prefetch.h"

#include <algorithm>

namespace ckv {

FleetPrefetch::FleetPrefetch(const FleetSpec* spec, const FleetPlacement* placement,
                             FleetView* view)
    : spec_(*spec),
      placement_(*placement),
      view_(*view),
      capacity_chunks_(spec->cache_bytes / spec->chunk_bytes()),
      holds_(spec->holds_first()),
      rule_({.capacity_bytes = spec->cache_bytes}) {}

bool FleetPrefetch::IsCached(uint32_t chunk) const {
  const auto known = entries_.find(chunk);
  return known != entries_.end() && known->second.state == State::kCached;
}

bool FleetPrefetch::AllCached(std::span<const uint32_t> chunks) const {
  return std::ranges::all_of(chunks, [this](uint32_t chunk) { return IsCached(chunk); });
}

void FleetPrefetch::Enqueue(uint32_t chunk, Entry& entry, Primitive primitive) {
  // As PrefetcherTools::source: the first of the chunk's holders.
  entry.source = &placement_.holders_of_group[placement_.group_of_chunk[chunk]].front();
  entry.primitive = primitive;
  entry.state = State::kQueued;
  queue_.Add(chunk);
}

bool FleetPrefetch::Hold(std::span<const uint32_t> chunks, double now_s) {
  uint64_t more = 0;
  for (const uint32_t chunk : chunks) {
    const auto known = entries_.find(chunk);
    more += known == entries_.end() || known->second.held == 0 ? 1 : 0;
  }
  if (held_chunks_ + more > capacity_chunks_) return false;
  held_chunks_ += more;
  for (const uint32_t chunk : chunks) {
    Entry& entry = entries_[chunk];
    ++entry.held;
    ++entry.users;
    entry.last_use_s = now_s;
    if (entry.state == State::kNotCached) {
      Enqueue(chunk, entry,
              spec_.policy == FleetPolicy::kLocal ? Primitive::kLocal : Primitive::kFetch);
    }
  }
  return true;
}

void FleetPrefetch::Release(std::span<const uint32_t> chunks, double now_s) {
  for (const uint32_t chunk : chunks) {
    Entry& entry = entries_[chunk];
    entry.last_use_s = now_s;
    --entry.users;
    if (--entry.held == 0) --held_chunks_;
  }
}

void FleetPrefetch::Update(FleetWatch& watch, uint32_t steps, const FleetStepCost& cost,
                           double now_s) {
  if (!cost.known || watch.chunks.empty() || capacity_chunks_ == 0) return;
  const Instant now = InstantOf(now_s);
  // LostUs of client/prefetch/prefetch_prices.h: own rows are attended while holders compute.
  const double far_share = 1 - watch.own_share;
  const double own_us = cost.cached_us * watch.own_share / far_share;
  const double routed_us = watch.routed_us > 0 ? watch.routed_us : cost.route_us;
  const double lost_us = std::max(own_us, routed_us) - (own_us + cost.cached_us);
  const double step_us = std::max(0.0, lost_us);
  watch.cached_pays = lost_us >= (watch.cached_pays ? -kModelError * cost.route_us : 0);

  const bool recomputes = cost.prefill_us && *cost.prefill_us < cost.prefetch_us;
  const double price_us = recomputes ? *cost.prefill_us : cost.prefetch_us;
  const double share = 1 / static_cast<double>(watch.chunks.size());
  const PrefetchPrice price = {price_us * share, spec_.chunk_bytes()};
  std::optional<double> hint_us;
  if (spec_.hint == FleetHint::kExact) hint_us = watch.steps * step_us * share;
  for (size_t i = 0; i < watch.chunks.size(); ++i) {
    Entry& entry = entries_[watch.chunks[i]];
    if (!watch.opened) {
      ++entry.users;
      watch.uses.push_back(rule_.Open(watch.chunks[i], "corpus", price, hint_us, now));
    } else {
      rule_.SetPrice(watch.uses[i], price);
    }
    const double use_us = step_us * share * steps;
    if (entry.state == State::kCached) {
      rule_.CameLocal(watch.uses[i]);
      entry.saved_us += use_us;
    }
    const PrefetchVerdict verdict = rule_.Lose(watch.uses[i], use_us, now);
    if (!(step_us > 0) || entry.state != State::kNotCached || queue_.full()) continue;
    if (verdict != PrefetchVerdict::kPrefetch) continue;
    entry.wanted_by = watch.uses[i];
    entry.price_us = price.us;
    Enqueue(watch.chunks[i], entry, recomputes ? Primitive::kLocal : Primitive::kFetch);
  }
  watch.opened = true;
}

void FleetPrefetch::Close(FleetWatch& watch) {
  if (!watch.opened) return;
  for (size_t i = 0; i < watch.chunks.size(); ++i) {
    Entry& entry = entries_[watch.chunks[i]];
    --entry.users;
    if (entry.wanted_by == watch.uses[i]) entry.wanted_by.reset();
    rule_.Close(watch.uses[i]);
    Forget(watch.chunks[i]);
  }
}

void FleetPrefetch::Forget(uint32_t chunk) {
  const auto known = entries_.find(chunk);
  if (known->second.state == State::kNotCached && known->second.users == 0) entries_.erase(known);
}

std::optional<FleetCopy> FleetPrefetch::NextCopy(double now_s) {
  const auto source_of = [this](uint64_t chunk) -> const void* {
    return entries_[static_cast<uint32_t>(chunk)].source;
  };
  while (copies_ < kFlowsMax) {
    const std::optional<uint64_t> taken = queue_.Take(source_of);
    if (!taken) return std::nullopt;
    const auto chunk = static_cast<uint32_t>(*taken);
    Entry& entry = entries_[chunk];
    entry.state = State::kNotCached;
    if (entry.users == 0) {  // closed meanwhile
      Forget(chunk);
      continue;
    }
    if (entry.wanted_by) rule_.PrefetchBegan(*entry.wanted_by, InstantOf(now_s));
    entry.wanted_by.reset();
    if (!MakeRoom(now_s)) {
      rule_.PrefetchFailed(chunk);
      continue;
    }
    entry.state = State::kCopying;
    ++used_chunks_;
    ++copies_;
    queue_.Begin(entry.source);
    FleetCopy copy = {.chunk = chunk, .holder = 0, .primitive = entry.primitive};
    const FleetPlacement::Group group = {.id = placement_.group_of_chunk[chunk], .chunks = {chunk}};
    if (copy.primitive == Primitive::kFetch) copy.holder = view_.ChooseFetch(group, now_s);
    return copy;
  }
  return std::nullopt;
}

void FleetPrefetch::EndCopy(const FleetCopy& copy, double now_s) {
  Entry& entry = entries_[copy.chunk];
  queue_.End(entry.source);
  --copies_;
  entry.state = State::kCached;
  entry.saved_us = 0;
  entry.cached_since_s = entry.last_use_s = now_s;
  changes_.push_back({copy.chunk, true});
}

double FleetPrefetch::Worth(const Entry& entry, double now_s) {
  // PrefetchRange::Worth for equal bytes: a new copy promises 1.
  const double us = (now_s - entry.cached_since_s) * 1e6;
  return (entry.price_us + entry.saved_us) / (us + entry.price_us + 1);
}

bool FleetPrefetch::MakeRoom(double now_s) {
  if (used_chunks_ < capacity_chunks_) return true;
  std::optional<uint32_t> victim;
  double least = 0;
  for (const auto& [chunk, entry] : entries_) {
    if (entry.state != State::kCached || entry.held > 0) continue;
    const double worth = holds_ ? entry.last_use_s : Worth(entry, now_s);
    if (!holds_ && worth >= 1) continue;
    // Chunks of equal worth have an order, so that runs are the same.
    if (victim && (worth > least || (worth == least && chunk > *victim))) continue;
    victim = chunk;
    least = worth;
  }
  if (!victim) return false;
  Evict(*victim, entries_[*victim]);
  return true;
}

void FleetPrefetch::Evict(uint32_t chunk, Entry& entry) {
  ++evictions_;
  --used_chunks_;
  entry.state = State::kNotCached;
  rule_.Evicted(chunk);
  changes_.push_back({chunk, false});
  // The entry of the chunk that needs the room is still referred to, so none is erased here.
}

}  // namespace ckv
