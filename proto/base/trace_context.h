// The name of a request on its way through processes. As in W3C Trace Context, it has a trace id,
// the span of the caller, and whether spans are recorded.

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

// A value. The default names nothing: work of a process' own, or of a caller that does not say.
struct TraceContext {
  TraceId trace_id{};    // all zero if there is no trace
  SpanId span_id{};      // the parent of spans that begin here; all zero at the root of a trace
  bool sampled = false;  // spans are recorded

  bool set() const { return trace_id != TraceId{}; }
  friend bool operator==(const TraceContext&, const TraceContext&) = default;
};

// The name of the metadata, as gRPC has it.
inline constexpr char kTraceparentKey[] = "traceparent";

// Parses the value of a `traceparent` header, https://www.w3.org/TR/trace-context/. Returns nothing
// if it is malformed: the receiver begins a new trace then. A later version than 00 may have more
// behind the flags.
std::optional<TraceContext> ParseTraceparent(std::string_view text);

// Returns the value of a `traceparent` header. At the root, the span is a new one. `trace` is set.
std::string FormatTraceparent(const TraceContext& trace);

// Returns a new trace, at its root. Takes no lock and, but for the first time in a process, makes
// no system call. Ids do not repeat, but they can be guessed: they prove nothing.
TraceContext NewTrace(bool sampled = false);
SpanId NewSpanId();

// Returns 32 or 16 hexadecimal digits.
std::string ToHex(const TraceId& id);
std::string ToHex(const SpanId& id);

// Returns the status with " [trace 4bf9...]" behind its message, so that a caller finds its call in
// the logs. Payloads stay. OK stays OK, and so does a status that names the trace already.
absl::Status WithTrace(const absl::Status& status, const TraceContext& trace);
// Returns the text that WithTrace adds.
std::string TraceSuffix(const TraceContext& trace);

// The trace that the calling thread works for now, null if there is none. Lines of the log name it,
// and calls to other processes carry it.
const TraceContext* CurrentTrace();
// Sets it until somebody else does. `trace` may be null; it must live until then.
void SetCurrentTrace(const TraceContext* trace);

// Sets the current trace for a block. A trace that is not set changes nothing.
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
