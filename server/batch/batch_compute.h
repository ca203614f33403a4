// Works a batch's plan off on a backend: the kernel over every group, then the merges.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "proto/base/clock.h"
#include "server/batch/batch_plan.h"

namespace ckv {

// The parts of a backend that one batch at a time computes with.
struct BatchTools {
  std::unique_ptr<ComputeStream> stream;
  BackendMemory partials;  // kMergeScratchBytes for partials that are merged here

  // `thread_count` counts the calling thread. `backend` must outlive the tools.
  //   Errors of Backend::NewStream and Backend::Allocate.
  static absl::StatusOr<BatchTools> Make(Backend& backend, uint32_t thread_count);
};

struct BatchComputed {
  Instant started;
  Duration elapsed{0};
  uint64_t kernel_call_count = 0;  // groups, or rounds of one
  absl::Status status;             // if not OK, the backend failed and the partials mean nothing
};

// Computes every piece and merge of `plan`, and returns once all of it is done. Pieces are given to
// the kernel in slices of at most kPollingWorkMax multiply-adds, so a plan within that is one
// kernel call per group.
//
// A longer plan can end early, between two slices. A group whose deadline has passed is marked as
// expired and left. Once `stop` is true the rest is left, and the replies mean nothing; null means
// that nobody stops it. An error of the backend ends it, too.
BatchComputed ComputePlan(BatchPlan& plan, ComputeStream& stream, Clock* clock,
                          const std::atomic<bool>* stop);

}  // namespace ckv
