// A real holder over each of this host's fabrics, and how its answers are judged.

#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/holder/holder.h"
#include "tests/server/dispatch/raw_client.h"
#include "tests/support/fabric_kinds.h"
#include "tests/support/test_corpus.h"

namespace ckv::test {

inline constexpr Epoch kEpoch = {7};

// Values are within 1, logits within 2 and at most 300 keys: f32 sums err by less than 300 x 2^-24.
inline constexpr double kF32Tolerance = 1.8e-5;
// o is rounded once, to 8 bits.
inline constexpr double kBf16Tolerance = 1.0 / 256;

class HolderTest : public ::testing::TestWithParam<FabricKind> {
 protected:
  HolderTest() : fabric_(MakeFabric(GetParam())) {
    options_.id = {"a"};
    options_.capacity_bytes = 64u << 20;
    options_.fabrics = {fabric_.get()};
  }

  void SetUp() override { StartHolder(); }

  void StartHolder() {
    auto holder = Holder::Start(options_);
    ASSERT_TRUE(holder.ok()) << holder.status();
    holder_ = *std::move(holder);
    holder_->lease().Grant(kEpoch, kInstantMax);
  }

  std::unique_ptr<RawClient> Open(const RawClient::Options& options = {},
                                  Fabric* fabric = nullptr) {
    auto client = RawClient::Open(*holder_, fabric != nullptr ? *fabric : *fabric_,
                                  corpus_.geometry, options);
    CKV_CHECK(client.ok());
    return *std::move(client);
  }

  void Put() { ASSERT_TRUE(PutCorpus(holder_->store(), corpus_).ok()); }

  // Until it is so: what a holder does after a reply has left is not ordered with it.
  template <typename Condition>
  bool Eventually(Condition condition) {
    const Instant deadline = Soon();
    while (!condition(holder_->stats())) {
      if (Clock::Real()->Now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  bool NothingPinned() {
    return Eventually([](const HolderStats& stats) { return stats.table.pin_count == 0; });
  }

  // A dense request over the given chunks.
  RawAttend Dense(const std::vector<uint32_t>& handles, uint32_t row_count, uint32_t layer = 0,
                  uint8_t flags = kFlagPartialF32) {
    RawAttend attend = {.layer = layer, .row_count = row_count, .flags = flags};
    attend.rows = RandomBf16(size_t{row_count} * corpus_.geometry.d_qk, rng_);
    for (const uint32_t handle : handles) attend.pieces.push_back({.handle = handle});
    return attend;
  }

  // Holds one partial against the fp64 answer, row by row.
  void ExpectPartial(const RawPartial& actual, const std::vector<reference::Partial>& expected,
                     bool f32) {
    const uint32_t d_v = corpus_.geometry.d_v;
    for (size_t row = 0; row < expected.size(); ++row) {
      const reference::Partial& e = expected[row];
      if (e.l == 0) {
        EXPECT_EQ(actual.m[row], kEmptyM);
        EXPECT_EQ(actual.l[row], 0.0f);
      } else {
        EXPECT_NEAR(actual.m[row], e.m, kF32Tolerance);
        EXPECT_NEAR(actual.l[row], e.l, kF32Tolerance * e.l);
      }
      const double tolerance = f32 ? kF32Tolerance : kBf16Tolerance * reference::AbsMax(e.o);
      for (uint32_t d = 0; d < d_v; ++d) {
        ASSERT_NEAR(actual.o[row * d_v + d], e.o[d], tolerance) << "row " << row << " d " << d;
      }
    }
  }

  // Sends the request over the chunks [0, pieces) and checks every partial of the answer.
  void ExpectRight(RawClient& client, const RawAttend& attend) {
    const absl::StatusOr<RawReply> reply = client.Call(attend);
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_TRUE(reply->status().ok()) << reply->status();
    const bool f32 = (attend.flags & kFlagPartialF32) != 0;
    std::vector<std::vector<reference::Partial>> parts;  // [piece][row]
    for (size_t i = 0; i < attend.pieces.size(); ++i) {
      parts.push_back(ReferencePiece(corpus_.geometry, attend, attend.pieces[i],
                                     corpus_.chunks[i].layers[attend.layer]));
    }
    const auto partials = reply->Partials(corpus_.geometry.d_v);
    if (attend.per_piece) {
      ASSERT_EQ(partials.size(), parts.size());
      for (size_t i = 0; i < parts.size(); ++i) ExpectPartial(partials[i], parts[i], f32);
      return;
    }
    ASSERT_EQ(partials.size(), 1u);
    std::vector<reference::Partial> merged;
    for (uint32_t row = 0; row < attend.row_count; ++row) {
      std::vector<reference::Partial> of_row;
      for (const auto& part : parts) of_row.push_back(part[row]);
      merged.push_back(reference::Merge(of_row, corpus_.geometry.d_v));
    }
    ExpectPartial(partials[0], merged, f32);
  }

  // The error that the request is answered with.
  absl::Status ErrorOf(RawClient& client, const RawAttend& attend, const RequestHeader& header) {
    const absl::StatusOr<RawReply> reply = client.Call(attend, header);
    if (!reply.ok()) return absl::InternalError("the lane broke");
    EXPECT_EQ(reply->header.request_id, header.request_id);
    return reply->status();
  }

  std::unique_ptr<Fabric> fabric_;
  HolderOptions options_;
  TestCorpus corpus_ = MakeTestCorpus(TestGeometry(), {5, 64, 0, 130, 71}, 1);
  std::mt19937 rng_{1};
  std::unique_ptr<Holder> holder_;
};

}  // namespace ckv::test
