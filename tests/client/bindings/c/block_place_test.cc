// Goal: rows are fetched into the blocks of an engine's cache that a table names, and nowhere else;
// nothing is written once a fetch was given up.
// Method: real holders in this process; a cache of marked bytes, compared byte for byte with one
// that was filled from a fetch of rows one after another.

#include "client/bindings/c/fetch/block_place.h"

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/bindings/c/ckv.h"
#include "client/bindings/c/handles.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv::c {
namespace {

using test::Cluster;
using test::MakeTestCorpus;
using test::TestGeometry;

class BlockPlaceTest : public testing::Test {
 protected:
  static constexpr uint32_t kBlockRows = 16, kBlockCount = 12, kTokens = 90;

  BlockPlaceTest() {
    cluster_.fleet.Load("c", MakeTestCorpus(TestGeometry(), {40, 0, 33, 17}, 3), {0, 1, 1, 0});
    EXPECT_EQ(ckv_resolve(&requester_, "c", CKV_TIMEOUT_DEFAULT, &corpus_), CKV_OK);
    call_.struct_size = sizeof(call_);
    call_.corpus = corpus_;
    call_.place = &place_;
    place_.struct_size = sizeof(place_);
    place_.table = table_.data();
    place_.table_count = static_cast<uint32_t>(table_.size());
    place_.block_count = kBlockCount;
    place_.block_rows = kBlockRows;
    SetStride(geometry_.row_bytes() * kBlockRows);
  }
  void TearDown() override { ckv_corpus_free(corpus_); }

  void SetStride(uint64_t stride) {
    stride_ = stride;
    place_.block_stride_bytes = stride;
    caches_.assign(geometry_.layers, std::vector<std::byte>(stride * kBlockCount, std::byte{9}));
    layers_.clear();
    for (auto& cache : caches_) layers_.push_back(cache.data());
    place_.layers = layers_.data();
  }

  // Returns the caches as they must be: it fetches into one array, and copies each row.
  std::vector<std::vector<std::byte>> Wanted(uint64_t token_begin, uint64_t token_end) {
    const size_t row = geometry_.row_bytes();
    std::vector<std::byte> rows(geometry_.layers * kTokens * row);
    ckv_fetch_call dense = call_;
    dense.place = nullptr;
    dense.rows = rows.data();
    dense.rows_bytes = rows.size();
    EXPECT_EQ(ckv_fetch(&requester_, &dense, nullptr), CKV_OK) << ckv_last_error(nullptr);
    std::vector<std::vector<std::byte>> wanted(
        geometry_.layers, std::vector<std::byte>(caches_[0].size(), std::byte{9}));
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      for (uint64_t token = token_begin; token < token_end; ++token) {
        const uint64_t at = place_.table_begin + token;
        std::memcpy(&wanted[layer][table_[at / kBlockRows] * stride_ + at % kBlockRows * row],
                    &rows[(layer * kTokens + token) * row], row);
      }
    }
    return wanted;
  }

  ckv_status Refused(const std::function<void(ckv_fetch_call&, ckv_block_place&)>& change) {
    ckv_fetch_call call = call_;
    ckv_block_place place = place_;
    call.place = &place;
    change(call, place);
    const ckv_status status = ckv_fetch(&requester_, &call, nullptr);
    if (status != CKV_OK) {
      for (const auto& cache : caches_)
        EXPECT_EQ(cache, std::vector<std::byte>(cache.size(), std::byte{9}));
    }
    return status;
  }

  const std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  Cluster cluster_{fabric_.get(), 2, LaneShape()};
  ckv_requester requester_{nullptr, cluster_.requester.get(), ""};
  const Geometry geometry_ = TestGeometry();
  ckv_corpus* corpus_ = nullptr;
  std::vector<uint32_t> table_ = {7, 2, 11, 0, 9, 4, 1};
  std::vector<std::vector<std::byte>> caches_;
  std::vector<void*> layers_;
  uint64_t stride_ = 0;
  ckv_block_place place_ = {};
  ckv_fetch_call call_ = {};
};

