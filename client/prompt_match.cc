// Finds the chunks of a prompt. MatchPrompt, in order:
//   1. Hashes the tokens at every position, for every key, and lets the caller look the hashes up.
//   2. FindPlaces makes a place of each chunk whose token hash the prompt has there.
//   3. Best chooses the chains of places that cover most, from the end of the prompt to its begin.
//   4. MarkFalse checks the chosen places by chunk id. If any is false, Best runs again without it.
//   5. Answer lists the spans and the gaps.

#include "client/prompt_match.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/token_id.h"
#include "store/memory/chunk_id.h"
#include "store/memory/token_hash.h"

namespace ckv {
namespace {

constexpr int32_t kNone = -1;
// The most rounds of matching: false token hashes need another. A span still false becomes a gap.
constexpr int kRoundCountMax = 16;

// A chunk whose token hash the prompt has at a position.
struct Place {
  uint32_t begin = 0;
  uint32_t chunk = 0;    // index into the chunks
  uint32_t covered = 0;  // most tokens from here on, if this one is taken
  int32_t next : 30;     // the place of the chain's next chunk, or kNone
  uint32_t key : 1;      // index into the keys
  uint32_t is_false : 1;
};
static_assert(kPromptPlaceCountMax < (1u << 29));

// One prompt's search. One thread.
class PromptMatcher {
 public:
  PromptMatcher(std::span<const int32_t> tokens, std::span<const TenantKey> keys,
                std::span<const ExtraKey> extra_keys, const std::vector<TokenHashes>& token_hashes,
                std::vector<PromptChunk> chunks, const Geometry& geometry)
      : tokens_(tokens),
        keys_(keys),
        extra_keys_(extra_keys),
        token_hashes_(token_hashes),
        chunks_(std::move(chunks)),
        fingerprint_(ModelFingerprint(geometry)) {}

  // Finds all places. Returns false if there are too many.
  bool FindPlaces(std::span<const std::vector<uint64_t>> heads);
  // Returns the best match by places that are not known to be false.
  std::vector<const Place*> Best();
  // Marks the places whose chunk ids differ as false. Returns true if there are any.
  bool MarkFalse(std::span<const Place* const> places);

  PromptMatch Answer(std::span<const Place* const> places) const;

 private:
  const PromptChunk& ChunkOf(const Place& place) const { return chunks_[place.chunk]; }
  uint32_t EndOf(const Place& place) const { return place.begin + ChunkOf(place).token_count; }
  void AddPlaces(uint32_t begin, uint32_t key, std::span<const uint32_t> chunks);
  // Computes what a place covers. All places that begin after it must be computed already.
  void Extend(Place& place) const;
  // Whether `a` is taken rather than `b` if both may be.
  bool IsBetter(const Place& a, const Place& b) const {
    const PromptChunk &x = ChunkOf(a), &y = ChunkOf(b);
    return std::tie(a.covered, x.token_count, y.id) > std::tie(b.covered, y.token_count, x.id);
  }

