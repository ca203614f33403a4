#include "client/holders/retry.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace ckv {
namespace {

constexpr char kPayloadName[] = "ckv/retry-after-us";  // in decimal

absl::Status WithHintOf(const ReplyHeader& header, absl::Status status) {
  if (!absl::IsResourceExhausted(status) || header.retry_after_us == 0) return status;
  return WithRetryAfter(status, header.retry_after_us);
}

}  // namespace

Instant ReturnWaitEnd(Instant now, Instant deadline) {
  if (deadline == kInstantMax) return now + kReturnWaitMax;
  return deadline - std::min(kAnswerMargin, std::max(deadline - now, Duration(0)) / 10);
}

absl::Status WithRetryAfter(const absl::Status& status, uint32_t retry_after_us) {
  absl::Status hinted(
      status.code(),
      absl::StrFormat("%s; retry in %d us", std::string(status.message()), retry_after_us));
  hinted.SetPayload(kPayloadName, absl::Cord(std::to_string(retry_after_us)));
  return hinted;
}

std::optional<Duration> RetryAfterOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadName);
  uint32_t us = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &us)) return std::nullopt;
  return std::chrono::microseconds(us);
}

absl::Status CheckReplyForHint(const ReplyHeader& header, std::span<const std::byte> body,
                               const ExpectedReply& expected) {
  return WithHintOf(header, CheckReply(header, body, expected));
}

absl::Status CheckReplyForHint(const ReplyHeader& header, const ScatterList& body,
                               const ExpectedReply& expected) {
  return WithHintOf(header, CheckReply(header, body, expected));
}

bool RetryBudget::Spend() {
  uint32_t earned = earned_.load(std::memory_order_relaxed);
  while (earned >= requests_per_retry_) {
    if (earned_.compare_exchange_weak(earned, earned - requests_per_retry_,
                                      std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

}  // namespace ckv
