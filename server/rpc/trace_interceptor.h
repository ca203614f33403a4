// Assigns each call of a server its trace: the caller's or a new one.

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

// Returns the interceptors for a grpc::ServerBuilder. A call's trace is the one in its
// `traceparent` metadata. A call without one, with a malformed one or with several begins a new
// trace. The new trace of a RequesterService method is sampled if `sample` returns true (called
// from any thread). The handler always finds a valid `traceparent`, except for bidirectional
// streams: each of their requests begins its own trace.
//
// `spans` receives a span of each sampled call, the parent of the handler's spans. Bidirectional
// streams have none, because they may last forever. `spans` may be null. `spans` and `clock` must
// outlive the server.
//
// While a handler of ckv's synchronous services runs, CurrentTrace() of its thread is the call's
// trace. Other handlers, for example of gRPC's health service, change threads and have no current
// trace.
//
// The trailing metadata returns the trace id. An error's text also contains it, if the caller sent
// a trace or the method belongs to RequesterService. The errors of other calls, which members make
// to each other all the time, keep their text.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
TraceInterceptors(std::function<bool()> sample, SpanSink* spans, const Clock* clock);

// Returns the trace of a call that passed an interceptor, or an unset trace.
TraceContext TraceOf(const grpc::ServerContextBase& context);

// Logs a requester's failed call with its trace, so that the trace id in an error leads to a log
// line. Cancelled calls are not logged.
void LogFailedCall(std::string_view method, const grpc::Status& status, const TraceContext& trace);

}  // namespace ckv
