#include "client/trace/call_spans.h"

namespace ckv {

void CallSpans::Start(const TraceContext& trace, uint32_t layer, uint32_t row_count, Instant now,
                      CallTries* tries) {
  tries_ = tries;
  begun_ = now;
  frames_.clear();
  if (tries_ != nullptr && tries_->span) {
    attend_ = *tries_->span;
    return;
  }
  attend_ = BeginSpan(trace, "attend", SpanKind::kInternal, now);
  attend_.Set("layer", layer);
  attend_.Set("rows", row_count);
  if (tries_ == nullptr) return;
  tries_->sink = sink_;
  tries_->span = attend_;
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
  on_ = false;
  if (tries_ == nullptr) {
    attend_.end = now;
    attend_.failed = failed;
    sink_->Record(attend_);
  } else if (!failed) {
    tries_->EndSpan(failed, now);
  } else {
    Span attempt = BeginSpan(Below(), "attempt", SpanKind::kInternal, begun_);
    attempt.end = now;
    attempt.failed = true;
    sink_->Record(attempt);
  }
}

}  // namespace ckv
