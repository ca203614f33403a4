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
