// Goal: contexts are lent to as many calls as there are contexts, in the order of arrival, and no
// call waits past its deadline.

#include "client/call/call_context_pool.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/call/route.h"
#include "gtest/gtest.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/shifted_clock.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

struct Pool : testing::Test {
  CallContextPool Make(uint32_t contexts) {
    return CallContextPool(&clock, contexts, [this] {
      ++made;
      return CallContext::Make(&options, &peers, Duration(0), &counters);
    });
  }
  ManualClock clock;
  test::TestFleet fleet{{}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  LinkOptions options{.requester = "",
                      .host_identity = "",
                      .clock = &clock,
                      .fabrics = {},
                      .forced = {},
                      .rdma_fallback = RdmaFallback::kRefuse,
                      .shape = {},
                      .connect_timeout = Duration(1)};
  CallCounters counters;
  std::atomic<int> made{0};
};

TEST_F(Pool, MadeAsNeededAndTheWarmestFirst) {
  CallContextPool pool = Make(3);
  CallContext* first = nullptr;
  {
    const auto lease = pool.Take(kInstantMax);
    ASSERT_TRUE(lease.ok());
    first = &**lease;
    const auto second = pool.Take(kInstantMax);
    ASSERT_TRUE(second.ok());
    EXPECT_NE(first, &**second);
    EXPECT_EQ(made, 2);
  }
  // `first` was given back last.
  const auto again = pool.Take(kInstantMax);
  EXPECT_EQ(&**again, first);
  EXPECT_EQ(made, 2);
}

TEST_F(Pool, WaitsNeverPassTheDeadline) {
  CallContextPool pool = Make(1);
  const auto lease = pool.Take(kInstantMax);
  const Instant deadline = clock.Now() + std::chrono::seconds(1);
  absl::Status status;
  std::thread waiter([&] { status = pool.Take(deadline).status(); });
  clock.Advance(std::chrono::seconds(3));  // before it waits or while it does
  waiter.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(pool.Take(deadline).status().code(), absl::StatusCode::kDeadlineExceeded);
}

// Eight threads, two contexts, 100 turns each: never more than two at once, and all turns complete.
TEST_F(Pool, NeverLendsMoreThanTheLimit) {
  CallContextPool pool = Make(2);
  std::atomic<int> inside{0}, most{0}, turns{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 100; ++turn) {
        const auto lease = pool.Take(kInstantMax);
        ASSERT_TRUE(lease.ok());
        const int now = ++inside;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) continue;
        std::this_thread::yield();
        --inside;
        ++turns;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns, 800);
  EXPECT_LE(most, 2);
  EXPECT_LE(made, 2);
}

// Making a context takes milliseconds on a device. No other thread waits for that.
TEST_F(Pool, MakesAContextWhileOthersAreLent) {
  absl::Notification making, lent;
  std::atomic<bool> slow{false};
  bool met = false;
  CallContextPool pool(&clock, 2, [&] {
    if (slow) {
      making.Notify();
      met = lent.WaitForNotificationWithTimeout(absl::Seconds(5));
    }
    return CallContext::Make(&options, &peers, Duration(0), &counters);
  });
  auto first = std::make_unique<CallContextPool::Lease>(*pool.Take(kInstantMax));
  slow = true;
  std::thread maker([&] { EXPECT_TRUE(pool.Take(kInstantMax).ok()); });
  making.WaitForNotification();
  first.reset();
  EXPECT_TRUE(pool.Take(kInstantMax).ok());
  lent.Notify();
  maker.join();
  EXPECT_TRUE(met) << "the pool was locked";
}

// If one cannot be made, the next in the queue makes one itself.
TEST_F(Pool, GivesAnUnfilledPlaceToTheNextCaller) {
  absl::Notification making, waits;
  std::atomic<int> calls{0};
  CallContextPool pool(&clock, 1, [&]() -> absl::StatusOr<std::unique_ptr<CallContext>> {
    if (++calls > 1) return CallContext::Make(&options, &peers, Duration(0), &counters);
    making.Notify();
    EXPECT_TRUE(waits.WaitForNotificationWithTimeout(absl::Seconds(20)));
    return absl::ResourceExhaustedError("no more streams");
  });
  absl::Status status;
  std::thread fails([&] { status = pool.Take(kInstantMax).status(); });
  making.WaitForNotification();
  EXPECT_EQ(pool.TryTake().status().code(), absl::StatusCode::kResourceExhausted);
  std::thread next([&] { EXPECT_TRUE(pool.Take(kInstantMax).ok()); });
  waits.Notify();  // before the other waits or while it does
  fails.join();
  next.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(pool.TryTake().ok());
  EXPECT_EQ(calls, 2);
}

