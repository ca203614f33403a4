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

}  // namespace
}  // namespace ckv
