// Goal: a holder that requests it has the slots of every lane pinned, exactly as long as the lane
// lives, and a lane whose slots cannot be pinned does not open. Method: the conformance suite's
// fabrics, and a pinner that records its ranges.

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pinned_ranges.h"
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
using test::kPatience;
using test::kSmallShape;
using test::LanePair;
using test::MakeLane;
using testing::HasSubstr;

class BookPinner final : public MemoryPinner {
 public:
  absl::Status Pin(std::span<std::byte> memory) override {
    if (refuses) return absl::ResourceExhaustedError("the book is full");
    CKV_CHECK(ranges.Add(memory));
    return absl::OkStatus();
  }
  void Unpin(std::span<std::byte> memory) noexcept override { ranges.Remove(memory); }

  test::PinnedRanges ranges;
  bool refuses = false;
};

class FabricPins : public test::FabricTest {
 public:
  ~FabricPins() override {
    pinning_.reset();
    EXPECT_EQ(pinner_->ranges.count(), 0u);
  }

 protected:
  FabricPins() {
    ListenOptions options;
    options.slot_pinner = pinner_;
    auto listener = fabric().Listen(options);
    EXPECT_TRUE(listener.ok()) << listener.status();
    pinning_ = *std::move(listener);
  }
  // On verbs another thread takes lanes down.
  void AwaitNoPins(const BookPinner& pinner) {
    const Instant give_up = clock_.Now() + kPatience;
    while (pinner.ranges.count() > 0 && clock_.Now() < give_up) std::this_thread::yield();
    EXPECT_EQ(pinner.ranges.count(), 0u);
  }
  LanePair MakePinned(const LaneShape& shape = kSmallShape) {
    return MakeLane(fabric(), *pinning_, shape, clock_.Now() + kPatience);
  }

  const std::shared_ptr<BookPinner> pinner_ = std::make_shared<BookPinner>();
  std::unique_ptr<Listener> pinning_;
};

TEST_P(FabricPins, SlotsArePinnedAsLongAsTheLaneLives) {
  LanePair pair = MakePinned();
  ASSERT_TRUE(pair.request && pair.serve);
  EXPECT_EQ(pair.serve->slot_type(), RegionType::kPinned);
  EXPECT_EQ(pinner_->ranges.count(), 1u);
  for (uint64_t id = 1; id <= 2 * kSmallShape.slot_count; ++id) {
    const std::optional<uint32_t> slot = pair.request->Acquire();
    ASSERT_TRUE(slot.has_value());
    FillPattern(id, pair.request->request(*slot));
    ASSERT_TRUE(pair.request->Post(*slot, kSmallShape.request_bytes_max).ok());
    const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
    ASSERT_TRUE(arrival.has_value());
    const auto request = pair.serve->request(arrival->slot);
    const auto reply = pair.serve->reply(arrival->slot);
    pinner_->ranges.Check(request.data(), request.size());
    pinner_->ranges.Check(reply.data(), reply.size());
    EXPECT_TRUE(HasPattern(id, request));
    FillPattern(id + 100, reply);
    ASSERT_TRUE(pair.serve->Post(arrival->slot, kSmallShape.reply_bytes_max).ok());
    const std::optional<Completion> done = AwaitReply(*pair.request);
    ASSERT_TRUE(done.has_value());
    EXPECT_TRUE(HasPattern(id + 100, pair.request->reply(done->slot)));
    pair.request->Release(done->slot);
  }
  LanePair other = MakePinned();
  ASSERT_TRUE(other.request && other.serve);
  EXPECT_EQ(pinner_->ranges.count(), 2u);
  other = {};
  // On loopback the peer's end still has the memory.
  pair.serve.reset();
  if (GetParam().kind == FabricKind::kLoopback) {
    EXPECT_EQ(pinner_->ranges.count(), 1u);
    pair.request.reset();
  }
  if (GetParam().kind == FabricKind::kVerbs) pinning_.reset();  // waits for the side thread
  EXPECT_EQ(pinner_->ranges.count(), 0u);
}