TEST_F(Pool, AHedgeTakesNoPlaceFromACall) {
  CallContextPool pool = Make(2);
  const auto call = pool.TryTake();
  ASSERT_TRUE(call.ok());
  CallContext* of_hedge = nullptr;
  {
    const auto hedge = pool.TryTakeHedge();
    ASSERT_TRUE(hedge.ok());
    of_hedge = &**hedge;
    EXPECT_EQ(pool.TryTakeHedge().status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(pool.TryTake().ok());
  }
  // Contexts are shared, so that a hedge that follows finds open lanes.
  const auto again = pool.TryTakeHedge();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(&**again, of_hedge);
  EXPECT_EQ(made, 3);
}

// A device has few streams, and a hedge may have had the last one.
TEST_F(Pool, ACallTakesWhatAHedgeReturnedWhileItMadeItsOwn) {
  std::optional<CallContextPool::Lease> hedge;
  int calls = 0;
  CallContextPool pool(&clock, 1, [&]() -> absl::StatusOr<std::unique_ptr<CallContext>> {
    if (++calls == 1) return CallContext::Make(&options, &peers, Duration(0), &counters);
    hedge.reset();
    return absl::ResourceExhaustedError("no more streams");
  });
  auto taken = pool.TryTakeHedge();
  ASSERT_TRUE(taken.ok());
  hedge.emplace(*std::move(taken));
  CallContext* const only = &**hedge;
  const auto call = pool.Take(kInstantMax);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(&**call, only);
}

// A stream that failed fails all later work, so its context is not lent again.
TEST_F(Pool, ReplacesContextsWhoseStreamFailed) {
  test::DeferredBackend device;
  options.backend = &device;
  CallContextPool pool = Make(1);
  const Geometry geometry = test::TestGeometry();
  const RopeRotation identity(geometry.rope, geometry.d_rope, 0);
  const auto fail = [&](CallContext& context) {
    device.Fail(test::DeferredBackend::Failure::kAtCall);
    std::array<std::byte, 64> rows{};
    EXPECT_FALSE(
        device.Rotate(identity, {rows.data(), 1, 64}, 64, {rows.data()}, *context.stream).ok());
  };
  fail(**pool.Take(kInstantMax));
  EXPECT_EQ(made, 1);
  {
    const auto lease = pool.Take(kInstantMax);
    ASSERT_TRUE(lease.ok());
    EXPECT_EQ(made, 2);
    EXPECT_TRUE((*lease)->stream->Wait().ok());
  }
  EXPECT_TRUE(pool.Take(kInstantMax).ok());
  EXPECT_EQ(made, 2) << "a good one is kept";
  // A waiting thread gets a new one.
  {
    auto lease = pool.Take(kInstantMax);
    std::thread next([&] {
      const auto other = pool.Take(kInstantMax);
      EXPECT_TRUE(other.ok() && (*other)->stream->Wait().ok());
    });
    fail(**lease);
    lease = absl::CancelledError("given back");
    next.join();
  }
  EXPECT_EQ(made, 3);
}

// Goal: links that an unused context keeps open are closed by calls on other contexts.
struct IdleContexts : testing::Test {
  IdleContexts() {
    fleet.StartHolder(0);
    options.requester = "r";
    options.clock = &clock;
    options.fabrics = {fabric.get()};
    options.shape = test::SmallShape();
    options.connect_timeout = std::chrono::hours(1);
  }
  absl::StatusOr<CallContextPool::Lease> Take() { return pool.Take(kInstantMax); }
  // Like a call on behalf of the tenant.
  void Use(CallContextPool::Lease& context, const std::shared_ptr<const Corpus>& published) {
    LinkTable& links = context->links;
    const absl::Status status =
        links.EnsureUp(*(*links.LinksFor(published))->links[0], kInstantMax);
    EXPECT_TRUE(status.ok()) << status;
  }
  std::shared_ptr<const Corpus> CorpusOf(std::string tenant) {
    return std::make_shared<const Corpus>(
        corpus.Publish("c", std::move(tenant), {{test::TestFleet::Name(0)}}));
  }
  uint32_t SessionCount() { return fleet.holder(0).stats().session_count; }

  test::ShiftedClock clock;
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  test::TestFleet fleet{{fabric.get()}};
  DirectoryView view{&fleet};
  PeerTable peers{&view, &fleet};
  LinkOptions options;
  CallCounters counters;
  test::TestCorpus corpus = test::MakeTestCorpus(test::TestGeometry(), {3}, 1);
  CallContextPool pool{
      &clock, 3, [this] { return CallContext::Make(&options, &peers, Duration(0), &counters); }};
};

TEST_F(IdleContexts, LinksOfContextsNeverUsedAgainAreClosed) {
  const auto of_a = CorpusOf("a"), of_b = CorpusOf("b");
  {
    auto first = Take(), second = Take(), third = Take();
    Use(*first, of_a);
    Use(*second, of_a);
    Use(*third, of_a);
    Use(*third, of_b);
  }
  EXPECT_EQ(SessionCount(), 4u);
  const auto call = [&] {
    auto context = Take();
    Use(*context, of_a);
  };
  // Half of it, so that the time the test itself takes does not count.
  clock.Advance(LinkTable::kLinkIdleMax / 2);
  call();
  EXPECT_EQ(SessionCount(), 4u);
  clock.Advance(LinkTable::kLinkIdleMax / 2);
  // One per call: a link of the second context, and both of the third's.
  for (const uint32_t left : {3u, 2u, 1u, 1u}) {
    call();
    EXPECT_EQ(SessionCount(), left);
  }
  // The contexts still work when they are needed again.
  auto first = Take(), second = Take(), third = Take();
  Use(*second, of_a);
  Use(*third, of_b);
  EXPECT_EQ(SessionCount(), 3u);
}

}  // namespace
}  // namespace ckv
