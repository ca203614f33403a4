#include "server/health/elbow_meter.h"

#include <algorithm>
#include <utility>

namespace ckv {

HolderLoad ElbowMeter::Read(const BatchSums& sums, Instant now, std::span<const ChunkId> sampled) {
  const BatchSums window = sums - last_sums_;
  const Duration time = now - last_;
  last_sums_ = sums;
  last_ = now;
  HolderLoad load;
  if (!std::exchange(has_last_, true) || time <= Duration(0)) return load;
  for (double* sum : {&fit_.count, &fit_.n, &fit_.t, &fit_.nn, &fit_.nt}) *sum *= kDecay;
  fit_.count += static_cast<double>(window.batch_count);
  fit_.n += static_cast<double>(window.n);
  fit_.t += static_cast<double>(window.t);
  fit_.nn += static_cast<double>(window.nn);
  fit_.nt += static_cast<double>(window.nt);
  load.elbow = Elbow();
  const double time_us = static_cast<double>(time.count()) / 1e3;
  load.busy_part = std::min(1.0, static_cast<double>(window.t) / time_us);
  if (window.batch_count > 0)
    load.attends = static_cast<double>(window.n) / static_cast<double>(window.batch_count);
  const bool is_past = window.batch_count >= kBatchCountMin && load.busy_part >= kBusyPartMin &&
                       load.attends > load.elbow;
  if (!is_past) {
    window_count_ = 0;
    sampled_.clear();
    return load;
  }
  for (const ChunkId& id : sampled) ++sampled_[id];
  if (++window_count_ < kWindowCount) return load;
  load.is_past_elbow = true;
  load.hot = Hottest(sampled_);
  window_count_ = kWindowCount - 1;  // the next window may be the next report
  for (auto& [id, count] : sampled_) count = (count + 1) / 2;
  if (sampled_.size() > LoadSamples::kChunkCount * kWindowCount) sampled_.clear();
  return load;
}

// Least squares. If batches hardly differ, nothing of their time is known to be fixed.
double ElbowMeter::Elbow() const {
  if (fit_.count < static_cast<double>(kBatchCountMin)) return 0;
  const double variance = fit_.count * fit_.nn - fit_.n * fit_.n;
  if (variance < 0.01 * fit_.n * fit_.n) return 1;
  const double marginal = (fit_.count * fit_.nt - fit_.n * fit_.t) / variance;
  const double fixed = (fit_.t - marginal * fit_.n) / fit_.count;
  if (marginal <= 0) return kElbowMax;  // more attends take no longer: it is far away
  return std::clamp(fixed / marginal, 1.0, kElbowMax);
}

std::vector<ChunkId> ElbowMeter::Hottest(const std::map<ChunkId, uint64_t>& counts) {
  std::vector<std::pair<uint64_t, ChunkId>> ranked;
  uint64_t sum = 0;
  for (const auto& [id, count] : counts) sum += count;
  for (const auto& [id, count] : counts) {
    if (static_cast<double>(count) >= kHotPartMin * static_cast<double>(sum))
      ranked.emplace_back(count, id);
  }
  std::sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<ChunkId> hot;
  for (size_t i = 0; i < std::min(ranked.size(), kHotCountMax); ++i)
    hot.push_back(ranked[i].second);
  return hot;
}

}  // namespace ckv
