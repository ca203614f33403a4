// Goal: every chunk gets the copies that its corpus wants, in different failure domains, worst
// first; nothing is taken away before the copy is there, and nothing else moves. Method: snapshots
// of small fleets. Fleet makes the planned copies at once, until nothing is planned any more.

#include "server/directory/replication/copy_plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/directory/replication/target_choice.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr uint64_t kRoom = uint64_t{1} << 40;

ChunkId IdOf(uint32_t i) {
  ChunkId id;
  id.bytes.fill(1);
  std::memcpy(id.bytes.data(), &i, sizeof(i));
  return id;
}

struct Fleet {
  CopyPlanView view;

  CopyHolder& Add(const std::string& name, FailureDomain domain = {}) {
    if (domain.host.empty()) domain.host = name;
    view.live.push_back({.id = {name},
                         .domain = domain,
                         .capacity_bytes = kRoom,
                         .room_bytes = kRoom,
                         .bytes_per_second = 1 << 20});
    return view.live.back();
  }
  void Lose(const std::string& name) {
    std::erase_if(view.live, [&](const CopyHolder& holder) { return holder.id.name == name; });
  }
  CopyHolder& At(const std::string& name) {
    return *std::find_if(view.live.begin(), view.live.end(),
                         [&](const CopyHolder& holder) { return holder.id.name == name; });
  }
  // Chunk i has the holders lists[i % lists.size()].
  void Load(uint32_t chunk_count, uint32_t wanted,
            const std::vector<std::vector<std::string>>& lists, const std::string& name = "docs") {
    Corpus corpus;
    corpus.name = name;
    corpus.geometry = test::TestGeometry();
    corpus.replica_count = wanted;
    for (uint32_t i = 0; i < chunk_count; ++i) {
      ChunkPlacement chunk;
      chunk.id = IdOf(i + 1);
      chunk.token_count = 16;
      for (const std::string& holder : lists[i % lists.size()])
        chunk.mutable_holders().push_back({holder});
      corpus.chunks.push_back(chunk);
    }
    view.corpora.push_back(std::make_shared<const Corpus>(std::move(corpus)));
  }
  void Make(const PlannedCopy& copy) {
    view.made[KeyOf(*copy.corpus)][copy.corpus->chunks[copy.ordinal].id].push_back(copy.to);
  }
  void Lack(const std::string& name, const std::vector<uint32_t>& chunks) {
    LackingChunks::Chunks ids;
    for (const uint32_t i : chunks) ids.insert(IdOf(i + 1));
    view.lacking[{name}] = std::make_shared<const LackingChunks::Chunks>(std::move(ids));
  }
  void Publish() {
    const CopyPlan plan = PlanCopies(view);
    for (std::shared_ptr<const Corpus>& corpus : view.corpora) {
      if (auto next = PlaceMade(view, plan, *corpus))
        corpus = std::make_shared<const Corpus>(*next);
    }
    view.made.clear();
  }
  // Returns how many copies were made until the plan was empty.
  size_t Settle() {
    size_t count = 0;
    for (int round = 0; round < 10; ++round) {
      const CopyPlan plan = PlanCopies(view);
      if (plan.copies.empty() && plan.corpora.empty()) return count;
      for (const PlannedCopy& copy : plan.copies) Make(copy);
      count += plan.copies.size();
      Publish();
    }
    ADD_FAILURE() << "it never settles";
    return count;
  }
  const Corpus& corpus(size_t i = 0) const { return *view.corpora[i]; }
  std::set<std::string> HoldersOf(uint32_t chunk) const {
    std::set<std::string> names;
    for (const HolderId& holder : corpus().chunks[chunk].holders()) names.insert(holder.name);
    return names;
  }
};

TEST(CopyPlan, IsEmptyIfAllIsThere) {
  Fleet fleet;
  for (const char* name : {"a", "b", "c"}) fleet.Add(name);
  fleet.Load(100, 2, {{"a", "b"}, {"b", "c"}});
  const CopyPlan plan = PlanCopies(fleet.view);
  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_THAT(plan.corpora, IsEmpty());
  EXPECT_EQ(plan.under_replicated_count, 0u);
  EXPECT_EQ(plan.bytes_left, 0u);
}

