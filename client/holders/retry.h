// The retry hint of an overloaded holder, and how often a requester follows it.
//
// A holder that has no capacity for a request reports how long to wait. The hint is part of the
// status: as a payload, and at the end of its text ("...; retry in 250 us"). Over gRPC it is the
// trailing metadata "retry-after-us". The requester waits and retries by itself, within the limits
// below.

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
// The longest hint that the requester follows itself. A longer one is returned to the caller,
// because requests would only queue up here.
inline constexpr Duration kRetryWaitMax = std::chrono::seconds(1);

// How a call waits for a holder to return, once all holders of its chunks have failed. The first
// pause suits a port that is not open yet; later pauses double, up to kReturnPauseMax. If the
// directory reports a returned holder, the pause ends at once. Ten retries per second cost the
// holders nothing. Queries to an unreachable directory use the same pauses.
inline constexpr Duration kReturnPauseMin = std::chrono::milliseconds(5);
inline constexpr Duration kReturnPauseMax = std::chrono::milliseconds(100);
// How long a call without a deadline waits for a holder to return.
inline constexpr Duration kReturnWaitMax = std::chrono::seconds(10);
// The wait ends this long before the deadline, or a tenth of the time left at its start, if that is
// less. Otherwise the caller's own clock would end the call, and the cause would be lost.
inline constexpr Duration kAnswerMargin = std::chrono::milliseconds(100);
// Returns when a wait that begins at `now` ends. The result is not after the deadline.
Instant ReturnWaitEnd(Instant now, Instant deadline);

// Returns `status` with the hint added.
absl::Status WithRetryAfter(const absl::Status& status, uint32_t retry_after_us);
// Returns the hint in a status, if any. Annotate (proto/base/status.h) drops it.
std::optional<Duration> RetryAfterOf(const absl::Status& status);

// As CheckReply (transport/wire.h), but an overload error of a holder carries its hint.
absl::Status CheckReplyForHint(const ReplyHeader& header, std::span<const std::byte> body,
                               const ExpectedReply& expected);
absl::Status CheckReplyForHint(const ReplyHeader& header, const ScatterList& body,
                               const ExpectedReply& expected);

// At most one request in so many is sent to a replica because its holder is late.
inline constexpr uint32_t kCallsPerHedge = 20;

// Limits retries to a tenth of all requests, or another share, so that a fleet's retries do not
// keep its holders overloaded. Thread-safe.
class RetryBudget {
 public:
  static constexpr uint32_t kRequestsPerRetry = 10;
  explicit RetryBudget(uint32_t requests_per_retry = kRequestsPerRetry)
      : requests_per_retry_(requests_per_retry), earned_(kBurstMax * requests_per_retry) {}
  // The number of retries that may follow each other at once after a quiet period. The budget
  // starts with this many.
  static constexpr uint32_t kBurstMax = 10;

  // Call when a request begins.
  void Earn() {
    // A full budget is not written to.
    if (earned_.load(std::memory_order_relaxed) < kBurstMax * requests_per_retry_)
      earned_.fetch_add(1, std::memory_order_relaxed);
  }
  // Uses up one retry. Returns false if none is left.
  bool Spend();
  // Takes back a retry that was not made.
  void Return() { earned_.fetch_add(requests_per_retry_, std::memory_order_relaxed); }

 private:
  const uint32_t requests_per_retry_;
  // Counts requests. Threads that earn at the same time may exceed the limit by their number.
  std::atomic<uint32_t> earned_;
};

}  // namespace ckv
