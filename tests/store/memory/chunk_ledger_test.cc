// Goal: the ledger records who may read a chunk, whether it is kept and when it ends, and returns
// each change once, to be saved. Method: a ledger alone, on a ManualClock.

#include "store/memory/chunk_ledger.h"

#include <chrono>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

ChunkId LedgerId(uint8_t first) {
  ChunkId id;
  id.bytes[0] = first;
  id.bytes[8] = first;  // another shard each
  return id;
}

struct ChunkLedgerTest : testing::Test {
  ManualClock clock;
  ChunkLedger ledger{&clock};
  const ChunkId id = LedgerId(1);
};

TEST_F(ChunkLedgerTest, HasNoFactsWithoutAnEntry) {
  EXPECT_FALSE(ledger.MayRead(id, ""));
  EXPECT_FALSE(ledger.IsKept(id));
  EXPECT_FALSE(ledger.Touch(id));
  EXPECT_EQ(ledger.GlanceAt(id).idle, Duration(0));
  EXPECT_EQ(ledger.FactsOf(id), std::nullopt);
  for (const absl::Status& status :
       {ledger.Keep(id, true), ledger.KeepFor(id, seconds(1)), ledger.PutAgain(id, seconds(1)),
        ledger.AddReader(id, "a"), ledger.Close(id, {})})
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
}

TEST_F(ChunkLedgerTest, ReportsAChangeOnceUnlessItWasNotSaved) {
  ledger.Open(id, "a", Duration(0));
  EXPECT_EQ(ledger.UnsavedFacts(id), std::nullopt) << "its file says as much";
  ASSERT_TRUE(ledger.AddReader(id, "b").ok());
  const ChunkFacts facts = {.readers = {"a", "b"}};
  EXPECT_EQ(ledger.UnsavedFacts(id), facts);
  EXPECT_EQ(ledger.UnsavedFacts(id), std::nullopt);
  ledger.FactsNotSaved(id);
  EXPECT_EQ(ledger.UnsavedFacts(id), facts);
  ASSERT_TRUE(ledger.Keep(id, false).ok());
  EXPECT_EQ(ledger.UnsavedFacts(id), std::nullopt) << "it was not kept";
  ASSERT_TRUE(ledger.AddReader(id, "").ok());
  EXPECT_EQ(ledger.FactsOf(id)->readers, std::vector<std::string>{""});
}

TEST_F(ChunkLedgerTest, AnEntryClosesOnlyIfEachConditionHolds) {
  ledger.Open(id, "", seconds(10));
  const auto refused = [&](const DropIf& only) {
    return absl::IsFailedPrecondition(ledger.Close(id, only));
  };
  EXPECT_TRUE(refused({.expired = true}));
  EXPECT_TRUE(refused({.idle_min = seconds(1)}));
  clock.Advance(seconds(10));
  ASSERT_TRUE(ledger.Keep(id, true).ok());
  EXPECT_TRUE(refused({.not_kept = true, .expired = true}));
  ASSERT_TRUE(ledger.Keep(id, false).ok());
  EXPECT_TRUE(ledger.Touch(id));
  EXPECT_TRUE(refused({.expired = true, .idle_min = seconds(1)}));
  EXPECT_TRUE(ledger.Close(id, {.not_kept = true, .expired = true}).ok());
  EXPECT_FALSE(ledger.AnyDue()) << "nothing is left of its times";
}

TEST_F(ChunkLedgerTest, TakesWhatIsDueOnce) {
  const ChunkId marked = LedgerId(2), stays = LedgerId(3);
  ledger.Open(id, "", seconds(5));
  ledger.Open(marked, "", seconds(5));
  ledger.Open(stays, "", Duration(0));
  ASSERT_TRUE(ledger.KeepFor(marked, seconds(7)).ok());
  EXPECT_FALSE(ledger.AnyDue());
  clock.Advance(seconds(5));
  EXPECT_TRUE(ledger.AnyDue());
  ChunkLedger::Due due = ledger.TakeDue();
  EXPECT_THAT(due.unkept, IsEmpty());
  EXPECT_EQ(due.expired, id);
  ASSERT_TRUE(ledger.Close(id, {.not_kept = true, .expired = true}).ok());
  EXPECT_FALSE(ledger.AnyDue()) << "a kept chunk does not expire";
  clock.Advance(seconds(2));
  due = ledger.TakeDue();
  EXPECT_THAT(due.unkept, ElementsAre(marked));
  EXPECT_EQ(due.expired, marked);
  EXPECT_FALSE(ledger.IsKept(marked));
  ASSERT_TRUE(ledger.PutAgain(marked, seconds(1)).ok());
  due = ledger.TakeDue();
  EXPECT_THAT(due.unkept, IsEmpty());
  EXPECT_EQ(due.expired, std::nullopt);
}

TEST_F(ChunkLedgerTest, ATtlRestartsAfterARestartAndAMarkContinues) {
  ledger.Open(id, "a", seconds(5));
  ASSERT_TRUE(ledger.KeepFor(id, seconds(60)).ok());
  const ChunkFacts saved = *ledger.FactsOf(id);
  EXPECT_EQ(saved.ttl_ms, 5000u);
  ChunkLedger after(&clock);
  after.Restore(id, saved);
  EXPECT_TRUE(after.IsKept(id));
  EXPECT_TRUE(after.MayRead(id, "a") && !after.MayRead(id, "b"));
  EXPECT_EQ(after.UnsavedFacts(id), std::nullopt);
  clock.Advance(seconds(61));
  EXPECT_THAT(after.TakeDue().unkept, ElementsAre(id));
}

}  // namespace
}  // namespace ckv
