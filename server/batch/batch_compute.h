// Computes a batch's plan on a backend: the kernel over every group, then the merges.

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

// The parts of a backend that computing one batch at a time needs.
struct BatchTools {
  std::unique_ptr<ComputeStream> stream;
  BackendMemory partials;  // kMergeScratchBytes, for partials that are merged here

  // `thread_count` includes the calling thread. `backend` must outlive the tools.
  //   Errors of Backend::NewStream and Backend::Allocate.
  static absl::StatusOr<BatchTools> Make(Backend& backend, uint32_t thread_count);
};

struct BatchComputed {
  Instant started;
  Duration elapsed{0};
  uint64_t kernel_call_count = 0;  // groups, or rounds of one group
  absl::Status status;             // if not OK, the backend failed and the partials are invalid
};

// Computes every piece and merge of `plan`, and returns when all are done. Passes pieces to the
// kernel in slices of at most 4 x kPollingWorkMax multiply-adds, or of 16 query rows if those are
// more. A plan within kPollingWorkMax is one
// kernel call per group.
//
// A longer plan can end early, between two slices. A group whose deadline has passed is marked as
// expired, and the rest of it is not computed. Once `stop` is true the rest of the plan is not
// computed, and the replies must not be used; null never stops it. An error of the backend also
// ends it.
BatchComputed ComputePlan(BatchPlan& plan, ComputeStream& stream, Clock* clock,
                          const std::atomic<bool>* stop);

}  // namespace ckv
