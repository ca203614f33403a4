#include "client/trace/call_spans.h"

namespace ckv {

void CallSpans::Start(const TraceContext& trace, uint32_t layer, uint32_t row_count, Instant now) {
  attend_ = BeginSpan(trace, "attend", SpanKind::kInternal, now);
  attend_.Set("layer", layer);
  attend_.Set("rows", row_count);
  frames_.clear();
}

void CallSpans::BeginFrame(uint32_t frame, std::string_view holder, std::string_view fabric,
                           uint64_t bytes, Instant now, RequestHeader& header) {
  if (frames_.size() <= frame) frames_.resize(frame + 1);
  OpenFrame& begun = frames_[frame];
  begun.span = BeginSpan(Below(), "lane", SpanKind::kClient, now);
  begun.span.Set("holder", holder);
  begun.span.Set("fabric", fabric);
  begun.span.Set("request_bytes", static_cast<int64_t>(bytes));
  begun.open = true;
  header.span_id = begun.span.span_id;
}

void CallSpans::EndFrame(uint32_t frame, uint64_t bytes, Instant now) {
  if (frame >= frames_.size() || !frames_[frame].open) return;
  OpenFrame& ended = frames_[frame];
  ended.open = false;
  ended.span.end = now;
  ended.span.Set("reply_bytes", static_cast<int64_t>(bytes));
  sink_->Record(ended.span);
}

void CallSpans::Add(const char* name, Instant begin, Instant end) {
  Span span = BeginSpan(Below(), name, SpanKind::kInternal, begin);
  span.end = end;
  sink_->Record(span);
}

void CallSpans::End(bool failed, Instant now) {
  for (OpenFrame& frame : frames_) {
    if (!frame.open) continue;
    frame.open = false;
    frame.span.end = now;
    frame.span.failed = true;
    sink_->Record(frame.span);
  }
  attend_.end = now;
  attend_.failed = failed;
  sink_->Record(attend_);
  on_ = false;
}

}  // namespace ckv
