// Goal: own rows in an engine's paged cache are attended in place, and a table with a block outside
// the cache is refused. Method: compare the bits with those of the same own rows stored one after
// another.

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "client/context.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::Cluster;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;

class PagedOwnRows : public testing::Test {
 protected:
  static constexpr uint32_t kRowValues = 96, kLatentValues = 64;  // of the test geometry
  static constexpr uint32_t kRows = 10, kOwnRows = 37, kBlockRows = 16, kBlockCount = 7;
  static constexpr uint32_t kRowBytes = kRowValues * 2;

  PagedOwnRows() {
    cluster_.fleet.Load("c", corpus_, {0, 1});
    std::memset(cache_.data(), 0xff, cache_.size());  // NaN
    for (uint32_t i = 0; i < kOwnRows; ++i) {
      const size_t at = size_t{table_[i / kBlockRows]} * kBlockRows + i % kBlockRows;
      std::memcpy(&cache_[at * kRowBytes], &own_[size_t{i} * kRowValues], kRowBytes);
    }
    for (uint32_t i = 0; i < kRows; ++i) visible_.push_back(kOwnRows - kRows + i + 1);
    paged_.rows = {cache_.data(), kOwnRows, kRowBytes};
    paged_.rows.blocks = {table_.data(), kBlockRows, kBlockRows * kRowBytes};
    paged_.block_count = kBlockCount;
    paged_.visible = visible_.data();
  }

  absl::Status Attend(ContextPolicy policy, const OwnRows& own, Answer& answer) {
    const ContextPart part = {cluster_.Resolve("c"), {}};
    CKV_ASSIGN_OR_RETURN(const Context context,
                         cluster_.requester->Open({.parts = {&part, 1}, .policy = policy}, Soon()));
    const Segment segment = {.row_count = kRows, .context = &context, .own = {&own, 1}};
    LayerCall call;
    call.layer = 1;
    call.q = {q_.data(), kRows, kRowValues};
    call.segments = {&segment, 1};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    return cluster_.requester->Attend(call, answer.View());
  }

  // Returns the status code of a call whose own rows were changed by `change`.
  absl::StatusCode Refused(const std::function<void(OwnRows&)>& change) {
    OwnRows own = paged_;
    change(own);
    Answer answer(kRows, kLatentValues);
    const absl::Status status = Attend(ContextPolicy::kRoute, own, answer);
    EXPECT_TRUE(status.ok() || answer.Untouched());
    return status.code();
  }

  std::mt19937 rng_{5};
  const std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  Cluster cluster_{fabric_.get(), 2, SmallShape(), nullptr, 16, uint64_t{64} << 20};
  const test::TestCorpus corpus_ = MakeTestCorpus(TestGeometry(), {50, 30}, 3);
  const std::vector<uint16_t> q_ = RandomBf16(kRows * kRowValues, rng_);
  const std::vector<uint16_t> own_ = RandomBf16(kOwnRows * kRowValues, rng_);
  const std::vector<uint32_t> table_ = {5, 0, 3};
  std::vector<std::byte> cache_ = std::vector<std::byte>(kBlockCount * kBlockRows * kRowBytes);
  std::vector<uint32_t> visible_;
  OwnRows paged_;
};

TEST_F(PagedOwnRows, HaveTheBitsOfRowsOneAfterAnother) {
  OwnRows dense;
  dense.rows = {reinterpret_cast<const std::byte*>(own_.data()), kOwnRows, kRowBytes};
  dense.visible = visible_.data();
  for (const ContextPolicy policy : {ContextPolicy::kRoute, ContextPolicy::kCache}) {
    Answer want(kRows, kLatentValues), got(kRows, kLatentValues);
    ASSERT_TRUE(Attend(policy, dense, want).ok());
    const absl::Status status = Attend(policy, paged_, got);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(got.SameBits(want));
  }
}

TEST_F(PagedOwnRows, ATableBeyondTheCacheIsRefused) {
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(Refused([](OwnRows&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(Refused([](OwnRows& own) { own.block_count = 5; }), kRefused);
  EXPECT_EQ(Refused([](OwnRows& own) { own.block_count = 0; }), kRefused);
  EXPECT_EQ(Refused([](OwnRows& own) { own.rows.blocks.block_rows = 0; }), kRefused);
  EXPECT_EQ(Refused([](OwnRows& own) { own.rows.blocks.block_stride_bytes -= 1; }), kRefused);
  EXPECT_EQ(Refused([](OwnRows& own) { own.rows.blocks.block_stride_bytes = 0; }), kRefused);
  EXPECT_EQ(Refused([](OwnRows& own) { own.rows.blocks.block_stride_bytes = UINT64_MAX; }),
            kRefused);
  const uint32_t beyond[] = {5, 0, std::numeric_limits<uint32_t>::max()};
  EXPECT_EQ(Refused([&](OwnRows& own) { own.rows.blocks.table = beyond; }), kRefused);
  // Only the blocks of existing rows are checked.
  EXPECT_EQ(Refused([&](OwnRows& own) {
              own.rows.blocks.table = beyond;
              own.rows.count = 2 * kBlockRows;
            }),
            absl::StatusCode::kOk);
  EXPECT_EQ(Refused([](OwnRows& own) { own.rows.count = 0; }), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace ckv
