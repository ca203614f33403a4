// Goal: sessions share the holder by what they request, queues stay within their limits, and a
// refused request learns when to retry.

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "server/dispatch/admission.h"
#include "server/dispatch/fair_queue.h"

namespace ckv {
namespace {

using std::chrono::microseconds;

ReadyRequest Request(uint64_t id, uint64_t work = 0, ServeLane* lane = nullptr) {
  ReadyRequest ready;
  ready.header.request_id = id;
  ready.work = work;
  ready.lane = lane;
  return ready;
}
// Lanes only need to differ here.
// NOLINTNEXTLINE(performance-no-int-to-ptr): never used as memory
ServeLane* LaneNumber(uintptr_t n) { return reinterpret_cast<ServeLane*>(n * 64); }

class FairQueueTest : public testing::Test {
 protected:
  FairQueue::Flow* Session(uint32_t slots) {
    FairQueue::Flow* flow = queue_.AddSession();
    queue_.Grow(*flow, slots);
    return flow;
  }
  QueueGauge depth_;
  FairQueue queue_{&depth_};
};

TEST_F(FairQueueTest, ASessionsRequestsKeepTheirOrder) {
  FairQueue::Flow* flow = Session(3);
  for (uint64_t turn = 0; turn < 4; ++turn) {
    for (uint64_t i = 0; i < 3; ++i) queue_.Push(*flow, Request(3 * turn + i, 7));
    EXPECT_EQ(queue_.work(), 21u);
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_EQ(queue_.Next(), flow);
      EXPECT_EQ(flow->front().header.request_id, 3 * turn + i);
      queue_.Pop(*flow, 5);
    }
    EXPECT_EQ(queue_.Next(), nullptr);
    EXPECT_EQ(queue_.work(), 0u);
  }
}

// Method: one session always has 8 requests of 100 waiting, another one of 1 now and then.
TEST_F(FairQueueTest, ServesALightUserNextUnderAnyLoad) {
  FairQueue::Flow* flood = Session(8);
  FairQueue::Flow* light = Session(1);
  for (uint64_t i = 0; i < 8; ++i) queue_.Push(*flood, Request(i));
  for (int turn = 0; turn < 100; ++turn) {
    ASSERT_EQ(queue_.Next(), flood) << "nobody else waits";
    queue_.Pop(*flood, 100);
    queue_.Push(*flood, Request(0));
    queue_.Push(*light, Request(1));
    ASSERT_EQ(queue_.Next(), light) << "turn " << turn;
    queue_.Pop(*light, 1);
  }
}

TEST_F(FairQueueTest, SharesAreEqualInWorkNotInRequests) {
  FairQueue::Flow* small = Session(1);
  FairQueue::Flow* large = Session(1);
  uint64_t served[2] = {0, 0};
  for (int turn = 0; turn < 10'000; ++turn) {
    if (small->empty()) queue_.Push(*small, Request(0));
    if (large->empty()) queue_.Push(*large, Request(1));
    FairQueue::Flow* next = queue_.Next();
    const uint64_t cost = next == small ? 16 : 256;
    served[next == small ? 0 : 1] += cost;
    queue_.Pop(*next, cost);
  }
  EXPECT_NEAR(static_cast<double>(served[0]), static_cast<double>(served[1]), 256);
}

TEST_F(FairQueueTest, AnIdleUserSavesNothingUp) {
  FairQueue::Flow* busy = Session(4);
  FairQueue::Flow* idle = Session(4);
  for (int i = 0; i < 1000; ++i) {
    queue_.Push(*busy, Request(0));
    queue_.Pop(*busy, 10);
  }
  for (int i = 0; i < 4; ++i) {
    queue_.Push(*busy, Request(0));
    queue_.Push(*idle, Request(1));
  }
  int idle_in_a_row = 0;
  for (int i = 0; i < 4; ++i) {
    FairQueue::Flow* next = queue_.Next();
    idle_in_a_row = next == idle ? idle_in_a_row + 1 : 0;
    EXPECT_LT(idle_in_a_row, 3);
    queue_.Pop(*next, 10);
  }
}

TEST_F(FairQueueTest, ABrokenLanesRequestsAreForgottenAndGrowthKeepsTheRest) {
  FairQueue::Flow* flow = Session(4);
  // Not at the start of the ring.
  queue_.Push(*flow, Request(0));
  queue_.Push(*flow, Request(0));
  queue_.Pop(*flow, 1);
  queue_.Pop(*flow, 1);
  for (uint64_t i = 0; i < 4; ++i) queue_.Push(*flow, Request(i, 10, LaneNumber(1 + i % 2)));
  queue_.Grow(*flow, 2);
  queue_.Push(*flow, Request(4, 10, LaneNumber(1)));
  queue_.DropLane(*flow, LaneNumber(2));
  EXPECT_EQ(queue_.count(), 3u);
  EXPECT_EQ(queue_.work(), 30u);
  EXPECT_EQ(depth_.request_count, 3u);
  EXPECT_EQ(depth_.work, 30u);
  for (const uint64_t id : {0, 2, 4}) {
    ASSERT_EQ(queue_.Next(), flow);
    EXPECT_EQ(flow->front().header.request_id, id);
    queue_.Pop(*flow, 1);
  }
  queue_.Push(*flow, Request(9, 10, LaneNumber(1)));
  queue_.DropLane(*flow, LaneNumber(1));
  EXPECT_EQ(queue_.Next(), nullptr);
  EXPECT_EQ(queue_.waiting_sessions(), 0u);
  queue_.RemoveSession(flow);
}

class AdmissionTest : public FairQueueTest {
 protected:
  absl::Status Offer(FairQueue::Flow* flow, uint64_t work, uint32_t deadline_us = 1'000'000) {
    ReadyRequest ready = Request(0, work);
    ready.header.deadline_us = deadline_us;
    absl::Status full = admission_.Check(queue_, *flow, ready, &why_);
    if (full.ok()) queue_.Push(*flow, ready);
    return full;
  }
  Admission admission_{/*request_count_max=*/6, /*work_max=*/100};
  Refusal why_{};  // of the last one refused
};

TEST_F(AdmissionTest, ALoneSessionFillsItsSlots) {
  FairQueue::Flow* flow = Session(8);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Offer(flow, 60).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Offer(flow, 60))) << "but half of the queue at most";
  EXPECT_EQ(why_, Refusal::kQueueFull);
}

