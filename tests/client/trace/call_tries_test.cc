// Goal: an error names every cause of a call's failure once, and the span of a call covers all its
// attempts.

#include "client/trace/call_tries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/trace/call_spans.h"

namespace ckv {
namespace {

using testing::HasSubstr;
using testing::Not;

class KeptSpans final : public SpanSink {
 public:
  void Record(const Span& span) noexcept override { spans.push_back(span); }
  Counts counts() const override { return {spans.size(), 0}; }
  std::vector<Span> spans;
};

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST(CallTries, KeepsTheTextOfASingleFailure) {
  CallTries tries;
  absl::Status status = absl::UnavailableError("holder h0: gone");
  status.SetPayload("hint", absl::Cord("7"));
  tries.Fail(status);
  EXPECT_EQ(tries.Final(status, {0}), status);
  EXPECT_TRUE(tries.Final(absl::OkStatus(), {0}).ok());
}

TEST(CallTries, NamesEveryHolderAndTheWait) {
  CallTries tries;
  absl::Status last = absl::UnavailableError("holder h1: refused");
  last.SetPayload("hint", absl::Cord("7"));
  tries.Fail(absl::UnavailableError("holder h0: gone"));
  tries.Fail(last);
  tries.wait_count = 3;
  tries.wait_begun = {1'000'000'000};
  const absl::Status reported = tries.Final(last, {3'500'000'000});
  EXPECT_EQ(reported.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Text(reported),
            "holder h1: refused; before that: holder h0: gone; waited 2.5 s for a holder to "
            "return");
  EXPECT_TRUE(reported.GetPayload("hint").has_value());
}

// The causes of an earlier round are dropped once the next round reports another cause, but not
// merely because the deadline has passed.
TEST(CallTries, TheCauseOutlivesTheDeadline) {
  CallTries tries;
  tries.Fail(absl::UnavailableError("holder h0: gone"));
  tries.stale = true;
  const absl::Status late = absl::DeadlineExceededError("the deadline had passed");
  tries.Fail(late);
  EXPECT_THAT(Text(tries.Final(late, {0})), HasSubstr("holder h0: gone"));
  const absl::Status other = absl::UnavailableError("holder h0: not yet");
  tries.Fail(other);
  EXPECT_THAT(Text(tries.Final(other, {0})), Not(HasSubstr("holder h0: gone")));
}

TEST(CallTries, CausesAreLimited) {
  CallTries tries;
  for (int i = 0; i < 100; ++i) tries.Fail(absl::UnavailableError(std::to_string(i % 50)));
  EXPECT_EQ(tries.causes.size(), CallTries::kCauseCountMax);
  EXPECT_EQ(tries.causes.back(), "49");
}

TEST(CallTries, TheTimeBeforeTheLastAttemptIsLost) {
  CallTries tries;
  EXPECT_EQ(tries.lost(), Duration(0));
  tries.Attempt({100});
  EXPECT_EQ(tries.lost(), Duration(0));
  tries.Attempt({350});
  EXPECT_EQ(tries.begun.ns, 100);
  EXPECT_EQ(tries.lost(), Duration(250));
}

TEST(CallTries, OneSpanCoversAllAttempts) {
  for (const bool answered : {true, false}) {
    SCOPED_TRACE(answered);
    KeptSpans kept;
    TraceContext trace = NewTrace(/*sampled=*/true);
    trace.span_id = NewSpanId();
    CallTries tries;
    // Each attempt may be made in another call context.
    CallSpans first(&kept), second(&kept);
    tries.Attempt({100});
    first.Begin(trace, 7, 16, {100}, &tries);
    first.End(/*failed=*/true, {140});
    tries.Attempt({5'000'100});
    second.Begin(trace, 7, 16, {5'000'100}, &tries);
    second.Add("merge", {5'000'110}, {5'000'120});
    second.End(/*failed=*/!answered, {5'000'150});
    if (!answered) tries.EndSpan(/*failed=*/true, {5'000'160});
    tries.EndSpan(/*failed=*/true, {6'000'000});  // once

    ASSERT_EQ(kept.spans.size(), answered ? 3u : 4u);
    const Span& attempt = kept.spans.front();
    const Span& attend = kept.spans.back();
    EXPECT_STREQ(attempt.name, "attempt");
    EXPECT_TRUE(attempt.failed);
    EXPECT_EQ(attempt.start.ns, 100);
    EXPECT_EQ(attempt.end.ns, 140);
    EXPECT_STREQ(attend.name, "attend");
    EXPECT_EQ(attend.failed, !answered);
    EXPECT_EQ(attend.parent_id, trace.span_id);
    EXPECT_EQ(attend.start.ns, 100);
    EXPECT_EQ(attend.end.ns, answered ? 5'000'150 : 5'000'160);
    for (size_t i = 0; i + 1 < kept.spans.size(); ++i)
      EXPECT_EQ(kept.spans[i].parent_id, attend.span_id);
    ASSERT_EQ(attend.attribute_count, 4);
    EXPECT_STREQ(attend.attributes[2].key, "attempts");
    EXPECT_EQ(attend.attributes[2].number, 2);
    EXPECT_STREQ(attend.attributes[3].key, "lost_us");
    EXPECT_EQ(attend.attributes[3].number, 5'000);
  }
}

}  // namespace
}  // namespace ckv
