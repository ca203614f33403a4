// Goal: a peer that keeps no rule reaches nothing: not one byte of the store or of another's
// landing region is read or changed, whatever keys and queue pair numbers it has. Method: in the
// guest. A victim with a lane, a store that is registered for it, and a raw libibverbs peer that
// has every key the kernel has given out, and the victim's window. Each try is one RDMA READ or
// WRITE over a lane of the attacker's own (a refused one ends the lane), or over a queue pair
// connected to another peer's number.

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/transport/lane_pair.h"
#include "tests/transport/verbs/verbs_case.h"
#include "tests/transport/verbs/verbs_raw_peer.h"
#include "transport/verbs/verbs_fabric.h"
#include "transport/verbs/verbs_wire.h"

namespace ckv {
namespace {

using test::AwaitDown;
using test::AwaitReply;
using test::AwaitRequest;
using test::FillPattern;
using test::HasPattern;
using test::LanePair;
using test::RawPeer;
using test::Soon;

constexpr LaneShape kShape = {4, 4096, 8192};
constexpr uint64_t kStorePattern = 5;

// Every key that the kernel has given out, local ones too: soft-RoCE's are the same number.
std::set<uint32_t> KernelKeys() {
  std::istringstream words(test::OutputOf("rdma -d resource show mr"));
  std::set<uint32_t> keys;
  std::string word;
  while (words >> word) {
    if (word != "rkey" && word != "lkey") continue;
    words >> word;
    keys.insert(static_cast<uint32_t>(std::stoul(word, nullptr, 16)));
  }
  return keys;
}

class VerbsHostile : public testing::Test {
 protected:
  void SetUp() override {
    store_.resize(1 << 20);
    FillPattern(kStorePattern, store_);
    VerbsOptions options = test::GuestVerbsOptions();
    fabric_ = test::MakeVerbs(options, Clock::Real());
    ASSERT_NE(fabric_, nullptr);
    ListenOptions listen;
    listen.gather_regions = {{RegionType::kHost, store_}};
    auto listener = fabric_->Listen(listen);
    ASSERT_TRUE(listener.ok());
    listener_ = *std::move(listener);
    auto dialer = fabric_->Dial(kShape);
    ASSERT_TRUE(dialer.ok());
    victim_offer_ = *DecodeVerbsOffer((*dialer)->offer());
    const auto answer = listener_->Invite((*dialer)->offer(), kShape, "", 1, Soon());
    ASSERT_TRUE(answer.ok());
    victim_answer_ = DecodeVerbsAnswer(*answer, victim_offer_)->end;
    std::vector<AcceptedLane> accepted;
    auto lane = test::ConnectBeside(**dialer, *answer, *listener_, &accepted);
    ASSERT_TRUE(lane.ok() && accepted.size() == 1) << lane.status();
    victim_ = {*std::move(lane), std::move(accepted[0].lane)};
    UseVictim();  // copied, and its registration requested
    test::AwaitUse(*fabric_, [](const VerbsUse& use) { return use.regions == 5; });
    UseVictim();
  }
  void TearDown() override {
    victim_ = {};
    listener_.reset();
    test::AwaitUse(*fabric_, VerbsUse{});
    fabric_.reset();
    EXPECT_EQ(test::KernelResources(), before_);
  }

  // Replies from the store: leaves its pattern in every slot of the landing region.
  void UseVictim() {
    for (int i = 0; i < 4; ++i) {
      const std::optional<uint32_t> slot = victim_.request->Acquire();
      ASSERT_TRUE(slot.has_value());
      ASSERT_TRUE(victim_.request->Post(*slot, 8).ok());
      const std::optional<Arrival> arrival = AwaitRequest(*victim_.serve);
      ASSERT_TRUE(arrival.has_value()) << victim_.serve->status();
      const std::span<const std::byte> run = std::span<const std::byte>(store_).first(8192);
      ASSERT_TRUE(victim_.serve->PostGather(*slot, 0, {&run, 1}, RegionType::kHost).ok());
      ASSERT_TRUE(AwaitReply(*victim_.request).has_value()) << victim_.request->status();
      held_.push_back(*slot);
    }
    CheckUntouched();
    for (uint32_t slot : held_) victim_.request->Release(slot);
    held_.clear();
  }
  void CheckUntouched() {
    EXPECT_TRUE(HasPattern(kStorePattern, store_));
    for (uint32_t slot = 0; slot < kShape.slot_count; ++slot) {
      EXPECT_TRUE(HasPattern(kStorePattern, victim_.request->reply(slot))) << "slot " << slot;
    }
  }

