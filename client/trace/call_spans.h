// The spans of one attempt of an attend, if its trace is sampled.
//
//   attend           from Begin to End, below the caller's span
//     lane           one a frame, from its post to its reply; the holder's spans are below it
//     attend here    own and near rows
//     merge          one each time that blocks are merged

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

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

  // Begins an attempt. It is on if there is a sink and the trace is sampled.
  void Begin(const TraceContext& trace, uint32_t layer, uint32_t row_count, Instant now) {
    on_ = sink_ != nullptr && trace.sampled && trace.set();
    if (on_) Start(trace, layer, row_count, now);
  }
  // Call the others only if this is true.
  bool on() const { return on_; }

  // Begins the span of a frame, and makes it the parent of the holder's spans.
  void BeginFrame(uint32_t frame, std::string_view holder, std::string_view fabric, uint64_t bytes,
                  Instant now, RequestHeader& header);
  void EndFrame(uint32_t frame, uint64_t bytes, Instant now);
  void Add(const char* name, Instant begin, Instant end);
  // Ends the attempt, and with it the frames that were not answered. Those have failed.
  void End(bool failed, Instant now);

 private:
  struct OpenFrame {
    Span span;
    bool open = false;
  };
  void Start(const TraceContext& trace, uint32_t layer, uint32_t row_count, Instant now);
  TraceContext Below() const { return {attend_.trace_id, attend_.span_id, true}; }

  SpanSink* const sink_;
  bool on_ = false;
  Span attend_;
  std::vector<OpenFrame> frames_;
};

}  // namespace ckv
