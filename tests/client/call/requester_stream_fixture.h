// A requester over a backend whose work is done later, and holders over this processor.

#pragma once

#include <functional>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/shifted_clock.h"
#include "tests/support/test_fleet.h"

namespace ckv::test {

class RequesterStreamTest : public testing::Test {
 protected:
  static constexpr uint32_t kRows = 30, kQueryValues = 96, kAnswerValues = 64;

  RequesterStreamTest() {
    for (size_t i = 0; i < 2; ++i) fleet_.StartHolder(i);
    fleet_.Load("c", corpus_, {0, 1, 0});
  }

  RequesterOptions Options() {
    RequesterOptions options;
    options.fabrics = {fabric_.get()};
    options.clock = &clock_;
    options.backend = &device_;
    options.call_count_max = 1;
    return options;
  }
  std::unique_ptr<Requester> Start(const RequesterOptions& options) {
    auto made = Requester::Create(options, &fleet_, &fleet_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  Context Open(Requester& requester, ContextPolicy policy = ContextPolicy::kRoute) {
    const ContextPart part = {*requester.Resolve("c", "", Soon()), {}};
    auto context = requester.Open({.parts = {&part, 1}, .policy = policy}, Soon());
    EXPECT_TRUE(context.ok()) << context.status();
    return *std::move(context);
  }
  LayerCall Call(const Segment& segment) {
    LayerCall call;
    call.q = {q_.data(), kRows, kQueryValues};
    call.segments = {&segment, 1};
    call.wire = PartialDtype::kF32;
    call.deadline = clock_.Now() + test::kPatience;
    return call;
  }
  uint64_t RequestCount() {
    return fleet_.holder(0).stats().request_count + fleet_.holder(1).stats().request_count;
  }
  // Puts work on a stream that copies query rows or own rows.
  static void MakeOn(ComputeStream& stream, std::span<const uint16_t> from,
                     std::vector<uint16_t>& to) {
    const RopeRotation identity(TestGeometry().rope, TestGeometry().d_rope, 0);
    const RowView rows = {reinterpret_cast<const std::byte*>(from.data()),
                          static_cast<uint32_t>(from.size() / kQueryValues), kQueryValues * 2};
    EXPECT_TRUE(stream.backend()
                    .Rotate(identity, rows, kQueryValues * 2,
                            {reinterpret_cast<std::byte*>(to.data())}, stream)
                    .ok());
  }
  // Until `done` holds; the holders are threads of their own.
  static bool Await(const std::function<bool()>& done) {
    const Instant give_up = Soon();
    while (!done()) {
      if (Clock::Real()->Now() >= give_up) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::mt19937 rng_{3};
  const test::TestCorpus corpus_ = MakeTestCorpus(TestGeometry(), {40, 9, 70}, 1);
  const std::vector<uint16_t> q_ = RandomBf16(size_t{kRows} * kQueryValues, rng_);
  const std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  test::ShiftedClock clock_;
  DeferredBackend device_;
  test::TestFleet fleet_{{fabric_.get()}};
};

// An engine's stream that is never idle, since others put work on it all the time.
class BusyStream final : public ComputeStream {
 public:
  explicit BusyStream(Backend* backend) : ComputeStream(backend) {}
  absl::Status Wait() override {
    ++waits;
    return absl::OkStatus();
  }
  bool Ready() const override { return false; }
  int waits = 0;
};

}  // namespace ckv::test
