// Works a batch's plan off: the kernel over every group, then the merges.

#pragma once

#include <atomic>
#include <cstdint>

#include "attention/worker_pool.h"
#include "proto/base/clock.h"
#include "server/batch/batch_plan.h"

namespace ckv {

struct BatchComputed {
  Instant started;
  Duration elapsed{0};
  uint64_t kernel_call_count = 0;  // groups, or rounds of one
};

// Computes every piece and merge of `plan`. Pieces are given to the kernel in slices of at most
// kPollingWorkMax multiply-adds, so a plan within that is one kernel call per group.
//
// A longer plan can end early, between two slices. A group whose deadline has passed is marked as
// expired and left. Once `stop` is true the rest is left, and the replies mean nothing; null means
// that nobody stops it.
BatchComputed ComputePlan(BatchPlan& plan, WorkerPool& pool, Clock* clock,
                          const std::atomic<bool>* stop);

}  // namespace ckv