TEST(CopyPlan, RepairsALostHolderFromTheOthers) {
  Fleet fleet;
  for (const char* name : {"a", "b", "c", "d"}) fleet.Add(name);
  fleet.Load(64, 2, {{"a", "b"}, {"c", "d"}});
  fleet.Lose("b");
  const CopyPlan plan = PlanCopies(fleet.view);
  ASSERT_EQ(plan.copies.size(), 32u);
  EXPECT_EQ(plan.under_replicated_count, 32u);
  EXPECT_EQ(plan.bytes_left, 32 * CopyBytesOf(fleet.corpus().geometry, fleet.corpus().chunks[0]));
  for (const PlannedCopy& copy : plan.copies) {
    EXPECT_THAT(copy.sources, ElementsAre(HolderId{"a"}));
    EXPECT_TRUE(copy.to.name == "c" || copy.to.name == "d");
  }
  // The lost holder leaves each chunk's list only with the copy that replaces it.
  fleet.Make(plan.copies[0]);
  fleet.Publish();
  for (uint32_t i = 0; i < 64; i += 2) {
    const bool is_made = i == plan.copies[0].ordinal;
    EXPECT_EQ(fleet.HoldersOf(i).contains("b"), !is_made) << i;
  }
  EXPECT_EQ(fleet.Settle(), 31u);
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(fleet.HoldersOf(i).size(), 2u);
    EXPECT_FALSE(fleet.HoldersOf(i).contains("b"));
    if (i % 2 == 1) {
      EXPECT_THAT(fleet.HoldersOf(i), UnorderedElementsAre("c", "d"));
    }
  }
}

TEST(CopyPlan, AHolderThatIsAwayKeepsItsPlaces) {
  Fleet fleet;
  for (const char* name : {"a", "b", "c"}) fleet.Add(name);
  fleet.Load(8, 2, {{"a", "b"}});
  fleet.Lose("b");
  fleet.view.away.insert({"b"});
  const CopyPlan plan = PlanCopies(fleet.view);
  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_THAT(plan.corpora, IsEmpty());
  EXPECT_EQ(plan.under_replicated_count, 8u);
  EXPECT_EQ(plan.bytes_left, 0u);
  EXPECT_EQ(plan.stuck.count, 0u);
}

TEST(CopyPlan, TheFewestLiveCopiesAreFirst) {
  Fleet fleet;
  for (const char* name : {"a", "b", "c", "d"}) fleet.Add(name);
  fleet.Load(12, 3, {{"a", "b", "c"}, {"a", "x", "y"}, {"a", "b", "x"}});
  const CopyPlan plan = PlanCopies(fleet.view);
  ASSERT_EQ(plan.copies.size(), 4u * 2 + 4);
  for (size_t i = 0; i < plan.copies.size(); ++i)
    EXPECT_EQ(plan.copies[i].ordinal % 3, i < 8 ? 1u : 2u) << i;
}

TEST(CopyPlan, NoTwoCopiesAreInOneDomainIfAnotherHasRoom) {
  for (const int level : {0, 1, 2}) {
    SCOPED_TRACE(level);
    Fleet fleet;
    const auto add = [&](const std::string& name, const std::string& domain) {
      FailureDomain labels = {.host = level == 0 ? domain : name,
                              .rack = level == 1 ? domain : "",
                              .zone = level == 2 ? domain : ""};
      fleet.Add(name, labels);
    };
    for (const char* name : {"a1", "a2", "a3", "a4"}) add(name, "A");
    add("b1", "B");
    fleet.Load(40, 2, {{"a1", "lost"}});
    EXPECT_EQ(fleet.Settle(), 40u);
    for (uint32_t i = 0; i < 40; ++i)
      EXPECT_THAT(fleet.HoldersOf(i), UnorderedElementsAre("a1", "b1"));
  }
  // Without room there, the same domain is better than no copy.
  Fleet fleet;
  fleet.Add("a1", {.host = "A"});
  fleet.Add("a2", {.host = "A"});
  fleet.Add("b1", {.host = "B"}).room_bytes = 0;
  fleet.Load(4, 2, {{"a1", "lost"}});
  EXPECT_EQ(fleet.Settle(), 4u);
  EXPECT_THAT(fleet.HoldersOf(0), UnorderedElementsAre("a1", "a2"));
}

