// Goal: over verbs, replies are sent from where rows are stored, of any size; peers that break the
// rules, break down or never were cost their own lane only; nothing is left behind. Method: in the
// guest, against this fabric's own other end or a raw libibverbs peer. After every test the
// fabric's counts are zero and the kernel's as before.

#include "transport/verbs/verbs_fabric.h"

#include <bit>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/verbs/verbs_fixture.h"
#include "transport/verbs/verbs_connection.h"
#include "transport/verbs/verbs_region.h"

namespace ckv {
namespace {

using test::AwaitDown;
using test::AwaitRequest;
using test::CheckGather;
using test::Gathered;
using test::LanePair;
using test::MakeLane;
using test::RawPeer;
using test::Soon;
using test::Store;
using test::VerbsTest;

TEST_F(VerbsTest, GathersFromTheStore) {
  const std::vector<std::byte> elsewhere = Store(3000);
  VerbsOptions options = test::GuestVerbsOptions();
  options.gather_segment_bytes = 1 << 20;
  Start(options, Store(4 << 20));
  LanePair pair = MakeLane(*fabric_, *listener_, {2, 64, 3 << 20});
  ASSERT_TRUE(pair.request && pair.serve);
  const std::span<const std::byte> all = store_;
  const uint64_t before = fabric_->use().regions;
  // Copied, and then sent from one piece of the store.
  CheckGather(pair, {64, {all.subspan(100, 2000), all.subspan(9000, 1)}});
  AwaitRegions(before + 1);
  CheckGather(pair, {64, {all.subspan(100, 2000), all.subspan(9000, 1)}});
  // Across the bounds of pieces: all four are touched.
  const size_t piece = 1 << 20;
  for (int i = 0; i < 2; ++i) {
    CheckGather(pair, {64, {all.subspan(piece - 10, 20), all.subspan(2 * piece - 1, piece + 2)}});
    AwaitRegions(before + 4);
  }
  // Some from elsewhere, none at all, nothing but runs, empty runs.
  CheckGather(pair, {64, {all.first(10), elsewhere, all.last(10)}});
  CheckGather(pair, {64, {}});
  CheckGather(pair, {0, {all.first(100)}});
  CheckGather(pair, {0, {}});
  CheckGather(pair, {1, {all.first(0), all.subspan(7, 7), all.first(0)}});
  // As many as are allowed, each across a bound: more than a work request takes, so copied.
  Gathered many;
  for (size_t i = 0; i < kGatherRunCountMax; ++i) {
    many.runs.push_back(all.subspan((1 + i % 3) * piece - 1 - i, 20 + i));
  }
  CheckGather(pair, many);
  // Memory that only begins in the store is elsewhere.
  EXPECT_EQ(fabric_->use().regions, before + 4);
}

// Two regions of this process are sent in place. One of a device, whose dmabuf this kernel does not
// take, is refused, and the slot can be answered from a copy.
TEST_F(VerbsTest, RegionsAreSentByTheirType) {
  const std::vector<std::byte> pinned = Store(1 << 20);
  const std::span<const std::byte> device(std::bit_cast<const std::byte*>(uintptr_t{1} << 40),
                                          1 << 20);  // not mapped
  Start(test::GuestVerbsOptions(), Store(1 << 20));
  ListenOptions listen;
  listen.gather_regions = {{RegionType::kHost, store_},
                           {RegionType::kPinned, pinned},
                           {RegionType::kDmabuf, device, /*dmabuf_fd=*/0}};
  const auto listener = fabric_->Listen(listen);
  ASSERT_TRUE(listener.ok()) << listener.status();
  LanePair pair = MakeLane(*fabric_, **listener, {2, 64, 1 << 20});
  ASSERT_TRUE(pair.request && pair.serve);
  const uint64_t before = fabric_->use().regions;
  for (int i = 0; i < 2; ++i) {  // copied, and then sent in place
    CheckGather(pair, {64, {std::span(store_).subspan(100, 2000), std::span(pinned).last(3000)}});
    AwaitRegions(before + 2);
  }
  for (int i = 0; i < 3; ++i) {
    const std::optional<uint32_t> slot = pair.request->Acquire();
    ASSERT_TRUE(slot.has_value() && pair.request->Post(*slot, 1).ok());
    const std::optional<Arrival> arrival = test::AwaitRequest(*pair.serve);
    ASSERT_TRUE(arrival.has_value());
    const auto run = device.subspan(64, 500);
    const absl::Status refused =
        pair.serve->PostGather(arrival->slot, 64, {&run, 1}, RegionType::kDmabuf);
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
    EXPECT_FALSE(pair.serve->gathering(arrival->slot));
    test::FillPattern(8, pair.serve->reply(arrival->slot).first(564));
    ASSERT_TRUE(pair.serve->Post(arrival->slot, 564).ok());
    const std::optional<Completion> completion = test::AwaitReply(*pair.request);
    ASSERT_TRUE(completion.has_value()) << pair.request->status();
    EXPECT_TRUE(test::HasPattern(8, pair.request->reply(*slot).first(completion->bytes)));
    pair.request->Release(*slot);
  }
  AwaitRegions(before + 2);  // one that is being refused counts for a moment
  pair = {};
}

TEST_F(VerbsTest, PushesMoreThanAMessageHolds) {
  Start(test::GuestVerbsOptions(), Store(size_t{64} << 20));
  LanePair pair = MakeLane(*fabric_, *listener_, {1, 64, kSlotBytesMax});
  ASSERT_TRUE(pair.request && pair.serve);
  const std::span<const std::byte> all = store_;
  const uint64_t before = fabric_->use().regions;
  for (int i = 0; i < 2; ++i) {  // copied, and then sent in place
    CheckGather(pair, {64, {all.subspan(32 << 20, 20 << 20), all.first((44 << 20) - 64)}});
    AwaitRegions(before + 1);
  }
}

TEST_F(VerbsTest, CopiesWhenALimitIsReached) {
  VerbsOptions options = test::GuestVerbsOptions();
  options.gather_segment_bytes = 1 << 20;
  options.regions.per_account_max = 3;  // two for the lane, one for the store
  Start(options, Store(4 << 20));
  LanePair pair = MakeLane(*fabric_, *listener_, {2, 64, 1 << 20});
  ASSERT_TRUE(pair.request && pair.serve);
  const std::span<const std::byte> all = store_;
  const uint64_t before = fabric_->use().regions;
  for (int i = 0; i < 2; ++i) {
    CheckGather(pair, {64, {all.first(1000), all.last(1000), all.subspan(5000, 1000)}});
    AwaitRegions(before + 1);
  }
  CheckGather(pair, {64, {all.last(2000)}});
}

// The address is the peer's to choose, the account is not.
TEST_F(VerbsTest, LimitsOfAnAccountHoldWhateverAddressIsDeclared) {
  VerbsOptions options = test::GuestVerbsOptions();
  options.queue_pairs.per_account_max = 2;
  Start(options);
  std::vector<LanePair> lanes;
  lanes.push_back(MakeLane(*fabric_, *listener_, test::kVerbsShape, Soon(), "a"));
  lanes.push_back(MakeLane(*fabric_, *listener_, test::kVerbsShape, Soon(), "a"));
  auto dialer = fabric_->Dial(test::kVerbsShape);
  ASSERT_TRUE(dialer.ok());
  VerbsEndFrame offer = *DecodeVerbsOffer((*dialer)->offer());
  const uint8_t here = offer.gid[15];
  const auto invite = [&](std::string_view account, uint8_t host) {
    offer.gid[15] = host;
    return listener_->Invite(EncodeVerbsOffer(offer), test::kVerbsShape, account, 1, Soon())
        .status();
  };
  for (const uint8_t host : {here, uint8_t{77}, uint8_t{78}}) {
    const absl::Status refused = invite("a", host);
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_NE(refused.message().find("this account"), absl::string_view::npos) << refused;
  }
  // Another account is accepted from the very same address, and from one without lanes.
  EXPECT_TRUE(invite("b", here).ok());
  EXPECT_TRUE(invite("b", 77).ok());
  EXPECT_EQ(invite("b", 78).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(invite("", here).ok());
  // A lane that is gone gives back what it had, once.
  const VerbsUse before = fabric_->use();
  lanes.pop_back();
  test::AwaitUse(*fabric_, [&](const VerbsUse& use) {
    return use.queue_pairs == before.queue_pairs - 2 && use.regions < before.regions;
  });
  EXPECT_TRUE(invite("a", 78).ok());
  EXPECT_EQ(invite("a", 77).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(VerbsTest, WorksWithoutWindows) {
  VerbsOptions options = test::GuestVerbsOptions();
  Start(options);
  EXPECT_TRUE(fabric_->windows());  // soft-RoCE has them
  listener_.reset();
  options.windows = false;
  Start(options);
  EXPECT_FALSE(fabric_->windows());
  LanePair pair = MakeLane(*fabric_, *listener_, test::kVerbsShape);
  ASSERT_TRUE(pair.request && pair.serve);
  CheckGather(pair, {64, {}});
}

// This kernel takes no dmabuf for its device: Register reports that, and its budget is unchanged.
TEST_F(VerbsTest, DmabufIsRefusedWhereTheKernelHasNone) {
  auto device = VerbsDevice::Open(test::GuestVerbsOptions());
  ASSERT_TRUE(device.ok()) << device.status();
  auto domain = VerbsDomain::Create(*device, std::nullopt);
  ASSERT_TRUE(domain.ok());
  const auto region =
      VerbsRegion::Register(*domain, DmabufMemory{0, 0, 4096, 0}, VerbsAccess::kSend);
  EXPECT_EQ(region.status().code(), absl::StatusCode::kUnimplemented) << region.status();
  EXPECT_EQ((*device)->budget().use(), VerbsUse{});
}

// No page faults by the device here: memory is pinned, and that is all the fabric needs.
TEST_F(VerbsTest, NeedsNoOnDemandPaging) {
  auto device = VerbsDevice::Open(test::GuestVerbsOptions());
  ASSERT_TRUE(device.ok()) << device.status();
  ibv_device_attr_ex limits = {};
  ASSERT_EQ(ibv_query_device_ex((*device)->context(), nullptr, &limits), 0);
  EXPECT_EQ(limits.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_SEND, 0u);
}

TEST_F(VerbsTest, ChecksTheMachine) {
  const auto code = [](void (*change)(VerbsOptions&)) {
    VerbsOptions options = test::GuestVerbsOptions();
    change(options);
    return CheckVerbs(options).code();
  };
  EXPECT_EQ(code([](VerbsOptions&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](VerbsOptions& o) { o.device = "rxe0"; }), absl::StatusCode::kOk);
  EXPECT_EQ(code([](VerbsOptions& o) { o.device = "rxe7"; }), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code([](VerbsOptions& o) { o.port = 2; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](VerbsOptions& o) { o.gid_index = 1; }), absl::StatusCode::kOk);
  EXPECT_EQ(code([](VerbsOptions& o) { o.gid_index = 99; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](VerbsOptions& o) { o.mtu_bytes = 512; }), absl::StatusCode::kOk);
  EXPECT_EQ(code([](VerbsOptions& o) { o.mtu_bytes = 4096; }), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(std::system("ip link set rdma0 down"), 0);
  const absl::Status down = CheckVerbs(test::GuestVerbsOptions());
  EXPECT_EQ(down.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(down.message().find("ip link set"), absl::string_view::npos) << down;
  ASSERT_EQ(std::system("ip link set rdma0 up"), 0);
}

// --- what breaks ---

TEST_F(VerbsTest, ADisabledPortEndsItsLanes) {
  Start(test::GuestVerbsOptions());
  LanePair pair = MakeLane(*fabric_, *listener_, test::kVerbsShape);
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = pair.request->Acquire();
  ASSERT_EQ(std::system("ip link set rdma0 down"), 0);
  EXPECT_EQ(AwaitDown(*pair.request).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(AwaitDown(*pair.serve).code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(pair.serve->status().message().find("port"), absl::string_view::npos)
      << pair.serve->status();
  EXPECT_EQ(pair.request->Post(*slot, 1).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(fabric_->Dial(test::kVerbsShape).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(std::system("ip link set rdma0 up"), 0);
  LanePair next = MakeLane(*fabric_, *listener_, test::kVerbsShape);
  ASSERT_TRUE(next.request && next.serve);
  CheckGather(next, {64, {}});
}

TEST_F(VerbsTest, RequesterFailsBetweenRequestAndReply) {
  VerbsOptions options;  // found within half a second
  Start(options);
  auto raw = std::make_unique<RawPeer>();
  std::unique_ptr<ServeLane> lane = ServeRaw(*raw);
  ASSERT_NE(lane, nullptr);
  EXPECT_EQ(raw->Send(IBV_WR_SEND_WITH_IMM, 100, EncodeImmediate(2, 0)), IBV_WC_SUCCESS);
  const std::optional<Arrival> arrival = AwaitRequest(*lane);
  ASSERT_TRUE(arrival.has_value());
  EXPECT_EQ(arrival->slot, 2u);
  EXPECT_EQ(arrival->bytes, 100u);
  raw->Fail();
  ASSERT_TRUE(lane->Post(arrival->slot, 4000).ok());
  EXPECT_EQ(AwaitDown(*lane).code(), absl::StatusCode::kUnavailable);
}

// A good peer's probes and pings are answered even while nothing else is sent.
TEST_F(VerbsTest, IdleLanesStayUp) {
  VerbsOptions options = test::GuestVerbsOptions();
  options.probe_interval_ms = 10;
  Start(options);
  LanePair pair = MakeLane(*fabric_, *listener_, test::kVerbsShape);
  ASSERT_TRUE(pair.request && pair.serve);
  Completion completion;
  Arrival arrival;
  for (int round = 0; round < 60; ++round) {  // a probe is due at every other wake-up at least
    EXPECT_EQ(pair.request->Poll({&completion, 1}), 0u);
    EXPECT_EQ(pair.serve->Poll({&arrival, 1}), 0u);
    Lane& lane = round % 2 == 0 ? static_cast<Lane&>(*pair.request) : *pair.serve;
    if (!lane.Arm()) continue;
    EXPECT_TRUE(test::WaitReadable(lane.event_fd()));
    lane.Disarm();
  }
  EXPECT_TRUE(pair.request->status().ok()) << pair.request->status();
  EXPECT_TRUE(pair.serve->status().ok()) << pair.serve->status();
  CheckGather(pair, {64, {}});
}

// Nothing under way: the holder's own probe finds out.
TEST_F(VerbsTest, RequesterGoneSilently) {
  Start({});
  auto raw = std::make_unique<RawPeer>();
  std::unique_ptr<ServeLane> lane = ServeRaw(*raw);
  ASSERT_NE(lane, nullptr);
  raw.reset();
  EXPECT_EQ(AwaitDown(*lane).code(), absl::StatusCode::kUnavailable);
}

TEST_F(VerbsTest, HolderFailsBetweenRequestAndReply) {
  Start({});
  RawPeer raw;
  absl::Status status;
  std::unique_ptr<RequestLane> lane = RequestRaw(raw, 8, &status);
  ASSERT_NE(lane, nullptr) << status;
  const std::optional<uint32_t> slot = lane->Acquire();
  ASSERT_TRUE(lane->Post(*slot, 1000).ok());
  EXPECT_EQ(raw.Await(false)->status, IBV_WC_SUCCESS);
  raw.Fail();
  EXPECT_EQ(AwaitDown(*lane).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(lane->in_flight(), 1u);
}

// A holder whose queue pair lives and whose software does not.
TEST_F(VerbsTest, HolderThatNeverPolls) {
  VerbsOptions options;
  options.probe_interval_ms = 50;
  options.silence_ms_max = 300;
  Start(options);
  RawPeer raw;
  absl::Status status;
  std::unique_ptr<RequestLane> lane = RequestRaw(raw, 8, &status);
  ASSERT_NE(lane, nullptr) << status;
  const absl::Status down = AwaitDown(*lane);
  EXPECT_EQ(down.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(down.message().find("has not polled"), absl::string_view::npos) << down;
}

// Its device has taken the hello, but no process will ever answer it.
TEST_F(VerbsTest, HolderGoneBeforeItsWelcome) {
  VerbsOptions options;
  options.probe_interval_ms = 50;
  Start(options);
  RawPeer raw;
  absl::Status status;
  EXPECT_EQ(RequestRaw(raw, 8, &status, nullptr, [&] { return raw.Fail(), false; }), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

// A ping before the lane is accepted does no harm; at both ends.
TEST_F(VerbsTest, HolderSlowToWelcome) {
  VerbsOptions options;
  options.probe_interval_ms = 50;
  Start(options);
  RawPeer slow;
  absl::Status status;
  const auto lane = RequestRaw(slow, 8, &status, nullptr, [&] {
    const auto ping = slow.Await(false);
    EXPECT_TRUE(ping.has_value() && ntohl(ping->imm_data) == EncodeImmediate(VerbsControl::kPing));
    return true;
  });
  ASSERT_NE(lane, nullptr) << status;
  EXPECT_EQ(slow.Send(IBV_WR_SEND_WITH_IMM, 0, EncodeImmediate(VerbsControl::kPong)),
            IBV_WC_SUCCESS);
  Completion nothing;
  EXPECT_EQ(lane->Poll({&nothing, 1}), 0u);
  EXPECT_TRUE(lane->status().ok()) << lane->status();

  RawPeer eager;
  const VerbsEndFrame offer = eager.Offer(test::kVerbsShape);
  const auto answer = listener_->Invite(EncodeVerbsOffer(offer), test::kVerbsShape, "", 1, Soon());
  ASSERT_TRUE(answer.ok()) << answer.status();
  const auto holder = DecodeVerbsAnswer(*answer, offer);
  eager.PostReceives(16, 0);
  eager.Connect(holder->end);
  EXPECT_EQ(eager.Hello(*holder), IBV_WC_SUCCESS);
  EXPECT_EQ(eager.Send(IBV_WR_SEND_WITH_IMM, 0, EncodeImmediate(VerbsControl::kPing)),
            IBV_WC_SUCCESS);
  auto accepted = test::AcceptOne(*listener_);
  ASSERT_TRUE(accepted.has_value());
  Arrival none;
  EXPECT_EQ(accepted->lane->Poll({&none, 1}), 0u);
  for (VerbsControl expected : {VerbsControl::kWelcome, VerbsControl::kPong}) {
    const auto message = eager.Await(false);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(ntohl(message->imm_data), EncodeImmediate(expected));
  }
}

TEST_F(VerbsTest, HolderNotReady) {
  Start({});
  RawPeer raw;
  absl::Status status;
  EXPECT_EQ(RequestRaw(raw, 0, &status), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("posted no receive"), absl::string_view::npos) << status;
}

TEST_F(VerbsTest, RequesterNotReady) {
  Start({});
  RawPeer raw;
  const VerbsEndFrame offer = raw.Offer(test::kVerbsShape);
  const auto answer = listener_->Invite(EncodeVerbsOffer(offer), test::kVerbsShape, "", 1, Soon());
  ASSERT_TRUE(answer.ok());
  const auto holder = DecodeVerbsAnswer(*answer, offer);
  raw.Connect(holder->end);  // and no receives for the welcome
  EXPECT_EQ(raw.Hello(*holder), IBV_WC_SUCCESS);
  auto accepted = test::AcceptOne(*listener_);
  ASSERT_TRUE(accepted.has_value());
  EXPECT_EQ(AwaitDown(*accepted->lane).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ckv
