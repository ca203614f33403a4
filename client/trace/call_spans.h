// The spans of an attend, if its trace is sampled.
//
//   attend           from the beginning of the first attempt to the end of the last, below the
//                    caller's span. After several attempts, it has their number and the time that
//                    the failed ones took
//     attempt        one that failed
//     lane           one per frame, from its post to its reply; the holder's spans are below it
//     attend here    the caller's own rows and local rows
//     merge          one for each merge of blocks

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "client/trace/call_tries.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "proto/base/trace_context.h"
#include "transport/wire.h"

namespace ckv {

// Part of a router. While it is off, it does nothing and costs one comparison.
class CallSpans {
 public:
  // `sink` may be null. Otherwise it must outlive this object.
  explicit CallSpans(SpanSink* sink) : sink_(sink) {}

  // Begins an attempt. Turns on if there is a sink and the trace is sampled. `tries` keeps the span
  // of the call between its attempts. If `tries` is null, this attempt is the whole call.
  void Begin(const TraceContext& trace, uint32_t layer, uint32_t row_count, Instant now,
             CallTries* tries = nullptr) {
    on_ = sink_ != nullptr && trace.sampled && trace.set();
    if (on_) Start(trace, layer, row_count, now, tries);
  }
  // Call the functions below only if this returns true.
  bool on() const { return on_; }

  // Begins the span of a frame, and makes it the parent of the holder's spans.
  void BeginFrame(uint32_t frame, std::string_view holder, std::string_view fabric, uint64_t bytes,
                  Instant now, RequestHeader& header);
  void EndFrame(uint32_t frame, uint64_t bytes, Instant now);
  void Add(const char* name, Instant begin, Instant end);
  // Drops an attempt that was only handed to another thread (CallTries::Leave) and sent nothing.
  void Leave() { on_ = false; }
  // Ends the attempt. Its unanswered frames end as failed. A failed attempt of a call with tries
  // does not end the call's span (CallTries::EndSpan).
  void End(bool failed, Instant now);

 private:
  struct OpenFrame {
    Span span;
    bool open = false;
  };
  void Start(const TraceContext& trace, uint32_t layer, uint32_t row_count, Instant now,
             CallTries* tries);
  TraceContext Below() const { return {attend_.trace_id, attend_.span_id, true}; }

  SpanSink* const sink_;
  bool on_ = false;
  CallTries* tries_ = nullptr;
  Instant begun_;
  Span attend_;
  std::vector<OpenFrame> frames_;
};

}  // namespace ckv
