#include "client/call/lane_wait.h"

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(LaneWait, EndsAtTheDeadline) {
  ManualClock clock;
  LaneWait wait(&clock, std::chrono::microseconds(50));
  wait.Begin(2);
  const Instant deadline = clock.Now() + std::chrono::milliseconds(1);
  EXPECT_TRUE(wait.Pause({}, deadline).ok());  // spins
  clock.Advance(std::chrono::microseconds(60));
  EXPECT_TRUE(wait.Pause({}, deadline).ok());  // sleeps, but not for ever
  clock.Advance(std::chrono::milliseconds(1));
  EXPECT_EQ(wait.Pause({}, deadline).code(), absl::StatusCode::kDeadlineExceeded);
}

// A time to wake that has passed does not turn the wait into a busy loop.
TEST(LaneWait, RestsAfterTheTimeToWake) {
  ManualClock clock;
  LaneWait wait(&clock, Duration(0));
  wait.Begin(1);
  const Instant now = clock.Now(), deadline = now + std::chrono::milliseconds(1);
  const auto rest_of = [&](Instant wake) {
    const Instant begin = Clock::Real()->Now();
    EXPECT_TRUE(wait.Pause({}, deadline, wake).ok());
    return Clock::Real()->Now() - begin;
  };
  EXPECT_GE(rest_of(now), deadline - now);
  EXPECT_GE(rest_of(now - std::chrono::seconds(1)), deadline - now);
  EXPECT_GE(rest_of(now + std::chrono::microseconds(300)), std::chrono::microseconds(300));
}

}  // namespace
}  // namespace ckv
