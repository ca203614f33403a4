// Reports first: a notice finds or makes its entry, whose digest is applied as the difference to
// the earlier one. Rankings follow: the matched tokens of all requesters are summed chunk by chunk,
// then each requester becomes a candidate in the order of names, then Rank computes the costs.
//
// Each chunk has a set of bits, one for each requester. So a ranking looks up a chunk once, not
// once for each requester.

#include "server/directory/ranking/load_table.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr size_t kWordBits = 64;

// Calls `take` with the index of each set bit of word number `word`.
template <class Take>
void ForEachBit(uint64_t bits, size_t word, Take take) {
  for (; bits != 0; bits &= bits - 1)
    take(word * kWordBits + static_cast<size_t>(std::countr_zero(bits)));
}

// Adds `tokens` to the places of the set bits: four bits at a time, without a branch for each.
void AddTokens(uint64_t bits, double tokens, double* matched) {
  constexpr double kOfBits[16][4] = {{0, 0, 0, 0}, {1, 0, 0, 0}, {0, 1, 0, 0}, {1, 1, 0, 0},
                                     {0, 0, 1, 0}, {1, 0, 1, 0}, {0, 1, 1, 0}, {1, 1, 1, 0},
                                     {0, 0, 0, 1}, {1, 0, 0, 1}, {0, 1, 0, 1}, {1, 1, 0, 1},
                                     {0, 0, 1, 1}, {1, 0, 1, 1}, {0, 1, 1, 1}, {1, 1, 1, 1}};
  for (; bits != 0; bits >>= 4, matched += 4) {
    const double* const factors = kOfBits[bits & 15];
    for (size_t i = 0; i < 4; ++i) matched[i] += factors[i] * tokens;
  }
}

// The fastest path to `host`, left for a new transfer.
void ChoosePath(const FleetQuery& query, std::span<const PathsFrom> from, Instant now,
                RankedRequester& out) {
  double best = 0;
  out.has_path = false;
  out.path = {};
  for (const PathsFrom& paths : from) {
    if (paths.snapshot == nullptr) continue;
    std::optional<PathCost> path = paths.snapshot->Find(out.host, now, paths.congestion_age_max);
    if (!path) continue;
    if (path->tier < query.in_flight.size()) path->in_flight = query.in_flight[path->tier];
    const double left = path->bandwidth_bytes_per_s * (1 - path->congestion) /
                        (1 + std::min(path->in_flight, kInFlightMax));
    if (out.has_path && left <= best) continue;
    best = left;
    out.has_path = true;
    out.path = *path;
    out.from_host = paths.host;
    out.tier_name = paths.snapshot->tiers[path->tier].name;
  }
}

RankCandidate CandidateOf(const RankedRequester& requester) {
  RankCandidate candidate;
  candidate.matched_tokens = requester.matched_tokens;
  candidate.free_bytes = requester.load.free_bytes;
  candidate.queued = requester.load.queued;
  candidate.batch = requester.load.batch;
  candidate.batch_max = requester.load.batch_max;
  candidate.iteration_base_us = requester.load.iteration_base_us;
  candidate.iteration_request_us = requester.load.iteration_request_us;
  candidate.path = requester.path;
  return candidate;
}

}  // namespace

absl::StatusOr<LoadLease> LoadTable::Report(const LoadNotice& notice) {
  CKV_RETURN_IF_ERROR(ValidateNotice(notice));
  std::vector<ChunkPrefix> wanted;
  if (notice.cached) {
    wanted = *notice.cached;
    std::sort(wanted.begin(), wanted.end());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  }
  absl::MutexLock lock(&mu_);
  const Instant now = options_.clock->Now();
  Expire(now);
  LoadLease lease;
  if (notice.leaves) {
    const auto found = by_name_.find(notice.name);
    if (found != by_name_.end() && found->second.address == notice.address) Remove(found);
    return lease;
  }
  CKV_ASSIGN_OR_RETURN(Reported* const reported, EntryOf(notice, now));
  lease.ttl = notice.ttl == Duration(0)
                  ? options_.ttl
                  : std::clamp(notice.ttl, options_.ttl_min, options_.ttl_max);
  reported->host = notice.host.empty() ? HostOfAddress(notice.address) : notice.host;
  reported->load = notice.load;
  reported->at = now;
  reported->expires = now + lease.ttl;
  next_expiry_ = std::min(next_expiry_, reported->expires);
  if (notice.cached) SetCached(*reported, wanted);
  lease.digest_wanted = !reported->has_digest;
  lease.digest_count = static_cast<uint32_t>(reported->cached.size());
  return lease;
}

absl::StatusOr<LoadTable::Reported*> LoadTable::EntryOf(const LoadNotice& notice, Instant now) {
  const auto found = by_name_.find(notice.name);
  if (found != by_name_.end()) {
    Reported& reported = found->second;
    if (reported.address == notice.address) return &reported;
    return absl::AlreadyExistsError(absl::StrFormat(
        "name '%s' is held by %s for %d ms more: choose another name, or wait", notice.name,
        reported.address, (reported.expires - now) / std::chrono::milliseconds(1)));
  }
  if (by_name_.size() >= kRequesterCountMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d requesters report their load, limit reached", by_name_.size()));
  }
  Reported reported;
  reported.address = notice.address;
  if (free_slots_.empty()) {
    reported.slot = slot_count_++;
  } else {
    reported.slot = free_slots_.back();
    free_slots_.pop_back();
  }
  return &by_name_.emplace(notice.name, std::move(reported)).first->second;
}

