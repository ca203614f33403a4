// Goal: a chunk that was lost to damage is fetched again from a holder that has it, for everyone
// who read it. A holder that does not give it is queried a bounded number of times. Method: a store
// in memory, and a fleet whose answers the test sets.

#include "server/upkeep/repairer.h"

#include <atomic>
#include <functional>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

class FakeSource final : public RepairSource {
 public:
  using Answer = std::function<absl::StatusOr<Restored>(const LostChunk&)>;
  std::atomic<uint32_t> requested{0};
  std::atomic<bool> cancelled{false};

  absl::StatusOr<Restored> Restore(const LostChunk& lost, Instant /*deadline*/) override {
    ++requested;
    absl::MutexLock lock(&mu_);
    return answer_(lost);
  }
  void Cancel() override { cancelled = true; }
  void set_answer(Answer answer) {
    absl::MutexLock lock(&mu_);
    answer_ = std::move(answer);
  }

 private:
  absl::Mutex mu_;
  Answer answer_ ABSL_GUARDED_BY(mu_);
};

struct RepairerTest : testing::Test {
  RepairerTest() {
    ChunkStoreOptions options;
    options.capacity_bytes = 1 << 20;
    store = *ChunkStore::Open(options);
    repairs.clock = &clock;
    source.set_answer([this](const LostChunk& lost) { return PutAgain(lost); });
    EXPECT_TRUE(Put("a").ok());
  }
  absl::Status Put(std::string_view tenant) {
    CKV_ASSIGN_OR_RETURN(ChunkPut put, store->Begin(chunk.info, geometry, tenant));
    for (uint32_t l = 0; l < geometry.layers; ++l)
      CKV_RETURN_IF_ERROR(put.Write(l, 0, chunk.layers[l]));
    return std::move(put).Finish();
  }
  absl::StatusOr<RepairSource::Restored> PutAgain(const LostChunk& lost) {
    EXPECT_EQ(lost.id, chunk.info.id);
    CKV_RETURN_IF_ERROR(Put("a"));
    return RepairSource::Restored{geometry, "a"};
  }
  void Lose() {
    const ChunkLocator locator = *store->table().Locate(chunk.info.id);
    {
      const ChunkPin pin = *store->table().Pin(locator);
      const_cast<std::byte&>(pin.chunk().layer(1)[7]) ^= std::byte{1};
    }
    const auto check = store->Verify(locator, [](uint64_t) { return true; });
    ASSERT_TRUE(check.ok());
    ASSERT_EQ(check->health, ChunkCheck::Health::kDamaged);
  }
  std::unique_ptr<Repairer> Start() {
    const auto may = [this] {
      ++looks;
      return may_query.load();
    };
    return std::make_unique<Repairer>(repairs, store.get(), &source, may, &counters);
  }
  // Lets time pass until the condition holds.
  template <typename Condition>
  bool Eventually(Condition condition) {
    const Instant give_up = Clock::Real()->Now() + std::chrono::seconds(20);
    while (!condition()) {
      if (Clock::Real()->Now() >= give_up) return false;
      clock.Advance(std::chrono::milliseconds(500));
      std::this_thread::yield();
    }
    return true;
  }
  bool Readable(const char* tenant) {
    return store->table().Find(chunk.info.id, geometry, tenant).ok();
  }

  ManualClock clock;
  const Geometry geometry = SmallGeometry();
  const SmallChunk chunk = MakeSmallChunk(geometry, 100, 1);
  std::unique_ptr<ChunkStore> store;
  FakeSource source;
  std::atomic<bool> may_query{true};
  std::atomic<uint32_t> looks{0};  // with something to ask for
  RepairerOptions repairs;
  ScrubCounters counters;
};

TEST_F(RepairerTest, ALostChunkIsBackForEveryReaderAndKept) {
  EXPECT_TRUE(absl::IsAlreadyExists(Put("b")));
  EXPECT_TRUE(absl::IsAlreadyExists(Put("c")));
  ASSERT_TRUE(store->Keep(chunk.info.id, true).ok());
  Lose();
  EXPECT_FALSE(Readable("a"));
  const auto repairer = Start();
  ASSERT_TRUE(Eventually([&] { return counters.repaired_count == 1; }));
  for (const char* tenant : {"a", "b", "c"}) EXPECT_TRUE(Readable(tenant)) << tenant;
  EXPECT_FALSE(Readable("d"));
  EXPECT_TRUE(store->table().List(std::nullopt, 1)[0].kept);
  EXPECT_TRUE(Eventually([&] { return counters.repair_pending_count == 0; }));
  EXPECT_EQ(source.requested, 1u);
  // Lost again, it is fetched again.
  Lose();
  ASSERT_TRUE(Eventually([&] { return counters.repaired_count == 2; }));
}

