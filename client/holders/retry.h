// The retry hint of an overloaded holder, and how often a requester follows it.
//
// A holder that has no room for a request says how long to wait. The hint goes with the status: as
// a payload, and at the end of its text ("...; retry in 250 us"). Over gRPC it is the trailing
// metadata "retry-after-us". The requester waits and asks again itself, within the limits below.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "proto/base/clock.h"
#include "transport/scatter_list.h"
#include "transport/wire.h"

namespace ckv {

// The most retries of one request.
inline constexpr int kRetryCountMax = 2;
// The longest hint that the requester follows itself. A longer one is left to the caller, because
// requests would only queue up here.
inline constexpr Duration kRetryWaitMax = std::chrono::seconds(1);

// How a call waits for a holder to come back, once all that have its chunks have failed it. The
// first pause is that of a port that is not open yet; it doubles up to the second. A holder that
// the directory tells of ends it at once. Ten looks a second cost the holders nothing.
inline constexpr Duration kReturnPauseMin = std::chrono::milliseconds(5);
inline constexpr Duration kReturnPauseMax = std::chrono::milliseconds(100);
// How long a call without a deadline waits so.
inline constexpr Duration kReturnWaitMax = std::chrono::seconds(10);
// The wait ends this long before the deadline, or a tenth of the time that was left when it began,
// if that is less. Else the caller's own clock would end the call, and the cause would be lost.
inline constexpr Duration kAnswerMargin = std::chrono::milliseconds(100);
// Returns when a wait that begins `now` gives up. The result is not after the deadline.
Instant ReturnWaitEnd(Instant now, Instant deadline);

// Returns `status` with the hint.
absl::Status WithRetryAfter(const absl::Status& status, uint32_t retry_after_us);
// Returns the hint that a status carries, if any. Annotate loses it.
std::optional<Duration> RetryAfterOf(const absl::Status& status);

// As CheckReply (transport/wire.h), but the error of a holder without room carries its hint.
absl::Status CheckReplyForHint(const ReplyHeader& header, std::span<const std::byte> body,
                               const ExpectedReply& expected);
absl::Status CheckReplyForHint(const ReplyHeader& header, const ScatterList& body,
                               const ExpectedReply& expected);

// Keeps retries below a tenth of all requests, so that the retries of a fleet do not keep its
// holders overloaded. Thread-safe.
class RetryBudget {
 public:
  static constexpr uint32_t kRequestsPerRetry = 10;
  // Retries that may come at once after a quiet time. The budget starts with as many.
  static constexpr uint32_t kBurstMax = 10;

  // Call when a request begins.
  void Earn() {
    // A full budget is not written to.
    if (earned_.load(std::memory_order_relaxed) < kBurstMax * kRequestsPerRetry)
      earned_.fetch_add(1, std::memory_order_relaxed);
  }
  // Uses up one retry. Returns false if none is left.
  bool Spend();

 private:
  // Counts requests. Threads that earn at the same time may exceed the limit by their number.
  std::atomic<uint32_t> earned_{kBurstMax * kRequestsPerRetry};
};

}  // namespace ckv
