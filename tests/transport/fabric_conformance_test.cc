// Goal: every fabric keeps the one contract of transport/fabric.h.
// Method: one suite, run over loopback, shm, tcp, and over the fault fabric without faults on top
// of each. Waiting is by the lanes' own event descriptors, with a deadline only a hang reaches.
// The bring-up of lanes is the other half of the suite, in fabric_bringup_test.cc.

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/fabric_cases.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

using test::AllFabrics;
using test::AwaitDown;
using test::AwaitReply;
using test::AwaitRequest;
using test::CaseName;
using test::EchoHolder;
using test::FabricTest;
using test::FillPattern;
using test::HasPattern;
using test::kSmallShape;
using test::LanePair;
using test::Soon;

class FabricLanes : public FabricTest {};

// One request with the pattern of `id` and its echo, checked byte by byte.
void RoundTrip(RequestLane& lane, uint64_t id, uint32_t bytes) {
  const std::optional<uint32_t> slot = lane.Acquire();
  ASSERT_TRUE(slot.has_value());
  ASSERT_EQ(reinterpret_cast<uintptr_t>(lane.request(*slot).data()) % 64, 0u);
  ASSERT_EQ(lane.request(*slot).size(), lane.shape().request_bytes_max);
  FillPattern(id, lane.request(*slot).first(bytes));
  ASSERT_TRUE(lane.Post(*slot, bytes).ok());
  const std::optional<Completion> completion = AwaitReply(lane);
  ASSERT_TRUE(completion.has_value()) << lane.status();
  EXPECT_EQ(completion->slot, *slot);
  EXPECT_EQ(completion->bytes, std::min(bytes, lane.shape().reply_bytes_max));
  EXPECT_TRUE(HasPattern(id, lane.reply(*slot).first(completion->bytes))) << bytes << " bytes";
  lane.Release(*slot);
}

TEST_P(FabricLanes, DescribesItself) {
  EXPECT_EQ(fabric().kind(), GetParam().kind);
  EXPECT_EQ(listener_->kind(), GetParam().kind);
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  EXPECT_EQ(pair.request->kind(), GetParam().kind);
  EXPECT_EQ(pair.serve->kind(), GetParam().kind);
  EXPECT_EQ(pair.request->shape(), kSmallShape);
  EXPECT_EQ(pair.serve->shape(), kSmallShape);
  EXPECT_GE(pair.request->event_fd(), 0);
  EXPECT_GE(pair.serve->event_fd(), 0);
  EXPECT_TRUE(pair.request->status().ok());
  EXPECT_TRUE(pair.serve->status().ok());
  EXPECT_EQ(pair.request->in_flight(), 0u);
}

#ifdef CKV_CHECK_THREADS
TEST_P(FabricLanes, BelongToTheThreadWithTheRole) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // tcp has a thread of its own
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  ThreadRole role;
  role.Claim();
  pair.request->BelongTo(&role);
  pair.serve->BelongTo(&role);
  EXPECT_TRUE(pair.request->Acquire().has_value());
  std::array<Arrival, 1> arrivals;
  EXPECT_EQ(pair.serve->Poll(arrivals), 0u);
  EXPECT_DEATH(std::thread([&] { pair.request->Acquire(); }).join(), "owner_");
  EXPECT_DEATH(std::thread([&] { pair.serve->Poll(arrivals); }).join(), "owner_");
}
#endif

