// Statuses and deadlines between absl and gRPC: the codes have the same numbers on both sides.

#pragma once

#include <grpcpp/grpcpp.h>

#include <string_view>

#include "absl/status/status.h"
#include "proto/clock.h"

namespace ckv {

// A status travels in a header, of which peers take 8 KiB: a longer message is cut.
inline constexpr size_t kStatusTextBytesMax = 4096;

// Trailing metadata of a call that an overloaded holder refused: microseconds, in decimal, after
// which to come again.
inline constexpr char kRetryAfterKey[] = "retry-after-us";

grpc::Status ToGrpc(const absl::Status& status);
// With "context: " before the message; OK stays OK.
absl::Status FromGrpc(const grpc::Status& status, std::string_view context);

// Sets the call's deadline: `deadline`, but no later than `timeout_max` from now, so that no call
// waits for ever (I5). The context never waits for a peer that cannot be reached.
void SetDeadline(grpc::ClientContext& context, const Clock& clock, Instant deadline,
                 Duration timeout_max);

// When the caller stops waiting, but no later than `timeout_max` from now.
Instant DeadlineOf(const grpc::ServerContextBase& context, const Clock& clock,
                   Duration timeout_max);

}  // namespace ckv
