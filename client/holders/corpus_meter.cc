#include "client/holders/corpus_meter.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/hash/hash.h"

namespace ckv {

void CorpusMeter::Count(const Corpus& corpus, uint32_t query_rows) {
  Place* const place = Find(corpus);
  if (place == nullptr) {
    other_calls_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  place->calls.fetch_add(1, std::memory_order_relaxed);
  place->rows.fetch_add(query_rows, std::memory_order_relaxed);
}

// Linear probing; places are never given back, so a free one ends the search. Two corpora of one
// 64-bit hash would be counted together: with 1024 corpora that is one chance in 10^13.
CorpusMeter::Place* CorpusMeter::Find(const Corpus& corpus) {
  const uint64_t hash =
      absl::HashOf(std::string_view(corpus.tenant), std::string_view(corpus.name)) | 1;
  // Once the table is full no key changes, so calls over corpora without a place need no lock.
  const bool full = taken_.load(std::memory_order_acquire) == kCorpusCountMax;
  for (size_t at = hash % kPlaceCount;; at = (at + 1) % kPlaceCount) {
    Place& place = places_[at];
    const uint64_t key = place.key.load(std::memory_order_acquire);
    if (key == hash) return &place;
    if (key != 0) continue;
    if (full) return nullptr;
    absl::MutexLock lock(&mu_);
    const uint64_t now = place.key.load(std::memory_order_relaxed);
    if (now == hash) return &place;
    if (now != 0) continue;
    if (taken_.load(std::memory_order_relaxed) == kCorpusCountMax) return nullptr;
    names_[at] = {corpus.name, corpus.tenant};
    place.key.store(hash, std::memory_order_release);
    taken_.fetch_add(1, std::memory_order_release);  // after its key, for `full`
    return &place;
  }
}

std::vector<CorpusCalls> WithoutTenants(const std::vector<CorpusCalls>& hottest, size_t count_max) {
  std::vector<CorpusCalls> shown;
  CorpusCalls tenants;
  for (const CorpusCalls& corpus : hottest) {
    if (!corpus.tenant.empty()) {
      tenants.call_count += corpus.call_count;
      tenants.query_row_count += corpus.query_row_count;
    } else if (shown.size() < count_max) {
      shown.push_back(corpus);
    }
  }
  if (tenants.call_count > 0) shown.push_back(tenants);
  return shown;
}

std::vector<CorpusCalls> CorpusMeter::Hottest(size_t count_max) const {
  std::vector<std::pair<uint64_t, size_t>> order;  // calls, place
  if (count_max == 0) return {};
  for (size_t i = 0; i < kPlaceCount; ++i) {
    const uint64_t calls = places_[i].calls.load(std::memory_order_relaxed);
    if (calls != 0) order.emplace_back(calls, i);
  }
  const size_t count = std::min(count_max, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<CorpusCalls> hottest;
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < count; ++i) {
    const auto [calls, at] = order[i];
    hottest.push_back({names_[at].name, names_[at].tenant, calls,
                       places_[at].rows.load(std::memory_order_relaxed)});
  }
  return hottest;
}

}  // namespace ckv
