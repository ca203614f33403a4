// The kernels of one simulated node: requests wait in order, and are computed in batches.
//
// A request is a step: all its layers at once. A step of L rounds is so one round with all times
// multiplied by L. That changes no mean, as long as the other requests stay about the same during a
// step. Waits vary more than those of L rounds, which average out.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "client/cost/compute_curve.h"

namespace ckv {

// Query rows that attend some chunks. Equal chunks are equal rows of memory.
struct KernelWork {
  double query_rows = 0;
  std::span<const uint32_t> chunks;
};

// Lists the runs of one layer of a batch, a run for each chunk. A chunk's rows are read once, for
// all query rows of all requests. That is so in a holder's batch (server/batch/batch_plan.h) and in
// a call over local rows (client/attend/local_attend.h). `scratch` keeps its memory.
void ListRuns(std::span<const KernelWork> batch, double chunk_tokens,
              std::vector<std::pair<uint32_t, double>>& scratch, std::vector<SharedRun>& runs);
// Returns the time of one layer of a batch with `rows` query rows. Runs follow one another, so each
// takes the longer of its own computing and reading, and the share of the shorter.
double BatchUs(const ComputeCurve& curve, double rows, std::span<const SharedRun> runs);

// Not thread-safe.
class FleetKernel {
 public:
  // A holder's batch has no more requests (BatchOptions::request_count_max).
  static constexpr size_t kBatchMax = 64;

  explicit FleetKernel(uint32_t workers) : idle_(workers) {}

  struct Job {
    uint32_t visit = 0;
    bool own = false;  // the requester's own rows, which another process attends
  };
  void Add(const Job& job) { waiting_.push_back(job); }
  // Takes the next batch, if a worker is idle and a job waits. All its jobs are of one kind: that
  // of the first in line. `batch` is cleared first.
  bool Begin(std::vector<Job>& batch);
  // A batch is done.
  void End(double busy_s) {
    ++idle_;
    busy_s_ += busy_s;
  }
  size_t waiting() const { return waiting_.size(); }
  double busy_s() const { return busy_s_; }

 private:
  uint32_t idle_;
  std::deque<Job> waiting_;
  double busy_s_ = 0;
};

}  // namespace ckv
