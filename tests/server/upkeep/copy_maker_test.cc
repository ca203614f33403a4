// Goal: ordered chunks are put here whole and durable, at no more than the rate that was set, and
// each is reported once, made or not. Method: a store in memory, a directory and sources whose
// answers the test sets, and a clock that the test moves.

#include "server/upkeep/copy_maker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <thread>

#include "proto/base/status.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class FakeFleet final : public CopySource {
 public:
  explicit FakeFleet(const test::TestCorpus& corpus) : corpus_(corpus) {}

  absl::StatusOr<std::vector<CopyOrder>> ListOrders(uint64_t lease_id, uint32_t count_max,
                                                    Instant /*deadline*/) override {
    absl::MutexLock lock(&mu_);
    ++list_count;
    last_lease = lease_id;
    std::vector<CopyOrder> first = orders;
    if (first.size() > count_max) first.resize(count_max);
    return first;
  }
  absl::Status Report(uint64_t /*lease_id*/, std::span<const CopyReport> sent,
                      Instant /*deadline*/) override {
    absl::MutexLock lock(&mu_);
    if (!report_status.ok()) return report_status;
    for (const CopyReport& report : sent) {
      reports.push_back(report);
      std::erase_if(orders, [&](const CopyOrder& order) { return order.chunk.id == report.id; });
    }
    return absl::OkStatus();
  }
  absl::StatusOr<ChunkInfo> GetInfo(const Member& holder, const CopyOrder& order,
                                    Instant /*deadline*/) override {
    absl::MutexLock lock(&mu_);
    ++queried[holder.id.name];
    if (without.contains(holder.id.name)) return absl::NotFoundError("it is not here");
    ChunkInfo info = ChunkOf(order.chunk.id).info;
    if (change_info) change_info(info);
    return info;
  }
  absl::Status ReadRows(const Member& /*holder*/, const CopyOrder& order, TakeRows take,
                        Instant /*deadline*/) override {
    const test::TestChunk& chunk = ChunkOf(order.chunk.id);
    for (uint32_t l = 0; l < chunk.layers.size(); ++l) {
      const auto whole = std::as_bytes(std::span(chunk.layers[l]));
      std::vector<std::byte> rows(whole.begin(), whole.end());
      if (damage) rows[0] ^= std::byte{1};
      const size_t half = rows.size() / 2;
      CKV_RETURN_IF_ERROR(take(l, 0, std::span(rows).first(half)));
      CKV_RETURN_IF_ERROR(take(l, half, std::span(rows).subspan(half)));
    }
    return absl::OkStatus();
  }
  void Cancel() override {}

  const test::TestChunk& ChunkOf(const ChunkId& id) const {
    for (const test::TestChunk& chunk : corpus_.chunks) {
      if (chunk.info.id == id) return chunk;
    }
    std::abort();
  }
  size_t ReportCount() {
    absl::MutexLock lock(&mu_);
    return reports.size();
  }

  absl::Mutex mu_;
  std::vector<CopyOrder> orders;
  std::vector<CopyReport> reports;
  absl::Status report_status;
  std::map<std::string, int> queried;
  std::set<std::string> without;
  std::function<void(ChunkInfo&)> change_info;
  bool damage = false;
  int list_count = 0;
  uint64_t last_lease = 0;

 private:
  const test::TestCorpus& corpus_;
};

class CopyMakerTest : public testing::Test {
 protected:
  CopyMakerTest() {
    ChunkStoreOptions options;
    options.capacity_bytes = 8 << 20;
    store_ = *ChunkStore::Open(options);
    options_.clock = &clock_;
    options_.bytes_per_second = uint64_t{1} << 30;
  }
  void TearDown() override { maker_.reset(); }

  void Order(size_t count) {
    absl::MutexLock lock(&fleet_.mu_);
    for (size_t i = 0; i < count; ++i) {
      CopyOrder order;
      order.corpus = {"acme", "docs"};
      order.geometry = corpus_.geometry;
      order.chunk.id = corpus_.chunks[i].info.id;
      order.chunk.token_count = corpus_.chunks[i].info.token_count();
      for (const char* name : {"h0", "h1"}) {
        order.sources.push_back({.id = {name},
                                 .role = MemberRole::kHolder,
                                 .control_address = "127.0.0.1:1",
                                 .epoch = {}});
      }
      fleet_.orders.push_back(std::move(order));
    }
  }
  void Start() { maker_ = std::make_unique<CopyMaker>(options_, store_.get(), &fleet_); }
  // Lets time pass until the condition holds.
  template <typename Condition>
  bool Eventually(Condition condition) {
    const Instant give_up = Clock::Real()->Now() + std::chrono::seconds(20);
    while (!condition()) {
      if (Clock::Real()->Now() >= give_up) return false;
      clock_.Advance(milliseconds(2));
      // A copy has a deadline of this clock: it must not pass faster than the copies are made.
      Clock::Real()->WaitUntil(Clock::Real()->Now() + milliseconds(1));
    }
    return true;
  }
  bool IsHere(size_t i, const char* tenant = "acme") {
    return store_->table().Find(corpus_.chunks[i].info.id, corpus_.geometry, tenant).ok();
  }

  const test::TestCorpus corpus_ =
      test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(5, 100), /*seed=*/50);
  ManualClock clock_;
  std::unique_ptr<ChunkStore> store_;
  FakeFleet fleet_{corpus_};
  CopyMakerOptions options_;
  std::unique_ptr<CopyMaker> maker_;
};