  // A fresh lane to the listener; null if it was not accepted.
  std::unique_ptr<ServeLane> ServeRaw(RawPeer& raw, int receives = 16) {
    const VerbsEndFrame offer = raw.Offer(kShape);
    const auto answer = listener_->Invite(EncodeVerbsOffer(offer), kShape, "", 1, Soon());
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) return nullptr;
    const auto holder = DecodeVerbsAnswer(*answer, offer);
    raw.PostReceives(receives, 0);
    raw.Connect(holder->end);
    EXPECT_EQ(raw.Hello(*holder), IBV_WC_SUCCESS);
    auto accepted = test::AcceptOne(*listener_);
    return accepted ? std::move(accepted->lane) : nullptr;
  }

  // A fresh lane of ours to the attacker as holder.
  std::unique_ptr<RequestLane> RequestRaw(RawPeer& raw, VerbsEndFrame* offer) {
    auto dialer = fabric_->Dial(kShape);
    EXPECT_TRUE(dialer.ok());
    *offer = *DecodeVerbsOffer((*dialer)->offer());
    raw.PostReceives(8, 4096);
    raw.Connect(*offer);
    VerbsAnswer answer = {RandomInvitationKey(), raw.Describe(kShape)};
    answer.end.generation = offer->generation;
    answer.end.segment_bytes = 64 << 10;
    absl::StatusOr<std::unique_ptr<RequestLane>> lane = absl::UnknownError("not run");
    std::thread connector([&] { lane = (*dialer)->Connect(EncodeVerbsAnswer(answer), Soon()); });
    EXPECT_EQ(raw.Await(false)->status, IBV_WC_SUCCESS);
    EXPECT_EQ(raw.Send(IBV_WR_SEND_WITH_IMM, 0, EncodeImmediate(VerbsControl::kWelcome)),
              IBV_WC_SUCCESS);
    connector.join();
    EXPECT_TRUE(lane.ok()) << lane.status();
    return lane.ok() ? *std::move(lane) : nullptr;
  }

  // What an attacker would want, and the keys it may have.
  struct Place {
    const char* what;
    uint64_t address;
  };
  std::vector<Place> Places() {
    return {{"the store", reinterpret_cast<uint64_t>(store_.data())},
            {"a victim's landing region", victim_offer_.landing}};
  }
  std::set<uint32_t> Keys() {
    std::set<uint32_t> keys = KernelKeys();
    EXPECT_GE(keys.size(), 5u);  // both ends' two, and the store's
    for (uint32_t key : {victim_offer_.landing_key, 0u, 1u, 0xffffffffu}) keys.insert(key);
    return keys;
  }

  const std::string before_ = test::KernelResources();
  std::vector<std::byte> store_;
  std::unique_ptr<VerbsFabric> fabric_;
  std::unique_ptr<Listener> listener_;
  VerbsEndFrame victim_offer_, victim_answer_;
  LanePair victim_;
  std::vector<uint32_t> held_;
};

constexpr std::byte kMark = std::byte{0xee};

void Mark(RawPeer& raw) { std::fill(raw.memory().begin(), raw.memory().end(), kMark); }
bool StillMarked(RawPeer& raw) {
  return std::all_of(raw.memory().begin(), raw.memory().begin() + 8192,
                     [](std::byte b) { return b == kMark; });
}

TEST_F(VerbsHostile, NoKeyOpensTheHolder) {
  int tries = 0;
  for (const uint32_t key : Keys()) {
    for (const Place& place : Places()) {
      for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
        SCOPED_TRACE(absl::StrFormat("%s, key 0x%x, opcode %d", place.what, key, opcode));
        RawPeer raw;
        const std::unique_ptr<ServeLane> lane = ServeRaw(raw);
        ASSERT_NE(lane, nullptr);
        Mark(raw);
        EXPECT_NE(raw.Send(opcode, 8192, 0, place.address, key), IBV_WC_SUCCESS);
        EXPECT_TRUE(StillMarked(raw));
        ++tries;
      }
    }
  }
  RecordProperty("tries", tries);
  CheckUntouched();
  UseVictim();
}