  const std::span<const int32_t> tokens_;
  const std::span<const TenantKey> keys_;
  const std::span<const ExtraKey> extra_keys_;  // sorted
  const std::vector<TokenHashes>& token_hashes_;
  const std::vector<PromptChunk> chunks_;
  const ChunkId fingerprint_;
  std::vector<Place> places_;      // by begin
  std::vector<uint32_t> first_;    // [tokens + 2]: the first place at or behind each token
  std::vector<uint32_t> covered_;  // [tokens + 1]: most tokens from here on, in a new chain
  std::vector<int32_t> taken_;     // [tokens + 1]: the place that begins it, or kNone
};

bool PromptMatcher::FindPlaces(std::span<const std::vector<uint64_t>> heads) {
  absl::flat_hash_map<uint64_t, std::vector<uint32_t>> by_head;
  for (uint32_t c = 0; c < chunks_.size(); ++c) {
    if (chunks_[c].token_count >= kHeadTokens && chunks_[c].position <= kPositionMax)
      by_head[chunks_[c].token_hash.head].push_back(c);
  }
  first_.resize(tokens_.size() + 2);
  for (uint32_t begin = 0; begin <= tokens_.size(); ++begin) {
    first_[begin] = static_cast<uint32_t>(places_.size());
    for (uint32_t key = 0; key < keys_.size(); ++key) {
      if (begin >= heads[key].size()) continue;
      const auto chunks = by_head.find(heads[key][begin]);
      if (chunks != by_head.end()) AddPlaces(begin, key, chunks->second);
    }
  }
  first_[tokens_.size() + 1] = static_cast<uint32_t>(places_.size());
  return places_.size() < kPromptPlaceCountMax;
}

void PromptMatcher::AddPlaces(uint32_t begin, uint32_t key, std::span<const uint32_t> chunks) {
  for (const uint32_t c : chunks) {
    const PromptChunk& chunk = chunks_[c];
    if (chunk.token_count > tokens_.size() - begin || places_.size() >= kPromptPlaceCountMax)
      continue;
    if (token_hashes_[key].Of(begin, begin + chunk.token_count) != chunk.token_hash.whole) continue;
    places_.push_back(
        {.begin = begin, .chunk = c, .covered = 0, .next = kNone, .key = key, .is_false = 0});
  }
}

void PromptMatcher::Extend(Place& place) const {
  const PromptChunk& chunk = ChunkOf(place);
  const uint32_t end = EndOf(place);
  const Place* best = nullptr;
  for (uint32_t i = first_[end]; i < first_[end + 1]; ++i) {
    const Place& next = places_[i];
    const PromptChunk& child = ChunkOf(next);
    if (next.is_false || child.parent != chunk.id ||
        child.position != chunk.position + chunk.token_count)
      continue;
    if (best == nullptr || IsBetter(next, *best)) best = &next;
  }
  const bool goes_on = best != nullptr && best->covered >= covered_[end];
  place.next = goes_on ? static_cast<int32_t>(best - places_.data()) : kNone;
  place.covered = chunk.token_count + (goes_on ? best->covered : covered_[end]);
}

std::vector<const Place*> PromptMatcher::Best() {
  const auto count = static_cast<uint32_t>(tokens_.size());
  covered_.assign(count + 1, 0);
  taken_.assign(count + 1, kNone);
  for (uint32_t begin = count; begin-- > 0;) {
    const Place* best = nullptr;
    for (uint32_t i = first_[begin]; i < first_[begin + 1]; ++i) {
      Place& place = places_[i];
      if (place.is_false) continue;
      Extend(place);
      if (!ChunkOf(place).parent.IsZero()) continue;
      if (best == nullptr || IsBetter(place, *best)) best = &place;
    }
    const bool takes = best != nullptr && best->covered >= covered_[begin + 1];
    taken_[begin] = takes ? static_cast<int32_t>(best - places_.data()) : kNone;
    covered_[begin] = takes ? best->covered : covered_[begin + 1];
  }
  std::vector<const Place*> match;
  for (uint32_t begin = 0; begin < count;) {
    int32_t at = taken_[begin];
    if (at == kNone) ++begin;
    for (; at != kNone; at = places_[at].next) {
      match.push_back(&places_[at]);
      begin = EndOf(places_[at]);
    }
  }
  return match;
}

bool PromptMatcher::MarkFalse(std::span<const Place* const> places) {
  bool has_false = false;
  for (const Place* const place : places) {
    const PromptChunk& chunk = ChunkOf(*place);
    const ChunkId plain = ComputeChunkId(fingerprint_, chunk.parent, chunk.position,
                                         tokens_.subspan(place->begin, chunk.token_count),
                                         ExtraKeysOf(extra_keys_, place->begin, EndOf(*place)));
    if (TaggedChunkId(plain, VerificationTagOf(plain, keys_[place->key])) == chunk.id) continue;
    places_[place - places_.data()].is_false = 1;
    has_false = true;
  }
  return has_false;
}

PromptMatch PromptMatcher::Answer(std::span<const Place* const> places) const {
  PromptMatch answer;
  absl::flat_hash_set<ChunkId> taken;
  const Place* before = nullptr;
  uint32_t end = 0;
  const auto add_gap = [&](uint32_t until) {
    if (until > end) answer.gaps.push_back({.token_begin = end, .token_count = until - end});
  };
  for (const Place* const place : places) {
    const PromptChunk& chunk = ChunkOf(*place);
    // Without its parent's text before it, the chunk's rows would be different.
    const bool has_parent =
        before != nullptr && ChunkOf(*before).id == chunk.parent && EndOf(*before) == place->begin;
    if (place->is_false || (!chunk.parent.IsZero() && !has_parent)) continue;
    before = place;
    if (!taken.insert(chunk.id).second) continue;
    add_gap(place->begin);
    answer.spans.push_back(
        {.token_begin = place->begin,
         .token_count = chunk.token_count,
         .chunk = chunk.id,
         .offset = int64_t{place->begin} - static_cast<int64_t>(chunk.position)});
    end = EndOf(*place);
  }
  add_gap(static_cast<uint32_t>(tokens_.size()));
  return answer;
}

PromptMatch NothingOf(std::span<const int32_t> tokens) {
  PromptMatch match;
  if (!tokens.empty())
    match.gaps = {{.token_begin = 0, .token_count = static_cast<uint32_t>(tokens.size())}};
  return match;
}

}  // namespace

uint64_t PromptMatch::token_count() const {
  uint64_t count = 0;
  for (const PromptSpan& span : spans) count += span.token_count;
  return count;
}

absl::StatusOr<PromptMatch> MatchPrompt(std::span<const int32_t> tokens,
                                        std::span<const TenantKey> keys, FindHeads find,
                                        std::span<const ExtraKey> extra_keys) {
  CKV_CHECK(!keys.empty() && keys.size() <= 2);
  if (tokens.size() > kMatchedTokenCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a prompt of %d tokens, limit %d", tokens.size(), kMatchedTokenCountMax));
  }
  CKV_RETURN_IF_ERROR(CheckTokenIds("tokens", tokens));
  CKV_ASSIGN_OR_RETURN(
      const ExtraKeys sorted,
      SortExtraKeys(ExtraKeys(extra_keys.begin(), extra_keys.end()), tokens.size()));
  if (tokens.size() < kHeadTokens) return NothingOf(tokens);
  std::vector<TokenHashes> token_hashes;
  std::vector<std::vector<uint64_t>> heads;
  std::vector<uint64_t> all;
  for (const TenantKey& key : keys) {
    heads.push_back(token_hashes.emplace_back(tokens, key, sorted).Heads());
    all.insert(all.end(), heads.back().begin(), heads.back().end());
  }
  CKV_ASSIGN_OR_RETURN(PromptChunks found, find(all));
  if (found.models.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the prompt has chunks of %d models, '%s' and '%s' among them: name a "
                        "corpus whose model is meant",
                        found.models.size(), found.models[0].model, found.models[1].model));
  }
  if (found.models.empty() || found.chunks.empty()) return NothingOf(tokens);
  // Parts of a long prompt are queried one after another, and may return a chunk twice.
  std::sort(found.chunks.begin(), found.chunks.end(),
            [](const PromptChunk& a, const PromptChunk& b) { return a.id < b.id; });
  found.chunks.erase(std::unique(found.chunks.begin(), found.chunks.end()), found.chunks.end());
  PromptMatcher matcher(tokens, keys, sorted, token_hashes, std::move(found.chunks),
                        found.models[0]);
  const bool has_all = matcher.FindPlaces(heads);
  std::vector<const Place*> best = matcher.Best();
  bool has_false = matcher.MarkFalse(best);
  for (int round = 1; has_false && round < kRoundCountMax; ++round) {
    best = matcher.Best();
    has_false = matcher.MarkFalse(best);
  }
  PromptMatch answer = matcher.Answer(best);
  answer.truncated = found.truncated || !has_all || has_false;
  if (!answer.spans.empty()) answer.geometry = found.models[0];
  return answer;
}

}  // namespace ckv
