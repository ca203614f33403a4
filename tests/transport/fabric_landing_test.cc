// Goal: a reply's body is where its owner requested it, or whole in its slot, and never elsewhere;
// and memory that the owner took back is not written any more. Several requests posted at once
// arrive, in order.
// Method: the conformance suite's fabrics; sizes around the requested one, given up half received.

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/fabric_cases.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

using test::AllFabrics;
using test::AwaitReply;
using test::AwaitRequest;
using test::CaseName;
using test::FillPattern;
using test::HasPattern;
using test::LanePair;
using test::Soon;

// Larger than what the kernel takes for a reader that does not read (4.2 MB over loopback).
constexpr uint32_t kOverfullBytes = 8u << 20;

class FabricLanding : public test::FabricTest {};

// `place` in spans of unlike sizes.
ScatterList InSpans(std::span<std::byte> place, size_t span_count) {
  ScatterList spans;
  for (size_t i = 1; i <= span_count; ++i) {
    const size_t bytes = i == span_count ? place.size() : place.size() * i / (2 * span_count);
    EXPECT_TRUE(spans.Add(place.first(bytes)));
    place = place.subspan(bytes);
  }
  return spans;
}

void ExpectBodiesLandOrComeWhole(LanePair pair, size_t span_count) {
  ASSERT_TRUE(pair.request && pair.serve);
  constexpr uint32_t kHead = 64, kBody = 50'000;
  // A page's worth of the stream is read ahead: bodies below that, and so far above it that every
  // span is read into.
  for (const uint32_t body_bytes : {1u, 100u, kBody}) {
    for (const int32_t more : {0, -1, 1, -100'000}) {
      SCOPED_TRACE(testing::Message() << body_bytes << " " << more);
      const auto bytes = static_cast<uint32_t>(std::max(0, int32_t(kHead + body_bytes) + more));
      std::vector<std::byte> place(body_bytes, std::byte{0xee});
      const std::optional<uint32_t> slot = pair.request->Acquire();
      ASSERT_TRUE(slot.has_value());
      const bool can = pair.request->Land(*slot, kHead, InSpans(place, span_count));
      ASSERT_TRUE(pair.request->Post(*slot, 1).ok());
      const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
      ASSERT_TRUE(arrival.has_value());
      FillPattern(bytes, pair.serve->reply(*slot).first(bytes));
      std::vector<std::byte> sent(pair.serve->reply(*slot).begin(),
                                  pair.serve->reply(*slot).begin() + bytes);
      ASSERT_TRUE(pair.serve->Post(*slot, bytes).ok());
      const std::optional<Completion> done = AwaitReply(*pair.request);
      ASSERT_TRUE(done.has_value());
      EXPECT_EQ(done->bytes, bytes);
      EXPECT_EQ(pair.request->landed(*slot), can && more == 0);
      const auto reply = pair.request->reply(*slot);
      if (pair.request->landed(*slot)) {
        EXPECT_TRUE(std::equal(sent.begin(), sent.begin() + kHead, reply.begin()));
        EXPECT_TRUE(std::equal(place.begin(), place.end(), sent.begin() + kHead, sent.end()));
      } else {
        EXPECT_TRUE(std::equal(sent.begin(), sent.end(), reply.begin()));
        EXPECT_TRUE(std::all_of(place.begin(), place.end(),
                                [](std::byte b) { return b == std::byte{0xee}; }));
      }
      pair.request->Release(*slot);
    }
  }
}

TEST_P(FabricLanding, BodiesLandOrArriveWhole) {
  ExpectBodiesLandOrComeWhole(Make({4, 64, 64 << 10}), 1);
}
TEST_P(FabricLanding, LandsInSpans) {
  ExpectBodiesLandOrComeWhole(Make({4, 64, 64 << 10}), 3);
  ExpectBodiesLandOrComeWhole(Make({4, 64, 64 << 10}), ScatterList::kSpanCountMax);
}

// Land is for one request: the next reply in the slot is whole again.
TEST_P(FabricLanding, IsForOneRequest) {
  LanePair pair = Make({1, 64, 4096});
  ASSERT_TRUE(pair.request && pair.serve);
  std::vector<std::byte> place(1000);
  for (const bool requested : {true, false}) {
    std::fill(place.begin(), place.end(), std::byte{0xee});
    const std::optional<uint32_t> slot = pair.request->Acquire();
    ASSERT_TRUE(slot.has_value());
    const bool can = requested && pair.request->Land(*slot, 24, ScatterList(std::span(place)));
    ASSERT_TRUE(pair.request->Post(*slot, 1).ok());
    ASSERT_TRUE(AwaitRequest(*pair.serve).has_value());
    ASSERT_TRUE(pair.serve->Post(*slot, 1024).ok());
    ASSERT_TRUE(AwaitReply(*pair.request).has_value());
    EXPECT_EQ(pair.request->landed(*slot), can);
    EXPECT_EQ(place[0] == std::byte{0xee}, !can);
    pair.request->Release(*slot);
  }
}

// Memory of a request that was given up, before or during its arrival, is written no more.
TEST_P(FabricLanding, AbandonedMemoryIsTheOwnersAgain) {
  LanePair pair = Make({2, 64, kOverfullBytes});
  ASSERT_TRUE(pair.request && pair.serve);
  for (const bool begun : {false, true}) {
    SCOPED_TRACE(begun);
    std::vector<std::byte> place(kOverfullBytes - 64);
    const std::optional<uint32_t> slot = pair.request->Acquire();
    ASSERT_TRUE(slot.has_value());
    const bool can = pair.request->Land(*slot, 64, InSpans(place, 3));
    ASSERT_TRUE(pair.request->Post(*slot, 1).ok());
    ASSERT_TRUE(AwaitRequest(*pair.serve).has_value());
    std::fill_n(pair.serve->reply(*slot).begin(), kOverfullBytes, std::byte{0x77});
    ASSERT_TRUE(pair.serve->Post(*slot, kOverfullBytes).ok());
    Completion done;
    if (begun && can) {
      // The kernel holds the front of it, and the rest has not been sent.
      const Instant deadline = Soon();
      bool whole = false;
      const size_t at = place.size() / 4;  // in the second span
      while (place[at] != std::byte{0x77} && !whole) {
        ASSERT_LT(Clock::Real()->Now(), deadline);
        whole = pair.request->Poll({&done, 1}) != 0;
      }
      // Unless its buffers have grown so far (tcp_rmem) that they took all of it.
      if (whole) {
        pair.request->Release(*slot);
        continue;
      }
    }
    pair.request->Abandon(*slot);
    FillPattern(9, place);
    const Instant deadline = Soon();
    Arrival arrival;
    while (pair.request->in_flight() > 0) {
      ASSERT_LT(Clock::Real()->Now(), deadline);
      EXPECT_EQ(pair.serve->Poll({&arrival, 1}), 0u);
      EXPECT_EQ(pair.request->Poll({&done, 1}), 0u);
    }
    EXPECT_TRUE(HasPattern(9, place));
    EXPECT_TRUE(pair.request->status().ok());
  }
}

TEST_P(FabricLanding, LaterPostsAreSentWithTheNext) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  for (const bool by_poll : {false, true}) {
    std::vector<uint32_t> slots;
    for (uint32_t i = 0; i < 3; ++i) {
      const std::optional<uint32_t> slot = pair.request->Acquire();
      ASSERT_TRUE(slot.has_value());
      slots.push_back(*slot);
      FillPattern(*slot, pair.request->request(*slot).first(300));
      const bool later = by_poll || i < 2;
      ASSERT_TRUE(
          (later ? pair.request->PostLater(*slot, 300) : pair.request->Post(*slot, 300)).ok());
    }
    Completion done;
    if (by_poll && std::string(GetParam().name) == "tcp") {
      Arrival early;
      EXPECT_EQ(pair.serve->Poll({&early, 1}), 0u) << "not kept back";
    }
    const size_t done_count = by_poll ? pair.request->Poll({&done, 1}) : 0;
    EXPECT_EQ(done_count, 0u);
    for (const uint32_t slot : slots) {
      const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
      ASSERT_TRUE(arrival.has_value());
      EXPECT_EQ(arrival->slot, slot);
      EXPECT_TRUE(HasPattern(slot, pair.serve->request(slot).first(300)));
      ASSERT_TRUE(pair.serve->Post(slot, 8).ok());
      ASSERT_TRUE(AwaitReply(*pair.request).has_value());
      pair.request->Release(slot);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FabricLanding, AllFabrics(), CaseName);

}  // namespace
}  // namespace ckv
