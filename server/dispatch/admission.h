// Decides whether a request may wait in a queue or is refused at once, with a hint when to retry.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "server/dispatch/fair_queue.h"
#include "server/session/serve_counters.h"

namespace ckv {

inline constexpr uint64_t kNoWorkLimit = ~uint64_t{0};

// Belongs to the queue's thread. A queue holds at most `request_count_max` requests, half of them
// of one session, and `work_max` multiply-adds (I5). Beyond that a request is refused at once
// instead of waiting. There are two exceptions. A session may always have one request waiting, so
// that other sessions cannot lock it out. While only one session waits, neither work_max nor the
// request's deadline applies.
class Admission {
 public:
  Admission(uint32_t request_count_max, uint64_t work_max)
      : request_count_max_(request_count_max), work_max_(work_max) {}

  // Returns OK if `ready` may be pushed to `flow` of `queue`.
  //   ResourceExhausted   a limit is reached, or the queue's work takes longer than the request's
  //                       deadline allows. `why` is set to the reason, and RetryAfterUs returns
  //                       when to retry.
  absl::Status Check(const FairQueue& queue, const FairQueue::Flow& flow, const ReadyRequest& ready,
                     Refusal* why) const;

  // Reports that `work` multiply-adds of this queue took `elapsed`. The rate that the hints use
  // follows about the last 16 reports.
  void Observe(uint64_t work, Duration elapsed);

  // The time that the queue's work takes at that rate, clamped to the two limits below.
  uint32_t RetryAfterUs(const FairQueue& queue) const;
  // One round trip over a slow fabric. A request that is retried sooner finds the same queue.
  static constexpr uint32_t kRetryAfterUsMin = 100;
  static constexpr uint32_t kRetryAfterUsMax = 1'000'000;

 private:
  const uint32_t request_count_max_;
  const uint64_t work_max_;
  double QueueUs(const FairQueue& queue) const {
    return ns_per_work_ * static_cast<double>(queue.work()) / 1e3;
  }

  double ns_per_work_ = 0;  // the rate; zero until the first report
};

}  // namespace ckv
