// The identity of a request on its way through processes. As in W3C Trace Context, it has a trace
// id, the caller's span id, and whether spans are recorded.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace ckv {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

// A value. The default identifies no trace: a process's own work, or a caller that sent none.
struct TraceContext {
  TraceId trace_id{};    // all zero if there is no trace
  SpanId span_id{};      // the parent of spans that begin here; all zero at the root of a trace
  bool sampled = false;  // spans are recorded

  bool set() const { return trace_id != TraceId{}; }
  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// The name of the gRPC metadata entry.
inline constexpr char kTraceparentKey[] = "traceparent";

// Parses the value of a `traceparent` header, https://www.w3.org/TR/trace-context/. Returns nullopt
// if it is malformed; the receiver then begins a new trace. Versions after 00 may have more after
// the flags.
std::optional<TraceContext> ParseTraceparent(std::string_view text);

// Returns the value of a `traceparent` header. At the root of a trace, the span id is a new one.
// `trace` must be set.
std::string FormatTraceparent(const TraceContext& trace);

// Returns a new trace, at its root. Takes no lock and, except for the first call in a process,
// makes no system call. Ids do not repeat, but can be guessed: they prove nothing.
TraceContext NewTrace(bool sampled = false);
SpanId NewSpanId();

// Returns 32 or 16 hexadecimal digits.
std::string ToHex(const TraceId& id);
std::string ToHex(const SpanId& id);

// Returns the status with " [trace 4bf9...]" appended to its message, so that a caller finds its
// call in the logs. Keeps payloads. Returns OK, and a status that already names the trace,
// unchanged. An unset trace changes nothing.
absl::Status WithTrace(const absl::Status& status, const TraceContext& trace);
// Returns the text that WithTrace adds.
std::string TraceSuffix(const TraceContext& trace);

// The trace that the calling thread currently works for, or null. Log lines name it, and calls to
// other processes send it.
const TraceContext* CurrentTrace();
// Sets the calling thread's trace until the next call. `trace` may be null; it must live until
// then.
void SetCurrentTrace(const TraceContext* trace);

// Sets the current trace for a scope. An unset trace changes nothing.
class ScopedTrace {
 public:
  explicit ScopedTrace(const TraceContext& trace) : trace_(trace), before_(CurrentTrace()) {
    if (trace_.set()) SetCurrentTrace(&trace_);
  }
  ~ScopedTrace() { SetCurrentTrace(before_); }
  ScopedTrace(const ScopedTrace&) = delete;
  ScopedTrace& operator=(const ScopedTrace&) = delete;

 private:
  const TraceContext trace_;
  const TraceContext* const before_;
};

}  // namespace ckv
