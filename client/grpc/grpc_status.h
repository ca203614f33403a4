// Converts statuses and deadlines between absl and gRPC. The codes have the same numbers on both
// sides.

#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "proto/base/clock.h"

namespace ckv {

// The longest message; longer ones are cut, because a status is sent in a header and peers accept 8
// KiB.
inline constexpr size_t kStatusTextBytesMax = 4096;

// Trailing metadata of a call refused by an overloaded holder: the microseconds, in decimal, after
// which to retry.
inline constexpr char kRetryAfterKey[] = "retry-after-us";
// Trailing metadata of a registration refused because another address holds the name: the
// milliseconds, in decimal, after which that lease ends unless it is renewed.
inline constexpr char kLeaseEndKey[] = "lease-ends-ms";
// Trailing metadata of a renewal refused because the lease is unknown: the incarnation of the
// refusing directory, in decimal.
inline constexpr char kDirectoryIncarnationKey[] = "ckv-directory-life";
// Trailing metadata of every reply, good or bad, of a directory that is one of several: "." if the
// answering process leads, the leader's address if another one does, "" if none leads now. A
// directory that is alone sends no such key.
inline constexpr char kLeaderKey[] = "ckv-leader";
inline constexpr char kLeadsItself[] = ".";

grpc::Status ToGrpc(const absl::Status& status);
// As FromGrpc, for a call that this process does not cancel. CANCELLED, UNKNOWN and a reset stream,
// which a server that stops may cause, become Unavailable.
absl::Status FromPeer(const grpc::Status& status, std::string_view context);
// Puts "context: " before the message; OK stays OK. Without a connection, the message is "cannot
// connect: connection refused" or similar, not gRPC's text.
absl::Status FromGrpc(const grpc::Status& status, std::string_view context);

// Whether the call never reached a server, or its connection broke: no server answered it.
bool IsConnectionError(const grpc::Status& status);
// Whether no connection was made, so that no server has seen the call. False if that is unknown.
bool NeverConnected(const grpc::Status& status);

// Returns a function that ends the call from outside its handler. The peer sees the status that the
// function is called with, and a Read or Write in progress returns false. (ServerContext::TryCancel
// shows the peer CANCELLED, which looks to the peer like its own cancellation.) The context must
// outlive the function.
std::function<void(const absl::Status&)> EndCall(grpc::ServerContextBase* context);

// Sets the call's deadline to `deadline`, but no later than `timeout_max` from now, so that no call
// waits forever (I5). The call then fails at once if the peer cannot be reached. Adds the thread's
// CurrentTrace (proto/base/trace_context.h) to its metadata. Call it once per call.
void SetDeadline(grpc::ClientContext& context, const Clock& clock, Instant deadline,
                 Duration timeout_max);

// Returns when the caller stops waiting, but no later than `timeout_max` from now.
Instant DeadlineOf(const grpc::ServerContextBase& context, const Clock& clock,
                   Duration timeout_max);

}  // namespace ckv