TEST_F(CopyMakerTest, PutsWhatIsOrderedForItsTenant) {
  Order(5);
  Start();
  maker_->Note(/*lease_id=*/7, 5);
  ASSERT_TRUE(Eventually([&] { return fleet_.ReportCount() == 5; }));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(IsHere(i));
    EXPECT_FALSE(IsHere(i, ""));
  }
  for (const CopyReport& report : fleet_.reports) EXPECT_EQ(report.error, "");
  EXPECT_EQ(fleet_.last_lease, 7u);
  EXPECT_EQ(maker_->stats().made_count, 5u);
  EXPECT_EQ(maker_->stats().made_bytes, 5u * 100 * corpus_.geometry.token_bytes());
  EXPECT_EQ(maker_->stats().failed_count, 0u);
  // The load is spread over both.
  EXPECT_EQ(fleet_.queried["h0"] + fleet_.queried["h1"], 5);
}

TEST_F(CopyMakerTest, QueriesNothingWithoutOrders) {
  Order(1);
  Start();
  maker_->Note(7, 0);
  clock_.Advance(std::chrono::minutes(1));
  maker_->Note(7, 0);
  maker_.reset();
  EXPECT_EQ(fleet_.list_count, 0);
}

TEST_F(CopyMakerTest, AChunkThatIsHereIsReportedAtOnceAndIsPermanent) {
  {
    ChunkPut put = *store_->Begin(corpus_.chunks[0].info, corpus_.geometry, "acme");
    put.set_ttl(std::chrono::seconds(1));
    for (uint32_t l = 0; l < corpus_.geometry.layers; ++l)
      ASSERT_TRUE(put.Write(l, 0, std::as_bytes(std::span(corpus_.chunks[0].layers[l]))).ok());
    ASSERT_TRUE(std::move(put).Finish().ok());
  }
  std::set<ChunkId> noted;
  absl::Mutex mu;
  Order(1);
  Start();
  maker_->SetOnPut([&](const ChunkId& id) {
    absl::MutexLock lock(&mu);
    noted.insert(id);
  });
  maker_->Note(7, 1);
  ASSERT_TRUE(Eventually([&] { return fleet_.ReportCount() == 1; }));
  EXPECT_EQ(maker_->stats().present_count, 1u);
  EXPECT_EQ(maker_->stats().made_count, 0u);
  absl::MutexLock lock(&mu);
  EXPECT_EQ(noted, std::set<ChunkId>{corpus_.chunks[0].info.id});
}

TEST_F(CopyMakerTest, TriesTheOtherSource) {
  fleet_.without = {"h0"};
  Order(5);
  Start();
  maker_->Note(7, 5);
  ASSERT_TRUE(Eventually([&] { return fleet_.ReportCount() == 5; }));
  for (const CopyReport& report : fleet_.reports) EXPECT_EQ(report.error, "");
  EXPECT_EQ(fleet_.queried["h1"], 5);
}

TEST_F(CopyMakerTest, RowsWithoutTheirChecksumAreNotVisible) {
  fleet_.damage = true;
  Order(1);
  Start();
  maker_->Note(7, 1);
  ASSERT_TRUE(Eventually([&] { return fleet_.ReportCount() == 1; }));
  EXPECT_THAT(fleet_.reports[0].error, HasSubstr("from h"));
  EXPECT_FALSE(IsHere(0));
  EXPECT_EQ(maker_->stats().failed_count, 1u);
}

// The source describes other tokens under the id, or another number of them.
TEST_F(CopyMakerTest, ADescriptionOfAnotherChunkIsRefused) {
  fleet_.change_info = [](ChunkInfo& info) { info.token_ids.pop_back(); };
  Order(1);
  Start();
  maker_->Note(7, 1);
  ASSERT_TRUE(Eventually([&] { return fleet_.ReportCount() == 1; }));
  EXPECT_NE(fleet_.reports[0].error, "");
  EXPECT_FALSE(IsHere(0));
}

TEST_F(CopyMakerTest, KeepsReportsForADirectoryThatDoesNotAnswer) {
  fleet_.report_status = absl::UnavailableError("down");
  Order(2);
  Start();
  maker_->Note(7, 2);
  ASSERT_TRUE(Eventually([&] { return maker_->stats().made_count == 2; }));
  {
    absl::MutexLock lock(&fleet_.mu_);
    fleet_.report_status = absl::OkStatus();
  }
  // Its orders are still there: the copies are found here, and all reports arrive.
  maker_->Note(7, 2);
  ASSERT_TRUE(Eventually([&] { return fleet_.ReportCount() >= 2; }));
  EXPECT_EQ(maker_->stats().made_count, 2u);
}

// Five chunks at one chunk a second: the last one begins no earlier than after four seconds.
TEST_F(CopyMakerTest, KeepsToTheRate) {
  const uint64_t bytes = 100 * corpus_.geometry.token_bytes();
  options_.bytes_per_second = bytes;
  Order(5);
  Start();
  const Instant begin = clock_.Now();
  maker_->Note(7, 5);
  ASSERT_TRUE(Eventually([&] { return fleet_.ReportCount() == 5; }));
  const Duration took = clock_.Now() - begin;
  EXPECT_GE(took, std::chrono::seconds(4) - BytePacer::kCatchUpMax);
  // The test moves the clock by 10 ms at a time, and cannot tell when threads sleep.
  EXPECT_EQ(maker_->stats().made_bytes, 5 * bytes);
}

TEST(BytePacer, StopEndsTheWaits) {
  ManualClock clock;
  BytePacer pacer(&clock, 1);
  EXPECT_TRUE(pacer.Acquire(1000, kInstantMax));
  EXPECT_FALSE(pacer.Acquire(1, clock.Now() + std::chrono::seconds(1))) << "its turn is later";
  pacer.Stop();
  EXPECT_FALSE(pacer.Acquire(1, kInstantMax));
}

}  // namespace
}  // namespace ckv
