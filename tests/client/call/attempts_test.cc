// Goal: attempts end (I5): the code of an error alone determines the next action, and how often it
// is repeated.
// Method: attempts that end as the test sets, in a context that sends nothing.

#include "client/call/attempts.h"

#include "client/holders/holder_peer.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Soon;
using test::TestFleet;

struct AttemptsTest : testing::Test {
  AttemptsTest() {
    fleet.Edit("c", [](Corpus& published) { published = Published(); });
    corpus = *view.Resolve("c", "", Soon());
  }
  static Corpus Published() {
    return test::MakeTestCorpus(test::TestGeometry(), {1}, 1).Publish("c", "", {{{"h0"}}});
  }
  // How many attempts are made, if each ends with this result.
  int Count(const absl::Status& status, bool repeatable = true, Instant deadline = Soon()) {
    int count = 0;
    const absl::Status last = attempts.Run(corpus.get(), deadline, [&](CallContext&) {
      ++count;
      return AttemptResult{status, repeatable};
    });
    EXPECT_EQ(last, status);
    return count;
  }
  // Whether the directory is queried before the corpus is used again.
  bool InDoubt() {
    const int requested = fleet.directory_calls();
    corpus = *view.Resolve("c", "", Soon());
    return fleet.directory_calls() > requested;
  }

  TestFleet fleet{{}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  LinkOptions options;
  CallCounters counters;
  CallContextPool pool{Clock::Real(), 1, [this] {
                         options.clock = Clock::Real();
                         return CallContext::Make(&options, &peers, Duration(0), &counters);
                       }};
  Attempts attempts{Clock::Real(), &pool, &view, &counters};
  std::shared_ptr<const Corpus> corpus;
};

TEST_F(AttemptsTest, DoesNotRepeatErrorsThatNoHolderCaused) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "x");
    EXPECT_EQ(Count(status), 1) << status;
    const NextAct act = NextActFor(status);
    EXPECT_EQ(InDoubt(), act == NextAct::kReopen || act == NextAct::kResolveAgain) << status;
  }
  EXPECT_EQ(counters.failovers, 0u);
  EXPECT_EQ(counters.retries, 0u);
}

TEST_F(AttemptsTest, AnOverloadIsWaitedForAFewTimes) {
  const absl::Status full = WithRetryAfter(absl::ResourceExhaustedError("full"), 1);
  EXPECT_EQ(Count(full), 1 + kRetryCountMax);
  EXPECT_EQ(counters.retries, uint64_t{kRetryCountMax});
  EXPECT_EQ(Count(full, /*repeatable=*/false), 1);
  EXPECT_EQ(Count(full, /*repeatable=*/true, Clock::Real()->Now()), 1);
  const auto long_us = static_cast<uint32_t>(kRetryWaitMax / std::chrono::microseconds(1)) + 1;
  EXPECT_EQ(Count(WithRetryAfter(absl::ResourceExhaustedError("full"), long_us)), 1);
  EXPECT_EQ(counters.retries, uint64_t{kRetryCountMax});
}

TEST_F(AttemptsTest, RetriesStayWithinTheBudget) {
  const absl::Status full = WithRetryAfter(absl::ResourceExhaustedError("full"), 1);
  constexpr int kCallCount = 100;
  int count = 0;
  for (int i = 0; i < kCallCount; ++i) count += Count(full);
  EXPECT_LE(count - kCallCount,
            int(RetryBudget::kBurstMax) + kCallCount / int(RetryBudget::kRequestsPerRetry) + 1);
  EXPECT_GT(counters.retries_refused, 0u);
}

// At most one call in kCallsPerHedge, after a burst, and none soon after an overload.
TEST_F(AttemptsTest, HedgesStayWithinTheirBudget) {
  Clock& clock = *Clock::Real();
  uint32_t count = 0;
  while (attempts.TakeHedge(clock.Now())) ++count;
  EXPECT_EQ(count, RetryBudget::kBurstMax);
  for (uint32_t i = 1; i < kCallsPerHedge; ++i) attempts.Begin();
  EXPECT_FALSE(attempts.TakeHedge(clock.Now()));
  attempts.Begin();
  EXPECT_TRUE(attempts.TakeHedge(clock.Now()));

  for (uint32_t i = 0; i < kCallsPerHedge; ++i) attempts.Begin();
  EXPECT_EQ(Count(WithRetryAfter(absl::ResourceExhaustedError("full"), 1)), 1 + kRetryCountMax);
  const Instant now = clock.Now();
  EXPECT_FALSE(attempts.TakeHedge(now));
  EXPECT_TRUE(attempts.TakeHedge(now + Attempts::kOverloadMax));
}

TEST_F(AttemptsTest, AnOverloadThatOnlyOneOfTwoAttemptsSawEndsHedges) {
  const Instant now = Clock::Real()->Now();
  attempts.NoteFailure(absl::UnavailableError("gone"));
  EXPECT_TRUE(attempts.TakeHedge(now));
  attempts.NoteFailure(WithRetryAfter(absl::ResourceExhaustedError("full"), 1));
  EXPECT_FALSE(attempts.TakeHedge(now));
}

}  // namespace
}  // namespace ckv
