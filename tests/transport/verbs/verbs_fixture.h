// Lanes over the guest's device, with this fabric's own other end or a raw libibverbs peer. After
// every test the fabric's counts are zero and the kernel's as before.

#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/lane_pair.h"
#include "tests/transport/verbs/verbs_case.h"
#include "tests/transport/verbs/verbs_raw_peer.h"
#include "transport/verbs/verbs_fabric.h"
#include "transport/verbs/verbs_side_thread.h"

namespace ckv::test {

inline constexpr LaneShape kVerbsShape = {4, 4096, 8192};

class VerbsTest : public ::testing::Test {
 protected:
  void Start(const VerbsOptions& options, std::vector<std::byte> store = {},
             std::shared_ptr<VerbsSideThread> side = std::make_shared<VerbsSideThread>()) {
    auto fabric = NewVerbsFabric(options, Clock::Real(), std::move(side));
    ASSERT_TRUE(fabric.ok()) << fabric.status();
    fabric_ = *std::move(fabric);
    store_ = std::move(store);
    ListenOptions listen;
    listen.gather_regions = {{RegionType::kHost, store_}};
    auto listener = fabric_->Listen(listen);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }
  void TearDown() override {
    listener_.reset();
    if (fabric_ != nullptr) AwaitUse(*fabric_, VerbsUse{});
    fabric_.reset();
    EXPECT_EQ(KernelResources(), before_);
  }

  // A lane between `raw` and a serve lane of ours.
  std::unique_ptr<ServeLane> ServeRaw(RawPeer& raw, const LaneShape& shape = kVerbsShape) {
    const VerbsEndFrame offer = raw.Offer(shape);
    const auto answer = listener_->Invite(EncodeVerbsOffer(offer), shape, "", 1, Soon());
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) return nullptr;
    const auto holder = DecodeVerbsAnswer(*answer, offer);
    EXPECT_TRUE(holder.ok()) << holder.status();
    raw.PostReceives(16, 0);
    raw.Connect(holder->end);
    EXPECT_EQ(raw.Hello(*holder), IBV_WC_SUCCESS);
    auto accepted = AcceptOne(*listener_);
    EXPECT_TRUE(accepted.has_value());
    return accepted ? std::move(accepted->lane) : nullptr;
  }

  // A request lane of ours, whose holder is `raw`; `greeted` runs after its hello, and
  // says whether it gets a welcome.
  std::unique_ptr<RequestLane> RequestRaw(
      RawPeer& raw, int receives, absl::Status* status, VerbsEndFrame* offer_out = nullptr,
      const std::function<bool()>& greeted = [] { return true; }) {
    auto dialer = fabric_->Dial(kVerbsShape);
    EXPECT_TRUE(dialer.ok()) << dialer.status();
    const auto offer = DecodeVerbsOffer((*dialer)->offer());
    EXPECT_TRUE(offer.ok()) << offer.status();
    if (offer_out != nullptr) *offer_out = *offer;
    raw.PostReceives(receives, 4096);
    raw.Connect(*offer);
    VerbsAnswer answer = {RandomInvitationKey(), raw.Describe(kVerbsShape)};
    answer.end.generation = offer->generation;
    answer.end.segment_bytes = 64 << 10;
    absl::StatusOr<std::unique_ptr<RequestLane>> lane = absl::UnknownError("not run");
    std::thread connector([&] { lane = (*dialer)->Connect(EncodeVerbsAnswer(answer), Soon()); });
    if (receives > 0) {
      EXPECT_EQ(raw.Await(false)->status, IBV_WC_SUCCESS);
      if (greeted()) {
        EXPECT_EQ(raw.Send(IBV_WR_SEND_WITH_IMM, 0, EncodeImmediate(VerbsControl::kWelcome)),
                  IBV_WC_SUCCESS);
      }
    }
    connector.join();
    *status = lane.status();
    return lane.ok() ? *std::move(lane) : nullptr;
  }

  void AwaitRegions(uint64_t count) {
    AwaitUse(*fabric_, [&](const VerbsUse& use) { return use.regions == count; });
  }

  const std::string before_ = KernelResources();
  std::vector<std::byte> store_;  // what replies are sent from; outlives the listener
  std::unique_ptr<VerbsFabric> fabric_;
  std::unique_ptr<Listener> listener_;
};

struct Gathered {
  uint32_t head_bytes = 64;
  std::vector<std::span<const std::byte>> runs;
};

// One request, answered by PostGather; what arrives is the head, then the runs.
inline void CheckGather(LanePair& pair, const Gathered& reply) {
  const std::optional<uint32_t> slot = pair.request->Acquire();
  ASSERT_TRUE(slot.has_value());
  ASSERT_TRUE(pair.request->Post(*slot, 1).ok());
  const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
  ASSERT_TRUE(arrival.has_value());
  FillPattern(77, pair.serve->reply(arrival->slot).first(reply.head_bytes));
  ASSERT_TRUE(
      pair.serve->PostGather(arrival->slot, reply.head_bytes, reply.runs, RegionType::kHost).ok());
  const std::optional<Completion> completion = AwaitReply(*pair.request);
  ASSERT_TRUE(completion.has_value()) << pair.request->status();
  std::span<const std::byte> got = pair.request->reply(*slot).first(completion->bytes);
  ASSERT_TRUE(HasPattern(77, got.first(reply.head_bytes)));
  got = got.subspan(reply.head_bytes);
  for (const std::span<const std::byte> run : reply.runs) {
    ASSERT_GE(got.size(), run.size());
    ASSERT_EQ(std::memcmp(got.data(), run.data(), run.size()), 0);
    got = got.subspan(run.size());
  }
  EXPECT_TRUE(got.empty());
  // The requester has it; the holder's device says so a little later.
  const Instant deadline = Soon();
  Arrival none;
  while (pair.serve->gathering(arrival->slot) && Clock::Real()->Now() < deadline) {
    EXPECT_EQ(pair.serve->Poll({&none, 1}), 0u);
    sched_yield();
  }
  EXPECT_FALSE(pair.serve->gathering(arrival->slot));
  pair.request->Release(*slot);
}

inline std::vector<std::byte> Store(size_t bytes) {
  std::vector<std::byte> store(bytes);
  FillPattern(5, store);
  return store;
}

}  // namespace ckv::test
