#include "proto/base/clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

namespace ckv {
namespace {

using namespace std::chrono_literals;

// A flag that one thread sets and another awaits.
class Gate {
 public:
  explicit Gate(Clock* clock) : clock_(clock) {}
  void Open() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    open_ = true;
  }
  bool Await(Instant deadline) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    waiting_ = true;
    const bool open = clock_->Await(mu_, absl::Condition(&open_), deadline);
    waiting_ = false;
    return open;
  }
  // Blocks until a thread is in Await.
  void AwaitWaiter() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&waiting_));
  }

 private:
  Clock* const clock_;
  absl::Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;
};

TEST(Instant, Arithmetic) {
  const Instant start = {100};
  EXPECT_EQ((start + 1ms).ns, 1'000'100);
  EXPECT_EQ((start + 1ms) - start, Duration(1ms));
  EXPECT_EQ((start + 1ms) - 1ms, start);
  EXPECT_LT(start, start + Duration(1));
  EXPECT_LT(start, kInstantMax);
}

TEST(RealClock, NeverRunsBackwards) {
  Instant last = Clock::Real()->Now();
  for (int i = 0; i < 1000; ++i) {
    const Instant now = Clock::Real()->Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(WallClock, CountsMillisecondsOfThisCentury) {
  const uint64_t now = WallClockMilliseconds();
  EXPECT_GT(now, 1'700'000'000'000u);  // 2023
  EXPECT_LT(now, 4'100'000'000'000u);  // 2099
}

// Goal: threads may read the time until the process has ended. Method: a handler that was
// registered before the clock's first use runs after the static objects of that use have ended; the
// sanitizers' build fails if the clock is one of them.
const bool kReadsTimeAtTheEnd = std::atexit([] {
                                  if (Clock::Real()->Now().ns <= 0) std::abort();
                                }) == 0;

TEST(RealClock, LivesUntilTheProcessIsGone) { EXPECT_TRUE(kReadsTimeAtTheEnd); }

TEST(RealClock, AwaitEndsAtItsDeadline) {
  Gate gate(Clock::Real());
  const Instant deadline = Clock::Real()->Now() + 5ms;
  EXPECT_FALSE(gate.Await(deadline));
  EXPECT_GE(Clock::Real()->Now(), deadline);
  EXPECT_FALSE(gate.Await(Clock::Real()->Now() - 1s));  // already past
  gate.Open();
  EXPECT_TRUE(gate.Await(Clock::Real()->Now() - 1s));
}

TEST(RealClock, AwaitEndsWithItsCondition) {
  for (const Instant deadline : {kInstantMax, Clock::Real()->Now() + 3600s}) {
    Gate gate(Clock::Real());
    std::thread opener([&gate] {
      gate.AwaitWaiter();
      gate.Open();
    });
    EXPECT_TRUE(gate.Await(deadline));
    opener.join();
  }
}

TEST(ManualClock, IsConstantUntilAdvanced) {
  ManualClock clock;
  const Instant start = clock.Now();
  EXPECT_GT(start.ns, 0);
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(3s);
  EXPECT_EQ(clock.Now() - start, Duration(3s));
}

// Goal: a wait ends when the time is advanced past it, and not before. Method: the waiter reports
// the time at which it returned; one advance falls short of the deadline, the next reaches it.
TEST(ManualClock, AwaitEndsWhenAdvancedToItsDeadline) {
  ManualClock clock;
  Gate gate(&clock);
  const Instant deadline = clock.Now() + 10s;
  std::atomic<int64_t> ended_ns = 0;
  std::thread waiter([&] {
    EXPECT_FALSE(gate.Await(deadline));
    ended_ns = clock.Now().ns;
  });
  gate.AwaitWaiter();
  clock.Advance(9s);
  EXPECT_EQ(ended_ns, 0);
  clock.Advance(1s);
  waiter.join();
  EXPECT_EQ(ended_ns, deadline.ns);
}

TEST(ManualClock, AwaitEndsWithItsConditionWithoutTime) {
  ManualClock clock;
  Gate gate(&clock);
  std::thread waiter([&] { EXPECT_TRUE(gate.Await(kInstantMax)); });
  gate.AwaitWaiter();
  gate.Open();
  waiter.join();
}

TEST(RemainingUs, SaturatesAndIsNeverZero) {
  EXPECT_EQ(RemainingUs({5'000'000}, {2'000'000}), 3000u);
  EXPECT_EQ(RemainingUs({5}, {5}), 1u);
  EXPECT_EQ(RemainingUs({5}, {2'000'000}), 1u);
  EXPECT_EQ(RemainingUs(kInstantMax, {1}), UINT32_MAX);
}

TEST(Clock, WaitsUntilAnInstant) {
  ManualClock clock;
  const Instant instant = clock.Now() + 5s;
  std::thread waiter([&] {
    clock.WaitUntil(instant);
    EXPECT_GE(clock.Now(), instant);
  });
  clock.Advance(4s);
  clock.Advance(1s);
  waiter.join();
}

}  // namespace
}  // namespace ckv
