// What an overloaded holder asks for, and how often a requester does it.
//
// A holder that refuses for want of room says how long to wait. The hint goes with the status, as a
// payload and at the end of its text ("...; retry in 250 us"); over gRPC it is the trailing
// metadata "retry-after-us". The requester waits and asks again itself, within the limits below.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "proto/clock.h"
#include "transport/scatter_list.h"
#include "transport/wire.h"

namespace ckv {

// Of one request.
inline constexpr int kRetryCountMax = 2;
// A hint beyond this is for the caller to follow: the request would only queue up here.
inline constexpr Duration kRetryWaitMax = std::chrono::seconds(1);

// `status` with the hint.
absl::Status WithRetryAfter(const absl::Status& status, uint32_t retry_after_us);
// The hint that a status carries, if any. Annotate loses it.
std::optional<Duration> RetryAfterOf(const absl::Status& status);

// CheckReply; what a holder refuses for want of room carries its hint.
absl::Status CheckReplyForHint(const ReplyHeader& header, std::span<const std::byte> body,
                               const ExpectedReply& expected);
absl::Status CheckReplyForHint(const ReplyHeader& header, const ScatterList& body,
                               const ExpectedReply& expected);

// Keeps retries below a tenth of all requests, so that those of a fleet do not keep its holders
// overloaded. Thread-safe.
class RetryBudget {
 public:
  static constexpr uint32_t kRequestsPerRetry = 10;
  // Retries that may come at once after a quiet time; there at the start.
  static constexpr uint32_t kBurstMax = 10;

  // A request began.
  void Earn() {
    // While all is well nothing is written.
    if (earned_.load(std::memory_order_relaxed) < kBurstMax * kRequestsPerRetry)
      earned_.fetch_add(1, std::memory_order_relaxed);
  }
  // Whether one more retry is left; it is then used up.
  bool Spend();

 private:
  // In requests. Threads that earn at once may go past the limit by their number.
  std::atomic<uint32_t> earned_{kBurstMax * kRequestsPerRetry};
};

}  // namespace ckv
