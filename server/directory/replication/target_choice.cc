#include "server/directory/replication/target_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "proto/base/xxh3.h"

namespace ckv {
namespace {

constexpr size_t kRunCountMax = 128;

// Between taken holders and this one, the smallest separation.
uint32_t SeparationFrom(const std::vector<CopyHolder>& live, const std::vector<size_t>& taken,
                        size_t candidate) {
  uint32_t separation = UINT32_MAX;
  for (const size_t one : taken)
    separation = std::min(separation, SeparationOf(live[one].domain, live[candidate].domain));
  return separation;
}

}  // namespace

uint32_t CopyRunChunks(size_t chunk_count) {
  const size_t runs = std::bit_ceil(std::max<size_t>(chunk_count, 1));
  return static_cast<uint32_t>(std::max<size_t>(1, runs / kRunCountMax));
}

double ScoreOf(const HolderId& holder, uint64_t capacity_bytes, const CorpusKey& corpus,
               uint32_t run) {
  std::string key;
  for (const std::string& part : {corpus.first, corpus.second, holder.name}) {
    key += part;
    key += '\0';
  }
  key.append(reinterpret_cast<const char*>(&run), sizeof(run));
  // 53 bits, above 0 and below 1.
  const double u =
      (static_cast<double>(XXH3_64bits(key.data(), key.size()) >> 11) + 0.5) / 9007199254740992.0;
  return static_cast<double>(std::max<uint64_t>(capacity_bytes, 1)) / -std::log(u);
}

const std::vector<size_t>& TargetChoice::Rank(const CorpusKey& corpus, uint32_t run,
                                              const std::vector<size_t>& taken) {
  if (corpus != corpus_ || run != run_) ranks_.clear();
  corpus_ = corpus;
  run_ = run;
  const auto found = ranks_.find(taken);
  if (found != ranks_.end()) return found->second;
  return ranks_.emplace(taken, Compute(corpus, run, taken)).first->second;
}

std::vector<size_t> TargetChoice::Compute(const CorpusKey& corpus, uint32_t run,
                                          const std::vector<size_t>& taken) const {
  struct Ranked {
    uint32_t separation;
    double score;
    size_t index;
  };
  std::vector<Ranked> ranked;
  for (size_t i = 0; i < live_.size(); ++i) {
    if (live_[i].is_draining || std::find(taken.begin(), taken.end(), i) != taken.end()) continue;
    ranked.push_back({SeparationFrom(live_, taken, i),
                      ScoreOf(live_[i].id, live_[i].capacity_bytes, corpus, run), i});
  }
  std::sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    if (a.separation != b.separation) return a.separation > b.separation;
    return a.score != b.score ? a.score > b.score : a.index < b.index;
  });
  std::vector<size_t> indices;
  indices.reserve(ranked.size());
  for (const Ranked& one : ranked) indices.push_back(one.index);
  return indices;
}

}  // namespace ckv
