// Gives each call of a server its trace: the caller's, or a new one.

#pragma once

#include <grpcpp/support/server_interceptor.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "proto/base/trace_context.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace ckv {

// Trailing metadata of every call: its trace id, 32 hexadecimal digits.
inline constexpr char kTraceIdKey[] = "ckv-trace-id";

// Returns what a grpc::ServerBuilder takes. A call's `traceparent` metadata is its trace. If it has
// none, a malformed one or several, it begins a new trace. That of a method of RequesterService is
// sampled if `sample` returns true (from any thread). The handler finds a valid `traceparent` in
// any case, but for streams both ways: their requests begin traces of their own.
//
// `spans` takes a span of each sampled call, below which is what the handler does. Streams both
// ways have none, because they may last for ever. `spans` may be null. It and `clock` must outlive
// the server.
//
// While the handler of a call of our synchronous services runs, the trace is CurrentTrace() of its
// thread. Others, as gRPC's health service, change threads, and have none.
//
// The trace id comes back in the trailing metadata. An error also has it in its text, if the caller
// sent one or the method is of RequesterService. Members call each other all the time, and their
// texts stay as they are.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
TraceInterceptors(std::function<bool()> sample, SpanSink* spans, const Clock* clock);

// Returns the trace of a call that went through an interceptor, else one that is not set.
TraceContext TraceOf(const grpc::ServerContextBase& context);

// Writes a line about a requester's call that failed, with its trace, so that the id in an error
// leads to one. A call that its client cancelled is no failure.
void LogFailedCall(std::string_view method, const grpc::Status& status, const TraceContext& trace);

}  // namespace ckv