// A fault lane has slots of its own.
TEST_P(FabricPins, ARequesterPinsItsOwnEnd) {
  if (GetParam().fault) return;
  const auto requested = std::make_shared<BookPinner>();
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  EXPECT_EQ(pair.request->slot_type(), RegionType::kHost);
  requested->refuses = true;
  const absl::Status refused = pair.request->PinSlots(requested);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(pair.request->slot_type(), RegionType::kHost);
  requested->refuses = false;
  const absl::Status pinned = pair.request->PinSlots(requested);
  ASSERT_TRUE(pinned.ok()) << pinned;
  EXPECT_EQ(pair.request->slot_type(), RegionType::kPinned);
  EXPECT_EQ(requested->ranges.count(), 1u);
  const std::optional<uint32_t> slot = pair.request->Acquire();
  ASSERT_TRUE(slot.has_value());
  const auto request = pair.request->request(*slot);
  requested->ranges.Check(request.data(), request.size());
  FillPattern(7, request);
  ASSERT_TRUE(pair.request->Post(*slot, kSmallShape.request_bytes_max).ok());
  const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
  ASSERT_TRUE(arrival.has_value());
  EXPECT_TRUE(HasPattern(7, pair.serve->request(arrival->slot)));
  FillPattern(8, pair.serve->reply(arrival->slot));
  ASSERT_TRUE(pair.serve->Post(arrival->slot, kSmallShape.reply_bytes_max).ok());
  const std::optional<Completion> done = AwaitReply(*pair.request);
  ASSERT_TRUE(done.has_value());
  const auto reply = pair.request->reply(done->slot);
  requested->ranges.Check(reply.data(), reply.size());
  EXPECT_TRUE(HasPattern(8, reply));
  pair.request->Release(done->slot);
  pair.serve.reset();  // also has the memory on loopback
  pair.request.reset();
  AwaitNoPins(*requested);
}

// On loopback the ends share their memory, which is pinned once.
TEST_P(FabricPins, PinsBothEnds) {
  if (GetParam().fault) return;
  LanePair pair = MakePinned();
  ASSERT_TRUE(pair.request && pair.serve);
  ASSERT_TRUE(pair.request->PinSlots(pinner_).ok());
  EXPECT_EQ(pair.request->slot_type(), RegionType::kPinned);
  EXPECT_EQ(pinner_->ranges.count(), GetParam().kind == FabricKind::kLoopback ? 1u : 2u);
  pair = {};
  AwaitNoPins(*pinner_);
}

TEST_P(FabricPins, PinsNothingUnrequested) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  EXPECT_EQ(pair.serve->slot_type(), RegionType::kHost);
  EXPECT_EQ(pinner_->ranges.count(), 0u);
}

// Refused at the peer's Connect on loopback, else at Invite.
TEST_P(FabricPins, ALaneThatIsNotPinnedIsNotOpened) {
  pinner_->refuses = true;
  auto dialer = fabric().Dial(kSmallShape);
  ASSERT_TRUE(dialer.ok());
  const Instant deadline = clock_.Now() + kPatience;
  const auto answer = pinning_->Invite((*dialer)->offer(), kSmallShape, "", 1, deadline);
  absl::Status refused = answer.status();
  if (GetParam().kind == FabricKind::kLoopback) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    refused = (*dialer)->Connect(*answer, deadline).status();
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the book is full"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("open fewer or smaller lanes"));
  EXPECT_FALSE(pinning_->Accept().has_value());
  // The next lane opens as usual.
  pinner_->refuses = false;
  const LanePair pair = MakePinned();
  ASSERT_TRUE(pair.request && pair.serve);
  EXPECT_EQ(pair.serve->slot_type(), RegionType::kPinned);
}

// Invitations that expire, or whose listener ends first, release their pins.
TEST_P(FabricPins, InvitationsReleaseTheirPins) {
  for (int i = 0; i < 3; ++i) {
    auto dialer = fabric().Dial(kSmallShape);
    ASSERT_TRUE(dialer.ok());
    ASSERT_TRUE(
        pinning_->Invite((*dialer)->offer(), kSmallShape, "", 1, clock_.Now() + kPatience).ok());
  }
  EXPECT_EQ(pinner_->ranges.count(), GetParam().kind == FabricKind::kLoopback ? 0u : 3u);
  clock_.Advance(2 * kPatience);
  EXPECT_FALSE(pinning_->Accept().has_value());
  if (GetParam().kind != FabricKind::kVerbs) {
    EXPECT_EQ(pinner_->ranges.count(), 0u);
  }
  auto dialer = fabric().Dial(kSmallShape);
  ASSERT_TRUE(
      pinning_->Invite((*dialer)->offer(), kSmallShape, "", 1, clock_.Now() + kPatience).ok());
  pinning_.reset();
  EXPECT_EQ(pinner_->ranges.count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, FabricPins, AllFabrics(), CaseName);

}  // namespace
}  // namespace ckv
