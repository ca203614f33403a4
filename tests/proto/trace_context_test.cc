// Goal: a traceparent is taken exactly as W3C Trace Context says, and a trace names what it should.
// Method: the specification's examples and each of its rules broken once.

#include "proto/base/trace_context.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/cord.h"

namespace ckv {
namespace {

constexpr char kValid[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(Traceparent, ParsesTheSpecificationsExample) {
  const auto trace = ParseTraceparent(kValid);
  ASSERT_TRUE(trace.has_value());
  EXPECT_EQ(ToHex(trace->trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(ToHex(trace->span_id), "00f067aa0ba902b7");
  EXPECT_TRUE(trace->sampled);
  EXPECT_EQ(FormatTraceparent(*trace), kValid);
}

TEST(Traceparent, UsesOnlyTheLowestFlag) {
  const std::string begin = std::string(kValid).substr(0, 53);
  for (const auto& [flags, sampled] : std::vector<std::pair<std::string, bool>>{
           {"00", false}, {"01", true}, {"02", false}, {"03", true}, {"ff", true}}) {
    const auto trace = ParseTraceparent(begin + flags);
    ASSERT_TRUE(trace.has_value()) << flags;
    EXPECT_EQ(trace->sampled, sampled) << flags;
  }
}

TEST(Traceparent, ALaterVersionMayHaveMore) {
  const std::string rest = std::string(kValid).substr(2);
  EXPECT_TRUE(ParseTraceparent("01" + rest).has_value());
  EXPECT_TRUE(ParseTraceparent("cc" + rest + "-what-the-future-holds").has_value());
  EXPECT_FALSE(ParseTraceparent("cc" + rest + ".x").has_value());
  EXPECT_FALSE(ParseTraceparent("cc" + rest + "1").has_value());
}

TEST(Traceparent, RefusesAllElse) {
  const std::vector<std::string> malformed = {
      "",
      "00",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",        // no flags
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",      // too short
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",    // more in version 00
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-00",  // the same
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",    // the same
      "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",     // no version
      "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",     // not hexadecimal
      "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",     // the same
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902bx-01",     // the same
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",     // the same
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",     // upper case
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01",     // the same
      "00-00000000000000000000000000000000-00f067aa0ba902b7-01",     // no trace
      "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",     // no span
      "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",     // no dashes
      "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",     // the same
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01",     // the same
      " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",    // a space
      std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0\0", 55),
  };
  for (const std::string& text : malformed)
    EXPECT_FALSE(ParseTraceparent(text).has_value()) << text;
}

// Any one character of a valid one replaced by any byte: it parses if the rules say so, never else.
TEST(Traceparent, EveryByteCounts) {
  for (size_t at = 0; at < sizeof(kValid) - 1; ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string text = kValid;
      text[at] = static_cast<char>(byte);
      const bool hex = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f');
      const bool dash = at == 2 || at == 35 || at == 52;
      EXPECT_EQ(ParseTraceparent(text).has_value(), dash ? byte == '-' : hex) << text;
    }
  }
}

TEST(TraceContext, NewOnesAreSetAndDiffer) {
  std::set<TraceId> ids;
  for (int i = 0; i < 1000; ++i) {
    const TraceContext trace = NewTrace(/*sampled=*/true);
    EXPECT_TRUE(trace.set() && trace.sampled);
    EXPECT_EQ(trace.span_id, SpanId{});
    ids.insert(trace.trace_id);
  }
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_NE(NewSpanId(), NewSpanId());
  // The root has no span of a caller, but the header needs one.
  const TraceContext root = NewTrace();
  const auto sent = ParseTraceparent(FormatTraceparent(root));
  ASSERT_TRUE(sent.has_value());
  EXPECT_EQ(sent->trace_id, root.trace_id);
}

TEST(TraceContext, ErrorsNameItOnceAndKeepTheirPayloads) {
  const TraceContext trace = *ParseTraceparent(kValid);
  absl::Status status = absl::UnavailableError("the holder has gone");
  status.SetPayload("hint", absl::Cord("250"));
  const absl::Status named = WithTrace(WithTrace(status, trace), trace);
  EXPECT_EQ(named.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(named.message(), "the holder has gone [trace 4bf92f3577b34da6a3ce929d0e0e4736]");
  EXPECT_EQ(named.GetPayload("hint"), absl::Cord("250"));
  EXPECT_EQ(WithTrace(status, {}), status);
  EXPECT_EQ(WithTrace(absl::OkStatus(), trace), absl::OkStatus());
}

TEST(TraceContext, TheCurrentOneIsTheInnermostOfItsThread) {
  const TraceContext one = NewTrace(), two = NewTrace();
  EXPECT_EQ(CurrentTrace(), nullptr);
  {
    const ScopedTrace outer(one);
    ASSERT_NE(CurrentTrace(), nullptr);
    {
      const ScopedTrace inner(two);
      EXPECT_EQ(*CurrentTrace(), two);
      const ScopedTrace none(TraceContext{});
      EXPECT_EQ(*CurrentTrace(), two);
    }
    EXPECT_EQ(*CurrentTrace(), one);
    std::thread([] { EXPECT_EQ(CurrentTrace(), nullptr); }).join();
  }
  EXPECT_EQ(CurrentTrace(), nullptr);
}

}  // namespace
}  // namespace ckv
