#include "client/simulate/fleet_kernel.h"

#include <algorithm>

namespace ckv {

double BatchUs(const ComputeCurve& curve, std::span<const KernelWork> batch, double chunk_tokens,
               std::vector<std::pair<uint32_t, double>>& scratch) {
  scratch.clear();
  double rows = 0;
  for (const KernelWork& one : batch) {
    rows += one.query_rows;
    for (const uint32_t chunk : one.chunks) scratch.emplace_back(chunk, one.query_rows);
  }
  double us = curve.Us(rows, 0);
  std::sort(scratch.begin(), scratch.end());
  for (size_t i = 0; i < scratch.size();) {
    double chunk_rows = 0;
    const uint32_t chunk = scratch[i].first;
    for (; i < scratch.size() && scratch[i].first == chunk; ++i) chunk_rows += scratch[i].second;
    KernelTime time = curve.Time(chunk_rows, chunk_tokens);
    time.fixed_us = 0;
    us += time.Us();
  }
  return us;
}

bool FleetKernel::Begin(std::vector<Job>& batch) {
  batch.clear();
  if (idle_ == 0 || waiting_.empty()) return false;
  --idle_;
  const bool own = waiting_.front().own;
  std::deque<Job> left;
  for (const Job& job : waiting_) {
    if (job.own == own && batch.size() < kBatchMax) {
      batch.push_back(job);
    } else {
      left.push_back(job);
    }
  }
  waiting_.swap(left);
  return true;
}

}  // namespace ckv