TEST(CopyPlan, AHolderThatLacksItsChunksGetsThemBack) {
  Fleet fleet;
  for (const char* name : {"a", "b", "c"}) fleet.Add(name);
  fleet.Load(10, 2, {{"a", "b"}});
  fleet.Lack("b", {3, 4});
  const CopyPlan plan = PlanCopies(fleet.view);
  ASSERT_EQ(plan.copies.size(), 2u);
  for (const PlannedCopy& copy : plan.copies) EXPECT_EQ(copy.to.name, "b");
  EXPECT_EQ(plan.under_replicated_count, 2u);
  // It made one, and could not make the other: another holder makes that.
  fleet.Make(plan.copies[0]);
  fleet.view.failed[KeyOf(fleet.corpus())][IdOf(5)].push_back({"b"});
  const CopyPlan second = PlanCopies(fleet.view);
  ASSERT_EQ(second.copies.size(), 1u);
  EXPECT_EQ(second.copies[0].to.name, "c");
  fleet.Make(second.copies[0]);
  fleet.Publish();
  EXPECT_THAT(fleet.HoldersOf(3), UnorderedElementsAre("a", "b"));
  EXPECT_THAT(fleet.HoldersOf(4), UnorderedElementsAre("a", "c"));
}

TEST(CopyPlan, ADrainedHolderStaysUntilItsCopiesAreMade) {
  Fleet fleet;
  for (const char* name : {"a", "b", "c"}) fleet.Add(name);
  fleet.Load(32, 1, {{"a"}, {"b"}});
  fleet.At("a").is_draining = true;
  const CopyPlan plan = PlanCopies(fleet.view);
  ASSERT_EQ(plan.copies.size(), 16u);
  EXPECT_EQ(plan.under_replicated_count, 0u);
  const CopyPlan::OfHolder& leaving = plan.holders.at({"a"});
  EXPECT_EQ(leaving.leaving_count, 16u);
  EXPECT_EQ(leaving.leaving_bytes, plan.bytes_left);
  fleet.Publish();
  EXPECT_THAT(fleet.HoldersOf(0), ElementsAre("a"));
  EXPECT_EQ(fleet.Settle(), 16u);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_FALSE(fleet.HoldersOf(i).contains("a"));
  for (uint32_t i = 1; i < 32; i += 2) EXPECT_THAT(fleet.HoldersOf(i), ElementsAre("b"));
}

// More copies than wanted: the drained holder may go at once.
TEST(CopyPlan, ADrainedHolderLeavesAtOnceIfThereAreEnoughCopies) {
  Fleet fleet;
  for (const char* name : {"a", "b"}) fleet.Add(name);
  fleet.Load(4, 1, {{"a", "b"}});
  fleet.At("a").is_draining = true;
  EXPECT_EQ(fleet.Settle(), 0u);
  EXPECT_THAT(fleet.HoldersOf(0), ElementsAre("b"));
}

TEST(CopyPlan, CountsWhatIsStuck) {
  Fleet fleet;
  fleet.Add("a").is_draining = true;
  ChunkPlacement one;
  one.token_count = 16;
  fleet.Add("b").room_bytes = CopyBytesOf(test::TestGeometry(), one);
  fleet.Load(3, 1, {{"a"}});
  fleet.Load(2, 1, {{"lost"}}, "gone");
  const CopyPlan plan = PlanCopies(fleet.view);
  EXPECT_EQ(plan.copies.size(), 1u);
  EXPECT_EQ(plan.stuck.count, 2u + 2u);
  EXPECT_EQ(plan.holders.at({"a"}).stuck.count, 2u);
  EXPECT_THAT(plan.holders.at({"a"}).stuck.why, testing::HasSubstr("no other holder has room"));
  EXPECT_EQ(plan.under_replicated_count, 2u);
}

