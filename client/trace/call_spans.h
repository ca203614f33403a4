// The spans of an attend, if its trace is sampled.
//
//   attend           from the begin of the first attempt to the end of the last, below the caller's
//                    span. After several attempts it tells how many and what the failed ones took
//     attempt        one that failed
//     lane           one a frame, from its post to its reply; the holder's spans are below it
//     attend here    own and near rows
//     merge          one each time that blocks are merged

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

// Part of a router. While it is not on, it does nothing and costs one comparison.
class CallSpans {
 public:
  // `sink` may be null, and must outlive this.
  explicit CallSpans(SpanSink* sink) : sink_(sink) {}

  // Begins an attempt. It is on if there is a sink and the trace is sampled. `tries` keeps the span
  // of the call between its attempts. If it is null, this attempt is the whole call.
  void Begin(const TraceContext& trace, uint32_t layer, uint32_t row_count, Instant now,
             CallTries* tries = nullptr) {
    on_ = sink_ != nullptr && trace.sampled && trace.set();
    if (on_) Start(trace, layer, row_count, now, tries);
  }
  // Call the others only if this is true.
  bool on() const { return on_; }

  // Begins the span of a frame, and makes it the parent of the holder's spans.
  void BeginFrame(uint32_t frame, std::string_view holder, std::string_view fabric, uint64_t bytes,
                  Instant now, RequestHeader& header);
  void EndFrame(uint32_t frame, uint64_t bytes, Instant now);
  void Add(const char* name, Instant begin, Instant end);
  // Drops an attempt that was only left to another thread (CallTries::Leave): it sent nothing.
  void Leave() { on_ = false; }
  // Ends the attempt, and with it the frames that were not answered. Those have failed. A failed
  // attempt of a call with tries does not end the call's span (CallTries::EndSpan).
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
