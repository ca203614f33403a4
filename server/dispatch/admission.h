// Whether a request may wait for its turn, or is refused at once with a hint when to come back.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/clock.h"
#include "server/fair_queue.h"
#include "server/serve_counters.h"

namespace ckv {

inline constexpr uint64_t kNoWorkLimit = ~uint64_t{0};

// Belongs to one thread. A queue holds at most `request_count_max` requests, half of them of one
// session, and `work_max` multiply-adds (I5): what comes beyond waits so long that its requester
// had better know now. A session may always have one request waiting beyond all that, so nobody is
// locked out by who came first; and while one session waits alone its work has no limit but its
// own.
class Admission {
 public:
  Admission(uint32_t request_count_max, uint64_t work_max)
      : request_count_max_(request_count_max), work_max_(work_max) {}

  //   ResourceExhausted   the queue is full, or takes longer than the request has time: `why` says
  //                       which, RetryAfterUs when it will not.
  absl::Status Check(const FairQueue& queue, const FairQueue::Flow& flow, const ReadyRequest& ready,
                     Refusal* why) const;

  // `work` multiply-adds took so long. The rate follows the last 16 calls or so.
  void Observe(uint64_t work, Duration elapsed);

  // The time that the queue's work takes at that rate, between the two limits below.
  uint32_t RetryAfterUs(const FairQueue& queue) const;
  // One round trip over a slow fabric: to come back sooner only meets the same queue.
  static constexpr uint32_t kRetryAfterUsMin = 100;
  static constexpr uint32_t kRetryAfterUsMax = 1'000'000;

 private:
  const uint32_t request_count_max_;
  const uint64_t work_max_;
  double QueueUs(const FairQueue& queue) const {
    return ns_per_work_ * static_cast<double>(queue.work()) / 1e3;
  }

  double ns_per_work_ = 0;  // 0: nothing was computed yet
};

}  // namespace ckv