TEST(CopyPlan, LeasedCopiesAreSources) {
  Fleet fleet;
  for (const char* name : {"a", "b"}) fleet.Add(name);
  fleet.Load(2, 1, {{"lost"}});
  fleet.view.leased[KeyOf(fleet.corpus())][IdOf(1)] = {{"a"}, {"gone"}};
  const CopyPlan plan = PlanCopies(fleet.view);
  ASSERT_EQ(plan.copies.size(), 1u);
  EXPECT_EQ(plan.copies[0].ordinal, 0u);
  EXPECT_THAT(plan.copies[0].sources, ElementsAre(HolderId{"a"}));
  EXPECT_EQ(plan.stuck.count, 1u);
}

// A chunk without rows cannot be copied, and must not keep a drained holder.
TEST(CopyPlan, EmptyChunksNeverWait) {
  Fleet fleet;
  for (const char* name : {"a", "b"}) fleet.Add(name);
  fleet.Load(1, 2, {{"a", "b"}});
  Corpus corpus = fleet.corpus();
  corpus.chunks[0].token_count = 0;
  fleet.view.corpora[0] = std::make_shared<const Corpus>(corpus);
  fleet.At("a").is_draining = true;
  EXPECT_EQ(fleet.Settle(), 0u);
  EXPECT_THAT(fleet.HoldersOf(0), ElementsAre("b"));
}

// A new holder takes a quarter, or by its capacity two fifths, from the others alike.
TEST(SharePlan, ANewHolderTakesItsShareAndNothingElseMoves) {
  for (const uint64_t capacity : {kRoom, 2 * kRoom}) {
    Fleet fleet;
    for (const char* name : {"a", "b", "c"}) fleet.Add(name);
    fleet.Load(1200, 2, {{"a", "b"}, {"b", "c"}, {"c", "a"}});
    const Corpus before = fleet.corpus();
    fleet.Add("d").capacity_bytes = capacity;
    EXPECT_THAT(PlanCopies(fleet.view).copies, IsEmpty()) << "it is not known to be new";
    fleet.view.filling.insert({"d"});
    const size_t share = 2400 * capacity / (capacity + 3 * kRoom);
    // Runs have 16 chunks, cut here into single ones.
    EXPECT_NEAR(static_cast<double>(fleet.Settle()), static_cast<double>(share), 1);
    std::map<std::string, size_t> count;
    for (uint32_t i = 0; i < 1200; ++i) {
      EXPECT_EQ(fleet.HoldersOf(i).size(), 2u);
      for (const std::string& name : fleet.HoldersOf(i)) ++count[name];
      if (fleet.HoldersOf(i).contains("d")) continue;
      EXPECT_EQ(fleet.corpus().chunks[i].holders(), before.chunks[i].holders()) << i;
    }
    EXPECT_NEAR(static_cast<double>(count["d"]), static_cast<double>(share), 1);
    for (const char* name : {"a", "b", "c"})
      EXPECT_NEAR(static_cast<double>(count[name]), (2400.0 - share) / 3, 2) << name;
    const CopyPlan plan = PlanCopies(fleet.view);
    EXPECT_TRUE(plan.has_shares);
    EXPECT_THAT(plan.moving, IsEmpty());
  }
}

TEST(SharePlan, RunsMoveWhole) {
  Fleet fleet;
  for (const char* name : {"a", "b"}) fleet.Add(name);
  fleet.Load(4096, 2, {{"a", "b"}});
  fleet.Add("c");
  fleet.view.filling.insert({"c"});
  const size_t moved = fleet.Settle();
  const uint32_t run = CopyRunChunks(4096);
  // Each of the two that give may keep less than a run above its share.
  EXPECT_NEAR(static_cast<double>(moved), 8192.0 / 3, 2 * run);
  for (uint32_t i = 0; i < 4096; ++i)
    EXPECT_EQ(fleet.HoldersOf(i), fleet.HoldersOf(i / run * run)) << i;
}