TEST_P(FabricLanes, CarriesEverySize) {
  const LaneShape shape = {3, 300'001, 300'001};  // no multiple of anything
  LanePair pair = Make(shape);
  ASSERT_TRUE(pair.request && pair.serve);
  EchoHolder holder(std::move(pair.serve));
  uint64_t id = 0;
  for (uint32_t bytes : {0u, 1u, 7u, 8u, 63u, 64u, 65u, 4079u, 4080u, 4087u, 4088u, 4089u, 4096u,
                         4097u, 8191u, 65'536u, 300'000u, 300'001u}) {
    RoundTrip(*pair.request, ++id, bytes);
    if (HasFatalFailure()) break;
  }
  pair.request.reset();
}

// A reply may be larger than its request and the other way round.
TEST_P(FabricLanes, ShapesNeedNotBeSymmetric) {
  LanePair pair = Make({2, 128, 200'000});
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = pair.request->Acquire();
  ASSERT_TRUE(slot.has_value());
  FillPattern(1, pair.request->request(*slot).first(128));
  ASSERT_TRUE(pair.request->Post(*slot, 128).ok());
  const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
  ASSERT_TRUE(arrival.has_value());
  ASSERT_EQ(arrival->bytes, 128u);
  EXPECT_TRUE(HasPattern(1, pair.serve->request(arrival->slot).first(128)));
  ASSERT_EQ(pair.serve->reply(arrival->slot).size(), 200'000u);
  FillPattern(2, pair.serve->reply(arrival->slot));
  // The holder's kernel buffer may be smaller than the reply: polling sends the rest.
  std::thread holder([&] {
    ASSERT_TRUE(pair.serve->Post(arrival->slot, 200'000).ok());
    EXPECT_EQ(AwaitDown(*pair.serve).code(), absl::StatusCode::kUnavailable);
  });
  const std::optional<Completion> completion = AwaitReply(*pair.request);
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->bytes, 200'000u);
  EXPECT_TRUE(HasPattern(2, pair.request->reply(completion->slot)));
  pair.request.reset();
  holder.join();
}

TEST_P(FabricLanes, SlotsAreTheCredits) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < kSmallShape.slot_count; ++i) {
    const std::optional<uint32_t> slot = pair.request->Acquire();
    ASSERT_TRUE(slot.has_value());
    ASSERT_LT(*slot, kSmallShape.slot_count);
    slots.push_back(*slot);
  }
  std::vector<uint32_t> sorted = slots;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
  EXPECT_FALSE(pair.request->Acquire().has_value());
  pair.request->Release(slots[2]);  // unused
  EXPECT_EQ(pair.request->Acquire(), slots[2]);
  ASSERT_TRUE(pair.request->Post(slots[0], 1).ok());
  EXPECT_EQ(pair.request->in_flight(), 1u);
  EXPECT_FALSE(pair.request->Acquire().has_value());
  const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
  ASSERT_TRUE(arrival.has_value());
  ASSERT_TRUE(pair.serve->Post(arrival->slot, 1).ok());
  ASSERT_TRUE(AwaitReply(*pair.request).has_value());
  EXPECT_EQ(pair.request->in_flight(), 0u);
  EXPECT_FALSE(pair.request->Acquire().has_value());  // completed is not released
  pair.request->Release(slots[0]);
  EXPECT_EQ(pair.request->Acquire(), slots[0]);
}

TEST_P(FabricLanes, DeliversInOrder) {
  const LaneShape shape = {16, 256, 256};
  LanePair pair = Make(shape);
  ASSERT_TRUE(pair.request && pair.serve);
  std::vector<uint32_t> posted;
  for (uint32_t i = 0; i < shape.slot_count; ++i) {
    const std::optional<uint32_t> slot = pair.request->Acquire();
    ASSERT_TRUE(slot.has_value());
    ASSERT_TRUE(pair.request->Post(*slot, i).ok());
    posted.push_back(*slot);
  }
  std::vector<uint32_t> answered;
  for (uint32_t i = 0; i < shape.slot_count; ++i) {
    const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
    ASSERT_TRUE(arrival.has_value());
    EXPECT_EQ(arrival->slot, posted[i]);
    EXPECT_EQ(arrival->bytes, i);
    answered.push_back(arrival->slot);
  }
  // The holder may answer in another order. Completions are in that order.
  std::shuffle(answered.begin(), answered.end(), std::mt19937(5));
  for (uint32_t slot : answered) ASSERT_TRUE(pair.serve->Post(slot, slot + 1).ok());
  for (uint32_t slot : answered) {
    const std::optional<Completion> completion = AwaitReply(*pair.request);
    ASSERT_TRUE(completion.has_value());
    EXPECT_EQ(completion->slot, slot);
    EXPECT_EQ(completion->bytes, slot + 1);
    pair.request->Release(slot);
  }
}

// 10,000 messages of random sizes, as many in flight as there are slots, holder in its own thread.
TEST_P(FabricLanes, ManyInFlight) {
  constexpr uint64_t kMessageCount = 10'000;
  const LaneShape shape = {8, 2048, 2048};
  LanePair pair = Make(shape);
  ASSERT_TRUE(pair.request && pair.serve);
  EchoHolder holder(std::move(pair.serve));
  std::mt19937 rng(11);
  struct Sent {
    uint64_t id = 0;
    uint32_t bytes = 0;
  };
  std::vector<Sent> sent(shape.slot_count);
  uint64_t posted = 0;
  uint64_t done = 0;
  while (done < kMessageCount) {
    while (posted < kMessageCount) {
      const std::optional<uint32_t> slot = pair.request->Acquire();
      if (!slot) break;
      sent[*slot] = {++posted, static_cast<uint32_t>(rng() % (shape.request_bytes_max + 1))};
      FillPattern(posted, pair.request->request(*slot).first(sent[*slot].bytes));
      ASSERT_TRUE(pair.request->Post(*slot, sent[*slot].bytes).ok());
    }
    const std::optional<Completion> completion = AwaitReply(*pair.request);
    ASSERT_TRUE(completion.has_value()) << pair.request->status();
    const Sent& expected = sent[completion->slot];
    ASSERT_EQ(completion->bytes, expected.bytes);
    ASSERT_TRUE(
        HasPattern(expected.id, pair.request->reply(completion->slot).first(expected.bytes)))
        << "message " << expected.id;
    pair.request->Release(completion->slot);
    ++done;
  }
  EXPECT_EQ(pair.request->in_flight(), 0u);
  EXPECT_EQ(holder.served(), kMessageCount);
  pair.request.reset();
}

// Both ends sleep before every message; a lost wake-up hangs the test until its patience ends.
TEST_P(FabricLanes, NoWakeUpIsLost) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  std::thread holder([&] {
    while (true) {
      Arrival arrival;
      if (pair.serve->Arm()) {
        EXPECT_TRUE(test::WaitReadable(pair.serve->event_fd()));
        pair.serve->Disarm();
      }
      if (pair.serve->Poll({&arrival, 1}) == 1) {
        EXPECT_TRUE(pair.serve->Post(arrival.slot, 0).ok());
      } else if (!pair.serve->status().ok()) {
        return;
      }
    }
  });
  for (int round = 0; round < 2000; ++round) {
    const std::optional<uint32_t> slot = pair.request->Acquire();
    ASSERT_TRUE(slot.has_value());
    ASSERT_TRUE(pair.request->Post(*slot, 0).ok());
    Completion completion;
    do {
      if (!pair.request->Arm()) continue;
      ASSERT_TRUE(test::WaitReadable(pair.request->event_fd())) << "round " << round;
      pair.request->Disarm();
    } while (pair.request->Poll({&completion, 1}) == 0);
    pair.request->Release(*slot);
  }
  pair.request.reset();
  holder.join();
}

TEST_P(FabricLanes, HolderGoneIsUnavailable) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = pair.request->Acquire();
  ASSERT_TRUE(pair.request->Post(*slot, 3).ok());
  const std::optional<uint32_t> other = pair.request->Acquire();
  pair.serve.reset();
  EXPECT_EQ(AwaitDown(*pair.request).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(pair.request->Arm());
  FillPattern(1, pair.request->request(*other));  // still memory
  EXPECT_EQ(pair.request->Post(*other, 1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.request->in_flight(), 1u);
  EXPECT_TRUE(pair.request->Acquire().has_value());  // `other` is free again
  Completion completion;
  EXPECT_EQ(pair.request->Poll({&completion, 1}), 0u);
}

TEST_P(FabricLanes, RequesterGoneIsUnavailable) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = pair.request->Acquire();
  ASSERT_TRUE(pair.request->Post(*slot, 3).ok());
  const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
  ASSERT_TRUE(arrival.has_value());
  pair.request.reset();
  EXPECT_EQ(AwaitDown(*pair.serve).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.serve->Post(arrival->slot, 1).code(), absl::StatusCode::kUnavailable);
}

// A dead peer is found by polling alone too, with no sleep between.
TEST_P(FabricLanes, SpinnersNoticeTheEnd) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  pair.serve.reset();
  const Instant deadline = Soon();
  Completion completion;
  while (pair.request->status().ok() && Clock::Real()->Now() < deadline) {
    EXPECT_EQ(pair.request->Poll({&completion, 1}), 0u);
  }
  EXPECT_EQ(pair.request->status().code(), absl::StatusCode::kUnavailable);
}

// What was sent before the end still arrives.
TEST_P(FabricLanes, MessagesSentBeforeTheEndArrive) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = pair.request->Acquire();
  ASSERT_TRUE(pair.request->Post(*slot, 5).ok());
  const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
  ASSERT_TRUE(arrival.has_value());
  FillPattern(9, pair.serve->reply(arrival->slot).first(100));
  ASSERT_TRUE(pair.serve->Post(arrival->slot, 100).ok());
  pair.serve.reset();
  const std::optional<Completion> completion = AwaitReply(*pair.request);
  ASSERT_TRUE(completion.has_value());
  EXPECT_TRUE(HasPattern(9, pair.request->reply(*slot).first(100)));
  EXPECT_EQ(AwaitDown(*pair.request).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(HasPattern(9, pair.request->reply(*slot).first(100)));  // until Release
}

TEST_P(FabricLanes, AbandonedSlotIsFreeOnlyAfterItsReply) {
  const LaneShape shape = {2, 64, 64};
  LanePair pair = Make(shape);
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> lost = pair.request->Acquire();
  const std::optional<uint32_t> kept = pair.request->Acquire();
  ASSERT_TRUE(pair.request->Post(*lost, 1).ok());
  pair.request->Abandon(*lost);
  EXPECT_EQ(pair.request->in_flight(), 1u);
  EXPECT_FALSE(pair.request->Acquire().has_value());
  ASSERT_TRUE(pair.request->Post(*kept, 2).ok());
  for (int i = 0; i < 2; ++i) {
    const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
    ASSERT_TRUE(arrival.has_value());
    ASSERT_TRUE(pair.serve->Post(arrival->slot, 10).ok());
  }
  // The late reply arrived first and was swallowed.
  const std::optional<Completion> completion = AwaitReply(*pair.request);
  ASSERT_TRUE(completion.has_value());
  EXPECT_EQ(completion->slot, *kept);
  EXPECT_EQ(pair.request->in_flight(), 0u);
  EXPECT_EQ(pair.request->Acquire(), *lost);
}

TEST_P(FabricLanes, LanesOfManyShapesSideBySide) {
  const LaneShape shapes[] = {{1, 1, 1}, {2, 64, 64}, {256, 100, 5000}, {16, 300'000, 100}};
  std::vector<std::unique_ptr<RequestLane>> lanes;
  std::deque<EchoHolder> holders;
  for (const LaneShape& shape : shapes) {
    LanePair pair = Make(shape);
    ASSERT_TRUE(pair.request && pair.serve);
    lanes.push_back(std::move(pair.request));
    holders.emplace_back(std::move(pair.serve));
  }
  for (int round = 0; round < 20 && !HasFatalFailure(); ++round) {
    for (size_t i = 0; i < lanes.size(); ++i) {
      RoundTrip(*lanes[i], round * 10 + i, lanes[i]->shape().request_bytes_max);
    }
  }
  lanes.clear();
}

TEST_P(FabricLanes, FullLanesOf256Slots) {
  const LaneShape shape = {kSlotCountMax, 64, 64};
  LanePair pair = Make(shape);
  ASSERT_TRUE(pair.request && pair.serve);
  EchoHolder holder(std::move(pair.serve));
  for (uint64_t round = 0; round < 5; ++round) {  // the rings wrap
    for (uint32_t i = 0; i < kSlotCountMax; ++i) {
      const std::optional<uint32_t> slot = pair.request->Acquire();
      ASSERT_TRUE(slot.has_value());
      FillPattern(*slot + round, pair.request->request(*slot));
      ASSERT_TRUE(pair.request->Post(*slot, 64).ok());
    }
    EXPECT_FALSE(pair.request->Acquire().has_value());
    EXPECT_EQ(pair.request->in_flight(), kSlotCountMax);
    for (uint32_t i = 0; i < kSlotCountMax; ++i) {
      const std::optional<Completion> completion = AwaitReply(*pair.request);
      ASSERT_TRUE(completion.has_value());
      EXPECT_TRUE(
          HasPattern(completion->slot + round, pair.request->reply(completion->slot).first(64)));
      pair.request->Release(completion->slot);
    }
  }
  pair.request.reset();
}

class FabricMisuseDeathTest : public FabricTest {};

TEST_P(FabricMisuseDeathTest, MisuseEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  EXPECT_DEATH((void)pair.request->Post(0, 1), "CKV_CHECK");   // not acquired
  EXPECT_DEATH(pair.request->Release(1), "CKV_CHECK");         // free already
  EXPECT_DEATH(pair.request->Abandon(1), "CKV_CHECK");         // not posted
  EXPECT_DEATH((void)pair.request->request(99), "CKV_CHECK");  // no such slot
  EXPECT_DEATH((void)pair.serve->Post(0, 1), "CKV_CHECK");     // nothing arrived
  EXPECT_DEATH((void)pair.serve->request(99), "CKV_CHECK");    // no such slot
  const std::optional<uint32_t> slot = pair.request->Acquire();
  EXPECT_DEATH((void)pair.request->Post(*slot, kSmallShape.request_bytes_max + 1), "CKV_CHECK");
}

INSTANTIATE_TEST_SUITE_P(All, FabricLanes, AllFabrics(), CaseName);
INSTANTIATE_TEST_SUITE_P(All, FabricMisuseDeathTest, AllFabrics(), CaseName);

}  // namespace
}  // namespace ckv