TEST_F(VerbsHostile, NoKeyButItsOwnOpensARequester) {
  for (const uint32_t key : Keys()) {
    for (const Place& place : Places()) {
      for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
        SCOPED_TRACE(absl::StrFormat("%s, key 0x%x, opcode %d", place.what, key, opcode));
        RawPeer raw;
        VerbsEndFrame offer;
        const std::unique_ptr<RequestLane> lane = RequestRaw(raw, &offer);
        ASSERT_NE(lane, nullptr);
        Mark(raw);
        EXPECT_NE(raw.Send(opcode, 8192, 0, place.address, key), IBV_WC_SUCCESS);
        EXPECT_TRUE(StillMarked(raw));
      }
    }
  }
  // Its own key: not for reading, and not beyond the region, before or behind it.
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    RawPeer raw;
    VerbsEndFrame offer;
    const std::unique_ptr<RequestLane> lane = RequestRaw(raw, &offer);
    ASSERT_NE(lane, nullptr);
    Mark(raw);
    const uint64_t end = offer.landing + uint64_t{offer.reply_stride} * offer.slot_count;
    const uint64_t at[] = {offer.landing, offer.landing - 64, end, end - 8192 + 1};
    EXPECT_NE(
        raw.Send(i == 0 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 8192, 0, at[i], offer.landing_key),
        IBV_WC_SUCCESS);
    EXPECT_TRUE(StillMarked(raw));
  }
  CheckUntouched();
  UseVictim();
}

// Numbers of others' queue pairs, the victim's two among them, with packet sequences that are not
// theirs: what is out of sequence is not executed.
TEST_F(VerbsHostile, NoQueuePairNumberOpensAnything) {
  std::set<uint32_t> numbers = {victim_offer_.qp_number, victim_answer_.qp_number};
  for (uint32_t i = 1; i <= 8; ++i) {
    numbers.insert(std::max(2u, victim_offer_.qp_number - i));
    numbers.insert(victim_answer_.qp_number + i);
  }
  for (const uint32_t number : numbers) {
    for (const ibv_wr_opcode opcode :
         {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM}) {
      SCOPED_TRACE(absl::StrFormat("queue pair 0x%x, opcode %d", number, opcode));
      RawPeer raw;
      VerbsEndFrame target = raw.Describe(kShape);
      target.qp_number = number;
      raw.Connect(target, /*timeout=*/10, /*retries=*/1);
      Mark(raw);
      raw.Post(opcode, 8192, EncodeImmediate(0, 0), victim_offer_.landing,
               victim_offer_.landing_key);
      const auto completion = raw.Await(true);
      ASSERT_TRUE(completion.has_value());
      // A packet "from the past" is acknowledged and not executed: success means nothing.
      EXPECT_TRUE(StillMarked(raw));
      CheckUntouched();
    }
  }
  CheckUntouched();
}

// --- messages that break the lane's rules ---

TEST_F(VerbsHostile, BadHellosAreDropped) {
  const VerbsUse before = fabric_->use();
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    RawPeer raw;
    const VerbsEndFrame offer = raw.Offer(kShape);
    const auto answer = listener_->Invite(EncodeVerbsOffer(offer), kShape, "", 1, Soon());
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto holder = DecodeVerbsAnswer(*answer, offer);
    raw.PostReceives(4, 0);
    raw.Connect(holder->end);
    VerbsHello hello;
    hello.hello.invitation = holder->key.id;
    hello.hello.token = holder->key.token;
    hello.generation = offer.generation;
    uint32_t bytes = sizeof(hello);
    if (i == 0) hello.hello.token[15] ^= 1;
    if (i == 1) hello.hello.invitation += 1;
    if (i == 2) hello.generation += 1;  // a hello for an earlier use of this queue pair's number
    if (i == 3) bytes -= 1;
    if (i == 4) hello.hello.version += 1;
    if (i == 5) {
      EXPECT_EQ(raw.Send(IBV_WR_SEND_WITH_IMM, 40, EncodeImmediate(0, 0)), IBV_WC_SUCCESS);
    } else {
      EXPECT_EQ(raw.SendHello(hello, bytes), IBV_WC_SUCCESS);
    }
    const Instant deadline = Soon();
    while (!(fabric_->use() == before) && Clock::Real()->Now() < deadline) {
      test::WaitReadable(listener_->event_fd(), std::chrono::milliseconds(10));
      ASSERT_FALSE(listener_->Accept().has_value());
    }
    EXPECT_EQ(fabric_->use(), before);
  }
}

