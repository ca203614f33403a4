#include "server/directory/lease_end.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"

namespace ckv {
namespace {

// In decimal.
constexpr char kPayloadName[] = "ckv/lease-ends-ms";
constexpr char kIncarnationPayloadName[] = "ckv/directory-life";

}  // namespace

absl::Status WithLeaseEnd(absl::Status status, Duration left) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  status.SetPayload(kPayloadName, absl::Cord(std::to_string(ms)));
  return status;
}

std::optional<Duration> LeaseEndOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadName);
  uint32_t ms = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &ms)) return std::nullopt;
  return std::min<Duration>(std::chrono::milliseconds(ms), kLeaseTtlMax);
}

absl::Status WithDirectoryIncarnation(absl::Status status, uint64_t incarnation) {
  status.SetPayload(kIncarnationPayloadName, absl::Cord(std::to_string(incarnation)));
  return status;
}

std::optional<uint64_t> DirectoryIncarnationOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kIncarnationPayloadName);
  uint64_t incarnation = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &incarnation)) return std::nullopt;
  return incarnation;
}

}  // namespace ckv