void LoadTable::SetCached(Reported& reported, const std::vector<ChunkPrefix>& wanted) {
  reported.has_digest = true;
  std::vector<ChunkPrefix> gone, added;
  std::set_difference(reported.cached.begin(), reported.cached.end(), wanted.begin(), wanted.end(),
                      std::back_inserter(gone));
  std::set_difference(wanted.begin(), wanted.end(), reported.cached.begin(), reported.cached.end(),
                      std::back_inserter(added));
  for (const ChunkPrefix prefix : gone) Clear(prefix, reported.slot);
  std::vector<ChunkPrefix> refused;
  for (const ChunkPrefix prefix : added) {
    auto found = slots_of_.find(prefix);
    if (found == slots_of_.end()) {
      if (slots_of_.size() >= kChunkCountMax) {
        refused.push_back(prefix);
        continue;
      }
      found = slots_of_.emplace(prefix, SlotSet{}).first;
    }
    found->second[reported.slot / kWordBits] |= uint64_t{1} << (reported.slot % kWordBits);
  }
  reported.cached.clear();
  std::set_difference(wanted.begin(), wanted.end(), refused.begin(), refused.end(),
                      std::back_inserter(reported.cached));
}

void LoadTable::Clear(ChunkPrefix prefix, Slot slot) {
  const auto found = slots_of_.find(prefix);
  SlotSet& slots = found->second;
  slots[slot / kWordBits] &= ~(uint64_t{1} << (slot % kWordBits));
  if (slots == SlotSet{}) slots_of_.erase(found);
}

LoadTable::ByName::iterator LoadTable::Remove(ByName::iterator entry) {
  const Slot slot = entry->second.slot;
  for (const ChunkPrefix prefix : entry->second.cached) Clear(prefix, slot);
  free_slots_.push_back(slot);
  return by_name_.erase(entry);
}

void LoadTable::Expire(Instant now) {
  if (now < next_expiry_) return;
  next_expiry_ = kInstantMax;
  for (auto entry = by_name_.begin(); entry != by_name_.end();) {
    if (now >= entry->second.expires) {
      entry = Remove(entry);
    } else {
      next_expiry_ = std::min(next_expiry_, entry->second.expires);
      ++entry;
    }
  }
}

void LoadTable::MatchPrefix(std::span<const RankChunk> chunks) {
  const size_t words = (slot_count_ + kWordBits - 1) / kWordBits;
  // The slots that have every chunk so far. Bits of slots without a requester do no harm.
  SlotSet whole;
  whole.fill(~uint64_t{0});
  double tokens = 0;
  double* const matched = matched_.data();
  const auto note = [matched, &tokens](size_t slot) { matched[slot] = tokens; };
  for (const RankChunk& chunk : chunks) {
    const auto found = slots_of_.find(chunk.prefix);
    uint64_t left = 0;
    for (size_t word = 0; word < words; ++word) {
      const uint64_t has = found == slots_of_.end() ? 0 : found->second[word];
      ForEachBit(whole[word] & ~has, word, note);
      whole[word] &= has;
      left |= whole[word];
    }
    if (left == 0) return;
    tokens += chunk.tokens;
  }
  for (size_t word = 0; word < words; ++word) ForEachBit(whole[word], word, note);
}

void LoadTable::MatchAny(std::span<const RankChunk> chunks) {
  const size_t words = (slot_count_ + kWordBits - 1) / kWordBits;
  for (const RankChunk& chunk : chunks) {
    const auto found = slots_of_.find(chunk.prefix);
    if (found == slots_of_.end()) continue;
    for (size_t word = 0; word < words; ++word) {
      AddTokens(found->second[word], chunk.tokens, matched_.data() + word * kWordBits);
    }
  }
}

void LoadTable::Rank(const FleetQuery& query, std::span<const PathsFrom> from, FleetRanking& out) {
  const Instant now = options_.clock->Now();
  absl::MutexLock lock(&mu_);
  Expire(now);
  matched_.assign((slot_count_ + kWordBits - 1) / kWordBits * kWordBits, 0);
  if (query.prefix_only) {
    MatchPrefix(query.chunks);
  } else {
    MatchAny(query.chunks);
  }
  candidates_.clear();
  out.requesters.resize(by_name_.size());
  size_t index = 0;
  for (const auto& [name, reported] : by_name_) {
    RankedRequester& requester = out.requesters[index++];
    requester.name = name;
    requester.address = reported.address;
    requester.host = reported.host;
    requester.load = reported.load;
    requester.load_age = now - reported.at;
    requester.matched_tokens = std::min(matched_[reported.slot], query.request.tokens);
    ChoosePath(query, from, now, requester);
    candidates_.push_back(CandidateOf(requester));
  }
  AssumeIterationTimes(candidates_);
  ckv::Rank(query.request, candidates_, ranking_);
  for (size_t i = 0; i < index; ++i) out.requesters[i].cost = ranking_.candidates[i];
  out.request = query.request;
  out.best = ranking_.best;
  out.tolerated_error.reset();
  if (query.with_tolerance && ranking_.best)
    out.tolerated_error = ToleratedCongestionError(candidates_, ranking_);
}

size_t LoadTable::requester_count() {
  absl::MutexLock lock(&mu_);
  Expire(options_.clock->Now());
  return by_name_.size();
}

size_t LoadTable::chunk_count() {
  absl::MutexLock lock(&mu_);
  Expire(options_.clock->Now());
  return slots_of_.size();
}

}  // namespace ckv
