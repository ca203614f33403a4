// Goal: a wait is spun at its beginning, and throughout if it is like the last two; else slept.
// Method: waits of chosen lengths at chosen instants; no thread waits.

#include "transport/wait_policy.h"

#include <gtest/gtest.h>

namespace ckv {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kSpin = microseconds(50);

class WaitPolicyTest : public testing::Test {
 protected:
  // A whole wait of this length.
  void Wait(Duration length) {
    policy_.Begin(now_);
    now_ = now_ + length;
    policy_.Came(now_);
  }
  // Whether a wait that begins now still spins after `waited`.
  bool SpinsAfter(Duration waited) {
    policy_.Begin(now_);
    return policy_.Spins(now_ + waited);
  }

  // Whether a wait that begins at `begin` spins at first.
  bool SpinsAt(Instant begin) {
    policy_.Begin(begin);
    return policy_.Spins(begin);
  }

  WaitPolicy policy_{kSpin};
  Instant now_{1'000'000'000};
};

TEST_F(WaitPolicyTest, SpinsThenSleepsWithoutHistory) {
  EXPECT_TRUE(SpinsAfter(microseconds(0)));
  EXPECT_TRUE(SpinsAfter(microseconds(49)));
  EXPECT_FALSE(SpinsAfter(microseconds(50)));
}

TEST_F(WaitPolicyTest, SpinsThroughWhatTookAsLongTwice) {
  Wait(microseconds(950));
  EXPECT_FALSE(SpinsAfter(microseconds(100))) << "one wait is no history";
  Wait(microseconds(640));
  EXPECT_TRUE(SpinsAfter(microseconds(999)));
  EXPECT_FALSE(SpinsAfter(microseconds(1000)));
}

TEST_F(WaitPolicyTest, ShortWaitsBetweenDoNotDisturb) {
  for (int i = 0; i < 3; ++i) {
    Wait(microseconds(600));
    Wait(microseconds(5));  // the other holders' answers
  }
  EXPECT_TRUE(SpinsAfter(microseconds(649)));
}

TEST_F(WaitPolicyTest, LongWaitsAreSlept) {
  Wait(microseconds(600));
  Wait(milliseconds(40));
  EXPECT_FALSE(SpinsAfter(microseconds(60)));
  Wait(microseconds(600));
  EXPECT_FALSE(SpinsAfter(microseconds(60)));
  Wait(microseconds(600));
  EXPECT_TRUE(SpinsAfter(microseconds(60)));
}

TEST_F(WaitPolicyTest, YieldsASharedProcessor) {
  Wait(microseconds(600));
  Wait(microseconds(600));
  policy_.Yielded(now_, microseconds(3));
  EXPECT_TRUE(SpinsAfter(microseconds(300))) << "nobody else ran";
  policy_.Yielded(now_, WaitPolicy::kShared);
  EXPECT_TRUE(SpinsAfter(microseconds(300))) << "a passer-by";
  policy_.Yielded(now_, microseconds(3));
  policy_.Yielded(now_, WaitPolicy::kShared);
  EXPECT_TRUE(SpinsAfter(microseconds(300))) << "another";
  policy_.Yielded(now_, WaitPolicy::kShared);
  EXPECT_FALSE(SpinsAt(now_));
  EXPECT_FALSE(SpinsAt(now_ + WaitPolicy::kSharedMin - microseconds(1)));
  EXPECT_TRUE(SpinsAt(now_ + WaitPolicy::kSharedMin)) << "it tries again";
}

TEST_F(WaitPolicyTest, SleepsLongerEachTimeItFindsTheProcessorShared) {
  Duration expected = WaitPolicy::kSharedMin;
  const auto find_it_shared = [this] {
    policy_.Yielded(now_, milliseconds(1));
    policy_.Yielded(now_, milliseconds(1));
  };
  for (int i = 0; i < 12; ++i) {
    find_it_shared();
    EXPECT_FALSE(SpinsAt(now_ + expected - microseconds(1))) << i;
    now_ = now_ + expected;
    EXPECT_TRUE(SpinsAt(now_)) << i;
    expected = std::min(2 * expected, WaitPolicy::kSharedMax);
  }
  now_ = now_ + 2 * WaitPolicy::kSharedMax;
  find_it_shared();
  EXPECT_TRUE(SpinsAt(now_ + WaitPolicy::kSharedMin)) << "another crowd";
}

ManualClock* yield_clock = nullptr;
int yield_count = 0;
Duration yield_takes{0};
void CountYield() {
  ++yield_count;
  yield_clock->Advance(yield_takes);
}

// A poll takes 1 us here.
class WaitPolicyRest : public testing::Test {
 protected:
  WaitPolicyRest() {
    yield_clock = &clock_;
    yield_count = 0;
    yield_takes = Duration::zero();
  }
  // Waits that many polls, and returns how many of them spun.
  int Wait(int polls) {
    int spun = 0;
    policy_.Begin(clock_.Now());
    for (int i = 0; i < polls; ++i) {
      spun += policy_.Rest(clock_, clock_.Now()) ? 1 : 0;
      clock_.Advance(microseconds(1));
    }
    policy_.Came(clock_.Now());
    return spun;
  }

  ManualClock clock_;
  WaitPolicy policy_{kSpin, CountYield};
};

TEST_F(WaitPolicyRest, ShortWaitsDoNotYield) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Wait(9), 9);
  EXPECT_EQ(yield_count, 0);
}

TEST_F(WaitPolicyRest, ALongWaitYieldsEveryTenMicroseconds) {
  EXPECT_EQ(Wait(45), 45);
  EXPECT_EQ(yield_count, 4);
}

TEST_F(WaitPolicyRest, SleepsOnceTwoYieldsLetOthersRun) {
  yield_takes = milliseconds(1);
  EXPECT_EQ(Wait(200), 11) << "the first yield comes after 10 us, and the wait's 50 us are over";
  EXPECT_EQ(Wait(200), 11);
  EXPECT_EQ(yield_count, 2);
  EXPECT_EQ(Wait(200), 0);
  EXPECT_EQ(yield_count, 2);
}

TEST_F(WaitPolicyRest, TwoPassersByFarApartAreNoCrowd) {
  yield_takes = milliseconds(1);
  Wait(200);
  clock_.Advance(std::chrono::hours(1));
  Wait(200);
  EXPECT_EQ(yield_count, 2);
  yield_takes = Duration::zero();
  EXPECT_GT(Wait(30), 0);
}

TEST(WaitPolicy, ZeroTurnsSpinningOff) {
  WaitPolicy policy(Duration::zero());
  for (int i = 0; i < 3; ++i) {
    policy.Begin(Instant{0});
    policy.Came(Instant{600'000});
  }
  policy.Begin(Instant{0});
  EXPECT_FALSE(policy.Spins(Instant{0}));
  EXPECT_FALSE(policy.Spins(Instant{1000}));
}

}  // namespace
}  // namespace ckv