TEST_F(BlockPlaceTest, WritesRowsToTheBlocksOfTheTable) {
  for (const uint64_t padding : {0, 64}) {
    for (const uint64_t begin : {0, 5, 16}) {
      SCOPED_TRACE(testing::Message() << padding << " bytes apart, from row " << begin);
      SetStride(geometry_.row_bytes() * kBlockRows + padding);
      place_.table_begin = begin;
      const auto want = Wanted(0, kTokens);
      ckv_fetch_report report = {};
      report.struct_size = sizeof(report);
      ASSERT_EQ(ckv_fetch(&requester_, &call_, &report), CKV_OK) << ckv_last_error(nullptr);
      EXPECT_EQ(caches_, want);
      EXPECT_EQ(report.row_count, uint64_t{kTokens} * geometry_.layers);
    }
  }
}

// The rest is the engine's already: another sequence may read it meanwhile.
TEST_F(BlockPlaceTest, WritesOnlyTheRequestedTokens) {
  place_.token_begin = 16;
  place_.token_end = 64;
  const auto want = Wanted(16, 64);
  ckv_fetch_ticket* ticket = nullptr;
  ASSERT_EQ(ckv_fetch_begin(&requester_, &call_, &ticket), CKV_OK) << ckv_last_error(nullptr);
  place_ = {};  // it was copied
  int done = 0;
  EXPECT_EQ(ckv_fetch_wait(ticket, CKV_TIMEOUT_DEFAULT, &done, nullptr), CKV_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(caches_, want);
  ckv_fetch_ticket_free(ticket);
}

TEST_F(BlockPlaceTest, APlaceThatDoesNotFitIsRefused) {
  using Call = ckv_fetch_call;
  using Place = ckv_block_place;
  constexpr ckv_status kBad = CKV_INVALID_ARGUMENT;
  EXPECT_EQ(Refused([](Call&, Place& at) { at.layers = nullptr; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.table = nullptr; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.table_count = 5; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.table_begin = 23; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.table_begin = UINT64_MAX; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.block_count = 11; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.block_rows = 0; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.block_stride_bytes -= 1; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.block_stride_bytes = UINT64_MAX; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.token_end = kTokens + 1; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.token_begin = kTokens + 1; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.struct_size = 3; }), kBad);
  EXPECT_EQ(Refused([](Call&, Place& at) { at.reserved = 1; }), kBad);
  EXPECT_EQ(Refused([](Call& call, Place&) { call.token_stride = 2; }), kBad);
  EXPECT_EQ(Refused([](Call& call, Place&) { call.column_bytes = 4; }), kBad);
  EXPECT_EQ(Refused([&](Call& call, Place&) { call.rows = caches_[0].data(); }), kBad);
  std::vector<void*> some = layers_;
  some.back() = nullptr;
  EXPECT_EQ(Refused([&](Call&, Place& at) { at.layers = some.data(); }), kBad);
  EXPECT_EQ(Refused([](Call&, Place&) {}), CKV_OK);
}

TEST(WriteFence, WritesNothingOnceItIsClosed) {
  WriteFence fence;
  absl::Notification writing, may_end;
  bool written = false;
  std::thread writer([&] {
    const absl::Status status = fence.Write([&] {
      writing.Notify();
      may_end.WaitForNotification();
      written = true;
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
  });
  writing.WaitForNotification();
  std::thread closer([&] {
    fence.Close();
    EXPECT_TRUE(written) << "it waits for the write that runs";
  });
  may_end.Notify();
  writer.join();
  closer.join();
  const absl::Status late = fence.Write([&]() -> absl::Status {
    ADD_FAILURE() << "written after the fence was closed";
    return absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsCancelled(late)) << late;
}

}  // namespace
}  // namespace ckv::c
