#include "client/simulate/fleet_kernel.h"

#include <algorithm>

namespace ckv {

void ListRuns(std::span<const KernelWork> batch, double chunk_tokens,
              std::vector<std::pair<uint32_t, double>>& scratch, std::vector<SharedRun>& runs) {
  scratch.clear();
  for (const KernelWork& one : batch) {
    for (const uint32_t chunk : one.chunks) scratch.emplace_back(chunk, one.query_rows);
  }
  std::sort(scratch.begin(), scratch.end());
  runs.clear();
  for (size_t i = 0; i < scratch.size(); ++i) {
    if (i == 0 || scratch[i].first != scratch[i - 1].first)
      runs.push_back({.rows = 0, .tokens = chunk_tokens});
    runs.back().rows += scratch[i].second;
  }
}

double BatchUs(const ComputeCurve& curve, double rows, std::span<const SharedRun> runs) {
  double us = curve.Us(rows, 0);
  for (const SharedRun& run : runs) {
    KernelTime time = curve.Time(run.rows, run.tokens);
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
