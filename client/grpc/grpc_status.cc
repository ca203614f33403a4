#include "client/grpc/grpc_status.h"

#include <grpc/grpc.h>
#include <grpc/support/time.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "proto/base/trace_context.h"

namespace ckv {
namespace {

// gRPC refuses status text that is not UTF-8, and a cut may go through a character.
size_t CutLength(std::string_view text) {
  if (text.size() <= kStatusTextBytesMax) return text.size();
  size_t length = kStatusTextBytesMax;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  return length;
}

constexpr char kNoConnection[] = "failed to connect to all addresses";
constexpr char kNoAddress[] = "DNS resolution failed";

// "...; last error: UNKNOWN: ipv4:10.0.0.1:7400: Failed to connect to remote host: Connection
// refused" says why at its end.
std::string PlainText(const std::string& text) {
  if (!text.starts_with(kNoConnection)) return text;
  const size_t colon = text.rfind(": ");
  if (colon == std::string::npos) return "cannot connect";
  std::string why = text.substr(colon + 2);
  if (!why.empty()) why[0] = absl::ascii_tolower(static_cast<unsigned char>(why[0]));
  return "cannot connect: " + why;
}

}  // namespace

bool IsConnectionError(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return false;
  const std::string& text = status.error_message();
  for (const std::string_view words : {kNoConnection, kNoAddress, "Socket closed",
                                       "Connection reset", "Broken pipe", "keepalive watchdog"}) {
    if (text.find(words) != std::string::npos) return true;
  }
  return false;
}

bool NeverConnected(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         (status.error_message().find(kNoConnection) != std::string::npos ||
          status.error_message().find(kNoAddress) != std::string::npos);
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string_view text(status.message().data(), status.message().size());
  return {static_cast<grpc::StatusCode>(status.code()),
          std::string(text.substr(0, CutLength(text)))};
}

absl::Status FromGrpc(const grpc::Status& status, std::string_view context) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = absl::StrFormat("%s: %s", context, PlainText(status.error_message()));
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
}

absl::Status FromPeer(const grpc::Status& status, std::string_view context) {
  const grpc::StatusCode code = status.error_code();
  const bool reset = code == grpc::StatusCode::INTERNAL &&
                     status.error_message().find("RST_STREAM") != std::string::npos;
  if (!reset && code != grpc::StatusCode::CANCELLED && code != grpc::StatusCode::UNKNOWN)
    return FromGrpc(status, context);
  return FromGrpc({grpc::StatusCode::UNAVAILABLE, status.error_message()}, context);
}

std::function<void(const absl::Status&)> EndCall(grpc::ServerContextBase* context) {
  return [context](const absl::Status& why) {
    const grpc::Status status = ToGrpc(why);
    grpc_call_cancel_with_status(context->c_call(),
                                 static_cast<grpc_status_code>(status.error_code()),
                                 status.error_message().c_str(), nullptr);
  };
}

void SetDeadline(grpc::ClientContext& context, const Clock& clock, Instant deadline,
                 Duration timeout_max) {
  context.set_wait_for_ready(false);
  if (const TraceContext* trace = CurrentTrace(); trace != nullptr)
    context.AddMetadata(kTraceparentKey, FormatTraceparent(*trace));
  const Duration remaining = deadline == kInstantMax
                                 ? timeout_max
                                 : std::clamp(deadline - clock.Now(), Duration(0), timeout_max);
  context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                    gpr_time_from_nanos(remaining.count(), GPR_TIMESPAN)));
}

Instant DeadlineOf(const grpc::ServerContextBase& context, const Clock& clock,
                   Duration timeout_max) {
  const gpr_timespec deadline = context.raw_deadline();
  const Instant now = clock.Now();
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return now + timeout_max;
  const gpr_timespec left = gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC),
                                         gpr_now(GPR_CLOCK_MONOTONIC));
  // A deadline years ahead would overflow nanoseconds; it is clamped by whole seconds first.
  const int64_t seconds_max = std::chrono::ceil<std::chrono::seconds>(timeout_max).count();
  if (left.tv_sec > seconds_max) return now + timeout_max;
  const Duration remaining = std::chrono::seconds(left.tv_sec) + Duration(left.tv_nsec);
  return now + std::clamp(remaining, Duration(0), timeout_max);
}

}  // namespace ckv
