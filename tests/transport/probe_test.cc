// Goal: Probe returns a lane's constants, or a typed error in time.
// Method: a holder that echoes, one that never answers, and one that answers wrongly; time from a
// clock that a holder advances, so that the figures are known.

#include "transport/probe.h"

#include <thread>

#include "gtest/gtest.h"
#include "tests/support/fault_fabric.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"
#include "transport/wire.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::LanePair;

constexpr LaneShape kProbeShape = {2, sizeof(RequestHeader) + 8000, sizeof(ReplyHeader) + 4000};

// Answers probes until the lane is down. Calls `before_reply` with the request's size in bytes.
template <typename Function>
void ServeProbes(ServeLane& lane, Function before_reply) {
  while (const std::optional<Arrival> arrival = test::AwaitRequest(lane)) {
    const auto request = lane.request(arrival->slot).first(arrival->bytes);
    const absl::StatusOr<RequestHeader> header = DecodeRequestHeader(request);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->session, 77u);
    EXPECT_EQ(header->epoch, 8u);
    before_reply(arrival->bytes);
    const uint32_t bytes = EncodeProbeReply(*header, request, lane.reply(arrival->slot));
    if (!lane.Post(arrival->slot, bytes).ok()) return;
  }
}

class ProbeTest : public testing::Test {
 protected:
  ProbeTest() : fabric_(NewLoopbackFabric(&clock_)) {
    options_.session = 77;
    options_.epoch = 8;
    auto listener = fabric_->Listen({});
    EXPECT_TRUE(listener.ok());
    listener_ = *std::move(listener);
    pair_ = test::MakeLane(*fabric_, *listener_, kProbeShape, kInstantMax);
  }

  ManualClock clock_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Listener> listener_;
  LanePair pair_;
  ProbeOptions options_;
};

// A fabric of 10 us and, for 8,000 bytes out and 4,000 back, another 120 us: 100 MB/s.
TEST_F(ProbeTest, MeasuresLatencyAndBandwidth) {
  std::thread holder([&] {
    ServeProbes(*pair_.serve, [&](uint32_t bytes) {
      clock_.Advance(std::chrono::microseconds(bytes == sizeof(RequestHeader) ? 10 : 130));
    });
  });
  const absl::StatusOr<ProbeResult> result = Probe(*pair_.request, clock_, options_);
  EXPECT_TRUE(result.ok()) << result.status();
  if (result.ok()) {
    EXPECT_DOUBLE_EQ(result->t_probe_us_p50, 10);
    EXPECT_NEAR(result->bandwidth_bytes_per_s, 12'000 / 120e-6, 1);
  }
  EXPECT_EQ(pair_.request->in_flight(), 0u);
  pair_.request.reset();
  holder.join();
}

TEST_F(ProbeTest, ATailDoesNotMoveTheMedian) {
  int count = 0;
  std::thread holder([&] {
    ServeProbes(*pair_.serve, [&](uint32_t) {
      clock_.Advance(std::chrono::microseconds(++count % 20 == 0 ? 500 : 10));
    });
  });
  options_.bandwidth_round_count = 0;
  options_.round_count = 100;
  const absl::StatusOr<ProbeResult> result = Probe(*pair_.request, clock_, options_);
  EXPECT_TRUE(result.ok()) << result.status();
  if (result.ok()) {
    EXPECT_DOUBLE_EQ(result->t_probe_us_p50, 10);
    EXPECT_EQ(result->bandwidth_bytes_per_s, 0);
  }
  pair_.request.reset();
  holder.join();
}

// Over the real clock and every real fabric the figures are at least positive.
TEST_F(ProbeTest, WorksOverEveryFabric) {
  using Make = std::unique_ptr<Fabric> (*)(Clock*);
  for (const Make make :
       std::initializer_list<Make>{&NewLoopbackFabric, &NewShmFabric, &NewTcpFabric}) {
    auto fabric = make(Clock::Real());
    auto listener = fabric->Listen({});
    ASSERT_TRUE(listener.ok());
    LanePair pair = test::MakeLane(*fabric, **listener, LaneShape{});
    ASSERT_TRUE(pair.request && pair.serve);
    std::thread holder([&] { ServeProbes(*pair.serve, [](uint32_t) {}); });
    options_.deadline = test::Soon();
    const absl::StatusOr<ProbeResult> result = Probe(*pair.request, *Clock::Real(), options_);
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) {
      EXPECT_GT(result->t_probe_us_p50, 0);
      EXPECT_GE(result->bandwidth_bytes_per_s, 0);
    }
    pair.request.reset();
    holder.join();
  }
}

