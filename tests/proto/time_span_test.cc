// Goal: one grammar for lengths of time, which refuses what it does not know.

#include "proto/base/time_span.h"

#include <chrono>

#include "gtest/gtest.h"

namespace ckv {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(TimeSpan, TakesEveryUnitAndSumsOfThem) {
  EXPECT_EQ(*ParseTimeSpan("0"), Duration(0));
  EXPECT_EQ(*ParseTimeSpan("250ms"), milliseconds(250));
  EXPECT_EQ(*ParseTimeSpan("5s"), seconds(5));
  EXPECT_EQ(*ParseTimeSpan("1.5s"), milliseconds(1500));
  EXPECT_EQ(*ParseTimeSpan("2m"), minutes(2));
  EXPECT_EQ(*ParseTimeSpan("2min"), minutes(2));
  EXPECT_EQ(*ParseTimeSpan("1h30m"), minutes(90));
  EXPECT_EQ(*ParseTimeSpan("1h30min"), minutes(90));
  EXPECT_EQ(*ParseTimeSpan("7us"), std::chrono::microseconds(7));
  EXPECT_EQ(*ParseTimeSpan("8760h"), kTimeSpanMax);
}

TEST(TimeSpan, RefusesTheRest) {
  for (const char* text :
       {"", "5", "-1s", "s", "5 s", "5d", "1h30", "8761h", "inf", "nan", "5sec"}) {
    const auto span = ParseTimeSpan(text);
    EXPECT_EQ(span.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(span.status().message().find(std::string("'") + text + "'"), std::string::npos);
  }
}

}  // namespace
}  // namespace ckv