TEST_F(AdmissionTest, AFullQueueStillTakesOneOfEachSession) {
  FairQueue::Flow* a = Session(8);
  FairQueue::Flow* b = Session(8);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Offer(a, 0).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Offer(b, 0).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Offer(b, 0)));
  FairQueue::Flow* c = Session(8);
  EXPECT_TRUE(Offer(c, 0).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Offer(c, 0)));
}

TEST_F(AdmissionTest, MoreWorkThanTheQueueHoldsIsRefusedButOneRequestEach) {
  FairQueue::Flow* a = Session(8);
  FairQueue::Flow* b = Session(8);
  FairQueue::Flow* c = Session(8);
  EXPECT_TRUE(Offer(a, 60).ok());
  EXPECT_TRUE(Offer(b, 60).ok()) << "its first";
  EXPECT_TRUE(absl::IsResourceExhausted(Offer(a, 60)));
  EXPECT_TRUE(absl::IsResourceExhausted(Offer(b, 1)));
  EXPECT_EQ(why_, Refusal::kQueueWork);
  EXPECT_TRUE(Offer(c, 60).ok()) << "its first";
  queue_.Pop(*a, 60);
  queue_.Pop(*b, 60);
  EXPECT_TRUE(Offer(b, 30).ok());
  EXPECT_TRUE(Offer(b, 10).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Offer(b, 1))) << "100 wait";
}

TEST_F(AdmissionTest, RefusesRequestsThatWouldExpireWhileTheyWait) {
  FairQueue::Flow* a = Session(8);
  FairQueue::Flow* b = Session(8);
  ASSERT_TRUE(Offer(a, 10).ok());
  ASSERT_TRUE(Offer(b, 10).ok());
  EXPECT_TRUE(Offer(a, 10, /*deadline_us=*/1).ok()) << "nobody knows how long it takes";
  admission_.Observe(10, microseconds(100));  // the 30 that wait: 300 us
  EXPECT_TRUE(absl::IsResourceExhausted(Offer(a, 10, /*deadline_us=*/299)));
  EXPECT_EQ(why_, Refusal::kNoTime);
  EXPECT_TRUE(Offer(a, 10, /*deadline_us=*/300).ok());
}

TEST_F(AdmissionTest, TheHintIsTheTimeThatTheQueueTakes) {
  FairQueue::Flow* a = Session(8);
  FairQueue::Flow* b = Session(8);
  EXPECT_EQ(admission_.RetryAfterUs(queue_), Admission::kRetryAfterUsMin) << "nothing known";
  ASSERT_TRUE(Offer(a, 50).ok());
  ASSERT_TRUE(Offer(b, 50).ok());
  admission_.Observe(10, microseconds(200));
  EXPECT_EQ(admission_.RetryAfterUs(queue_), 2000u);
  for (int i = 0; i < 200; ++i) admission_.Observe(10, microseconds(400));
  EXPECT_NEAR(admission_.RetryAfterUs(queue_), 4000, 40) << "follows";
  for (int i = 0; i < 200; ++i) admission_.Observe(1, std::chrono::seconds(1));
  EXPECT_EQ(admission_.RetryAfterUs(queue_), Admission::kRetryAfterUsMax);
}

}  // namespace
}  // namespace ckv