TEST_F(ProbeTest, SilentHolderIsDeadlineExceeded) {
  options_.deadline = Clock::Real()->Now() + std::chrono::milliseconds(20);
  EXPECT_EQ(Probe(*pair_.request, *Clock::Real(), options_).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(pair_.request->in_flight(), 1u);  // abandoned, not forgotten
}

TEST_F(ProbeTest, GoneHolderIsUnavailable) {
  pair_.serve.reset();
  EXPECT_EQ(Probe(*pair_.request, clock_, options_).status().code(), StatusCode::kUnavailable);
}

TEST_F(ProbeTest, HolderThatRefusesIsItsError) {
  std::thread holder([&] {
    const std::optional<Arrival> arrival = test::AwaitRequest(*pair_.serve);
    ASSERT_TRUE(arrival.has_value());
    const auto header =
        DecodeRequestHeader(pair_.serve->request(arrival->slot).first(arrival->bytes));
    ASSERT_TRUE(header.ok());
    const uint32_t bytes = EncodeErrorReply(*header, absl::PermissionDeniedError("stranger"), 0,
                                            pair_.serve->reply(arrival->slot));
    EXPECT_TRUE(pair_.serve->Post(arrival->slot, bytes).ok());
  });
  EXPECT_EQ(Probe(*pair_.request, clock_, options_).status(),
            absl::PermissionDeniedError("stranger"));
  holder.join();
}

TEST_F(ProbeTest, GarbageIsInvalidArgument) {
  std::thread holder([&] {
    const std::optional<Arrival> arrival = test::AwaitRequest(*pair_.serve);
    ASSERT_TRUE(arrival.has_value());
    EXPECT_TRUE(pair_.serve->Post(arrival->slot, 13).ok());
  });
  EXPECT_EQ(Probe(*pair_.request, clock_, options_).status().code(), StatusCode::kInvalidArgument);
  holder.join();
}

// Duplicates are discarded by request id, and their slots are not released twice.
TEST_F(ProbeTest, DuplicatesDoNotDisturb) {
  FaultPlan plan;
  plan.duplicate_reply = 0.5;
  auto fault = NewFaultFabric(fabric_.get(), &clock_, plan);
  LanePair pair = test::MakeLane(*fault, *listener_, kProbeShape, kInstantMax);
  ASSERT_TRUE(pair.request && pair.serve);
  std::thread holder([&] { ServeProbes(*pair.serve, [](uint32_t) {}); });
  EXPECT_TRUE(Probe(*pair.request, clock_, options_).ok());
  pair.request.reset();
  holder.join();
}

TEST_F(ProbeTest, OptionsAreLimited) {
  options_.round_count = 0;
  EXPECT_EQ(Probe(*pair_.request, clock_, options_).status().code(), StatusCode::kInvalidArgument);
  options_.round_count = 0xffffffff;
  EXPECT_EQ(Probe(*pair_.request, clock_, options_).status().code(), StatusCode::kInvalidArgument);
  LanePair tiny = test::MakeLane(*fabric_, *listener_, {1, 63, 63}, kInstantMax);
  EXPECT_EQ(Probe(*tiny.request, clock_, ProbeOptions{}).status().code(),
            StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace ckv
