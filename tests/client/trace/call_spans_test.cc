// Goal: the spans of an attempt form one tree below the caller's span, and cost nothing unless the
// trace is sampled.

#include "client/trace/call_spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ckv {
namespace {

class Kept final : public SpanSink {
 public:
  void Record(const Span& span) noexcept override { spans.push_back(span); }
  Counts counts() const override { return {spans.size(), 0}; }
  std::vector<Span> spans;
};

TraceContext Sampled() {
  TraceContext trace = NewTrace(/*sampled=*/true);
  trace.span_id = NewSpanId();
  return trace;
}

TEST(CallSpans, IsOffUnlessThereIsASinkAndTheTraceIsSampled) {
  Kept kept;
  CallSpans none(nullptr), some(&kept);
  none.Begin(Sampled(), 0, 1, {});
  EXPECT_FALSE(none.on());
  some.Begin({}, 0, 1, {});
  EXPECT_FALSE(some.on());
  some.Begin(NewTrace(/*sampled=*/false), 0, 1, {});
  EXPECT_FALSE(some.on());
  EXPECT_TRUE(kept.spans.empty());
  some.Begin(Sampled(), 0, 1, {});
  EXPECT_TRUE(some.on());
}

TEST(CallSpans, FormsATreeAndFailsWhatWasNotAnswered) {
  Kept kept;
  CallSpans spans(&kept);
  const TraceContext trace = Sampled();
  spans.Begin(trace, /*layer=*/7, /*row_count=*/16, {100});
  RequestHeader first, second;
  SetTrace(trace, first);
  SetTrace(trace, second);
  spans.BeginFrame(0, "h1", "tcp", 1000, {110}, first);
  spans.BeginFrame(3, "h2", "tcp", 1000, {120}, second);
  spans.EndFrame(0, 500, {130});
  spans.EndFrame(0, 500, {135});  // a reply counts once
  spans.EndFrame(9, 500, {135});
  spans.Add("merge", {130}, {140});
  spans.End(/*failed=*/true, {150});
  EXPECT_FALSE(spans.on());

  ASSERT_EQ(kept.spans.size(), 4u);
  const Span& lane = kept.spans[0];
  const Span& merge = kept.spans[1];
  const Span& lost = kept.spans[2];
  const Span& attend = kept.spans[3];
  for (const Span& span : kept.spans) EXPECT_EQ(span.trace_id, trace.trace_id);
  EXPECT_EQ(attend.parent_id, trace.span_id);
  for (const Span* span : {&lane, &merge, &lost}) EXPECT_EQ(span->parent_id, attend.span_id);
  // The holder's spans are below the frame's.
  EXPECT_EQ(first.span_id, lane.span_id);
  EXPECT_EQ(second.span_id, lost.span_id);
  EXPECT_EQ(first.sampled, 1);
  EXPECT_EQ(lane.start.ns, 110);
  EXPECT_EQ(lane.end.ns, 130);
  EXPECT_FALSE(lane.failed);
  EXPECT_TRUE(lost.failed && attend.failed);
  EXPECT_EQ(lost.end.ns, 150);
}

TEST(Span, AttributesAreLimitedInNumberAndLength) {
  Span span;
  span.Set("text", std::string(100, 'x'));
  for (int i = 0; i < 20; ++i) span.Set("number", i);
  EXPECT_EQ(span.attribute_count, Span::kAttributeCountMax);
  EXPECT_EQ(span.attributes[0].text_bytes, SpanAttribute::kTextBytesMax);
  EXPECT_EQ(span.attributes[5].number, 4);
}

}  // namespace
}  // namespace ckv