TEST(SharePlan, NothingMovesWhileACopyIsMissing) {
  Fleet fleet;
  for (const char* name : {"a", "b", "c"}) fleet.Add(name);
  fleet.Load(60, 2, {{"a", "b"}});
  fleet.view.filling.insert({"c"});
  fleet.Lack("b", {3});
  const CopyPlan plan = PlanCopies(fleet.view);
  ASSERT_EQ(plan.copies.size(), 1u);
  EXPECT_EQ(plan.copies[0].to.name, "b");
  EXPECT_FALSE(plan.has_shares);
}

// A move keeps copies apart, and a chunk that is too much for a share stays.
TEST(SharePlan, AMoveBringsNoCopiesTogether) {
  Fleet fleet;
  fleet.Add("a", {.host = "A"});
  fleet.Add("b", {.host = "B"});
  fleet.Load(90, 2, {{"a", "b"}});
  fleet.Add("b2", {.host = "B"});
  fleet.view.filling.insert({"b2"});
  EXPECT_GT(fleet.Settle(), 0u);
  for (uint32_t i = 0; i < 90; ++i) EXPECT_TRUE(fleet.HoldersOf(i).contains("a"));
  Fleet small;
  small.Add("a");
  small.Load(1, 1, {{"a"}});
  small.Add("b");
  small.view.filling.insert({"b"});
  EXPECT_EQ(small.Settle(), 0u);
}

// Aligned runs keep one holder, so that one partial answers them.
TEST(TargetChoice, ChunksOfARunStayTogether) {
  Fleet fleet;
  for (int i = 0; i < 9; ++i) fleet.Add(absl::StrFormat("h%d", i));
  fleet.Load(4096, 2, {{"h0", "lost"}});
  const uint32_t run = CopyRunChunks(4096);
  EXPECT_EQ(run, 32u);
  EXPECT_EQ(CopyRunChunks(100), 1u);
  EXPECT_EQ(CopyRunChunks(0), 1u);
  std::vector<std::string> to(4096);
  const CopyPlan plan = PlanCopies(fleet.view);
  ASSERT_EQ(plan.copies.size(), 4096u);
  for (const PlannedCopy& copy : plan.copies) to[copy.ordinal] = copy.to.name;
  std::set<std::string> used;
  for (uint32_t i = 0; i < 4096; ++i) {
    EXPECT_EQ(to[i], to[i / run * run]);
    used.insert(to[i]);
  }
  EXPECT_EQ(used.size(), 8u);
}

// Shares follow the capacity, and a holder that comes takes runs and moves no other.
TEST(TargetChoice, SharesFollowTheCapacity) {
  std::vector<CopyHolder> live;
  for (const char* name : {"a", "b", "c"})
    live.push_back({.id = {name}, .capacity_bytes = name[0] == 'c' ? 2u : 1u});
  std::vector<CopyHolder> more = live;
  more.push_back({.id = {"d"}, .capacity_bytes = 2});
  TargetChoice before(live), after(more);
  std::map<std::string, int> share;
  int moved = 0;
  constexpr uint32_t kRuns = 6000;
  for (uint32_t run = 0; run < kRuns; ++run) {
    const std::string was = live[before.Rank({"", "c"}, run, {})[0]].id.name;
    const std::string is = more[after.Rank({"", "c"}, run, {})[0]].id.name;
    ++share[is];
    if (was == is) continue;
    ++moved;
    EXPECT_EQ(is, "d");
  }
  // A sixth or a third of the runs each, within 5 standard deviations.
  EXPECT_NEAR(share["a"], kRuns / 6.0, 5 * 29);
  EXPECT_NEAR(share["b"], kRuns / 6.0, 5 * 29);
  EXPECT_NEAR(share["c"], kRuns / 3.0, 5 * 37);
  EXPECT_NEAR(share["d"], kRuns / 3.0, 5 * 37);
  EXPECT_EQ(moved, share["d"]);
}

}  // namespace
}  // namespace ckv