TEST_F(VerbsHostile, BadRequestsEndTheirLane) {
  for (int i = 0; i < 7; ++i) {
    SCOPED_TRACE(i);
    RawPeer raw;
    const std::unique_ptr<ServeLane> lane = ServeRaw(raw);
    ASSERT_NE(lane, nullptr);
    const auto send = [&](uint32_t bytes, uint32_t immediate) {
      raw.Post(IBV_WR_SEND_WITH_IMM, bytes, immediate);
    };
    if (i == 0) send(100, EncodeImmediate(4, 0));   // no such slot
    if (i == 1) send(4097, EncodeImmediate(0, 0));  // more than a slot holds
    if (i == 2) send(64, EncodeImmediate(0, 1));    // segments are for replies
    if (i == 3) send(0, 0x80000077);                // no such control message
    if (i == 4) send(0, EncodeImmediate(VerbsControl::kPong));
    if (i == 5) raw.Post(IBV_WR_SEND, 8);  // no immediate
    if (i == 6) {
      send(1, EncodeImmediate(1, 0));
      send(1, EncodeImmediate(1, 0));  // before its reply
    }
    EXPECT_EQ(AwaitDown(*lane).code(), absl::StatusCode::kInvalidArgument) << lane->status();
  }
  UseVictim();
}

TEST_F(VerbsHostile, BadRepliesEndTheirLane) {
  for (int i = 0; i < 7; ++i) {
    SCOPED_TRACE(i);
    RawPeer raw;
    VerbsEndFrame offer;
    const std::unique_ptr<RequestLane> lane = RequestRaw(raw, &offer);
    ASSERT_NE(lane, nullptr);
    const std::optional<uint32_t> slot = lane->Acquire();
    ASSERT_TRUE(lane->Post(*slot, 100).ok());
    EXPECT_EQ(raw.Await(false)->status, IBV_WC_SUCCESS);
    const auto write = [&](uint32_t bytes, uint32_t immediate) {
      raw.Post(IBV_WR_RDMA_WRITE_WITH_IMM, bytes, immediate, offer.landing, offer.landing_key);
    };
    if (i == 0) write(8, EncodeImmediate((*slot + 1) % 4, 0));  // awaits nothing
    if (i == 1) write(8, EncodeImmediate(200, 0));              // no such slot
    if (i == 2) write(8193, EncodeImmediate(*slot, 0));         // more than a slot holds
    if (i == 3) write(8, EncodeImmediate(*slot, 0x7fffff));     // many times more
    if (i == 4) raw.Post(IBV_WR_SEND_WITH_IMM, 0, EncodeImmediate(*slot, 0));  // not by RDMA
    if (i == 5) raw.Post(IBV_WR_SEND_WITH_IMM, 0, EncodeImmediate(VerbsControl::kPong));
    if (i == 6) raw.Post(IBV_WR_SEND_WITH_IMM, 8, EncodeImmediate(VerbsControl::kBye));
    EXPECT_EQ(AwaitDown(*lane).code(), absl::StatusCode::kInvalidArgument) << lane->status();
  }
  UseVictim();
}

// More messages than there are receives: the sender waits. The lane ends, since slots are posted
// again before their replies, and its neighbours live.
TEST_F(VerbsHostile, FloodsWaitOutside) {
  RawPeer raw;
  const std::unique_ptr<ServeLane> lane = ServeRaw(raw);
  ASSERT_NE(lane, nullptr);
  for (uint32_t i = 0; i < 32; ++i) raw.Post(IBV_WR_SEND_WITH_IMM, 4, EncodeImmediate(i % 4, 0));
  EXPECT_EQ(AwaitDown(*lane).code(), absl::StatusCode::kInvalidArgument) << lane->status();
  CheckUntouched();
  UseVictim();
}

}  // namespace
}  // namespace ckv