TEST_F(RepairerTest, QueriesASilentHolderABoundedNumberOfTimes) {
  source.set_answer([](const LostChunk&) { return absl::UnavailableError("holder h1 is away"); });
  Lose();
  const auto repairer = Start();
  ASSERT_TRUE(Eventually([&] { return counters.repair_failure_count == 1; }));
  EXPECT_EQ(source.requested, repairs.attempt_count_max);
  // The first loss is given up for good. A later loss has attempts of its own.
  ASSERT_TRUE(Put("a").ok());
  source.set_answer([this](const LostChunk& lost) { return PutAgain(lost); });
  Lose();
  ASSERT_TRUE(Eventually([&] { return counters.repaired_count == 1; }));
  EXPECT_EQ(source.requested, repairs.attempt_count_max + 1);
  EXPECT_EQ(counters.repair_failure_count, 1u);
}

// Pauses double: with a pause of 2 s, the fourth attempt is made at least 14 s after the first.
TEST_F(RepairerTest, AttemptsHaveGrowingPauses) {
  std::vector<Instant> when;
  absl::Mutex mu;
  source.set_answer([&](const LostChunk&) {
    absl::MutexLock lock(&mu);
    when.push_back(clock.Now());
    return absl::UnavailableError("away");
  });
  Lose();
  {
    const auto repairer = Start();
    ASSERT_TRUE(Eventually([&] { return source.requested >= 4; }));
  }
  EXPECT_TRUE(source.cancelled);
  absl::MutexLock lock(&mu);
  for (size_t i = 0; i + 1 < 4; ++i) EXPECT_GE(when[i + 1] - when[i], repairs.pause_min * (1 << i));
}

TEST_F(RepairerTest, ReportsAMissingReplicaAtOnce) {
  source.set_answer([](const LostChunk&) {
    return absl::FailedPreconditionError("corpus c places it here alone");
  });
  Lose();
  const auto repairer = Start();
  ASSERT_TRUE(Eventually([&] { return counters.repair_failure_count == 1; }));
  EXPECT_EQ(source.requested, 1u);
}

TEST_F(RepairerTest, QueriesNoHolderBeforeThisOneIsRegistered) {
  may_query = false;
  Lose();
  const auto repairer = Start();
  ASSERT_TRUE(Eventually([&] { return looks >= 5; }));
  EXPECT_EQ(source.requested, 0u);
  EXPECT_EQ(counters.repair_pending_count, 1u);
  may_query = true;
  EXPECT_TRUE(Eventually([&] { return counters.repaired_count == 1; }));
}

TEST_F(RepairerTest, DoesNotRequestChunksThatWerePutMeanwhile) {
  Lose();
  ASSERT_TRUE(Put("b").ok());
  const auto repairer = Start();
  ASSERT_TRUE(Eventually([&] { return looks > 0 && counters.repair_pending_count == 0; }));
  EXPECT_EQ(source.requested, 0u);
  EXPECT_EQ(counters.repaired_count + counters.repair_failure_count, 0u);
}

// As the copy maker does, which may be faster: for one of the previous readers.
TEST_F(RepairerTest, CompletesAChunkThatWasPutForAPreviousReaderMeanwhile) {
  EXPECT_TRUE(absl::IsAlreadyExists(Put("b")));
  ASSERT_TRUE(store->Keep(chunk.info.id, true).ok());
  Lose();
  ASSERT_TRUE(Put("b").ok());
  const auto repairer = Start();
  ASSERT_TRUE(Eventually([&] { return counters.repaired_count == 1; }));
  EXPECT_EQ(source.requested, 0u);
  for (const char* tenant : {"a", "b"}) EXPECT_TRUE(Readable(tenant)) << tenant;
  EXPECT_TRUE(store->table().List(std::nullopt, 1)[0].kept);
}

}  // namespace
}  // namespace ckv
