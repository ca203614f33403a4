// Versions that are kept, the time to live, and the quota of corpora.

#include "server/directory/corpus_changes.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/clock.h"
#include "server/directory/corpus_policy.h"
#include "server/directory/directory_state.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kHourMs = 3'600'000;

class CorpusChangesTest : public testing::Test {
 protected:
  CorpusChangesTest() { state_.changes().StartInMemory(); }

  DirectoryOptions Options() {
    DirectoryOptions options;
    options.clock = &clock_;
    options.wall_clock_ms = [this] { return wall_ms_; };
    options.placement_count_max = 64;
    return options;
  }
  // A corpus of these texts: two corpora share the chunks whose text they share.
  static Corpus Make(const std::string& name, const std::vector<uint32_t>& texts) {
    Corpus corpus;
    corpus.name = name;
    corpus.geometry = test::TestGeometry();
    for (const uint32_t text : texts) {
      corpus.chunks.push_back(test::MakeTestCorpus(test::TestGeometry(), {2}, text)
                                  .Publish(name, "", {{HolderId{"a"}}})
                                  .chunks[0]);
    }
    return corpus;
  }
  uint64_t Publish(Corpus corpus, CorpusPolicy policy = {}) {
    corpus.policy = policy;
    orphans_.clear();
    const auto version = state_.Publish(std::move(corpus), /*replace=*/true, 0, &orphans_);
    EXPECT_TRUE(version.ok()) << version.status();
    return version.value_or(0);
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& corpus : state_.List("")) names.push_back(corpus->name);
    return names;
  }
  CorpusPolicy PolicyOf(const std::string& name) {
    const auto corpus = state_.Get(name, "");
    return corpus.ok() ? (*corpus)->policy : CorpusPolicy();
  }
  void Pass(Duration time) {
    clock_.Advance(time);
    wall_ms_ += static_cast<uint64_t>(time / std::chrono::milliseconds(1));
    state_.corpora().DropExpired();
  }

  ManualClock clock_;
  uint64_t wall_ms_ = 1'000'000;
  DirectoryState state_{Options()};
  DirectoryState::Orphans orphans_;
};

TEST_F(CorpusChangesTest, KeepsTheVersionsThatLoseChunks) {
  const uint64_t first = Publish(Make("docs", {1, 2}), {.kept_version_count = 2});
  EXPECT_THAT(Names(), ElementsAre("docs"));
  // An extension and another placement lose nothing.
  const uint64_t extended = Publish(Make("docs", {1, 2, 3}));
  Corpus moved = Make("docs", {1, 2, 3});
  moved.chunks[0].set_holders({{"b"}});
  const uint64_t placed = Publish(std::move(moved));
  EXPECT_LT(first, extended);
  EXPECT_THAT(Names(), ElementsAre("docs"));
  // So does another order.
  const uint64_t turned = Publish(Make("docs", {3, 2, 1}));
  EXPECT_LT(placed, turned);
  EXPECT_THAT(Names(), ElementsAre("docs"));

  const uint64_t second = Publish(Make("docs", {1, 4}));
  EXPECT_THAT(Names(), ElementsAre("docs", VersionNameOf("docs", turned)));
  EXPECT_THAT(orphans_, IsEmpty()) << "the kept version has them";
  const auto kept = state_.Get(VersionNameOf("docs", turned), "");
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ((*kept)->chunks.size(), 3u);
  EXPECT_EQ((*kept)->policy.kept_version_count, std::nullopt);

  const uint64_t third = Publish(Make("docs", {5}));
  EXPECT_THAT(Names(),
              ElementsAre("docs", VersionNameOf("docs", turned), VersionNameOf("docs", second)));
  // The oldest goes, with the chunks that no other version has.
  Publish(Make("docs", {6}));
  EXPECT_THAT(Names(),
              ElementsAre("docs", VersionNameOf("docs", second), VersionNameOf("docs", third)));
  std::vector<ChunkId> gone;
  for (const ChunkPlacement& orphan : orphans_) gone.push_back(orphan.id);
  EXPECT_THAT(gone, testing::UnorderedElementsAre(Make("x", {3}).chunks[0].id,
                                                  Make("x", {2}).chunks[0].id));
}

TEST_F(CorpusChangesTest, KeepsNothingByDefault) {
  Publish(Make("docs", {1}));
  Publish(Make("docs", {2}));
  EXPECT_THAT(Names(), ElementsAre("docs"));
  EXPECT_THAT(orphans_, testing::SizeIs(1));
  EXPECT_EQ(PolicyOf("docs"), CorpusPolicy());
}

TEST_F(CorpusChangesTest, APublicationThatIsRefusedKeepsNothing) {
  const uint64_t version = Publish(Make("docs", {1}), {.kept_version_count = 1});
  const auto stale = state_.Publish(Make("docs", {2}), true, version + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(stale.status())) << stale.status();
  const auto twice = state_.Publish(Make("docs", {2}), false, 0);
  EXPECT_TRUE(absl::IsAlreadyExists(twice.status())) << twice.status();
  Corpus large = Make("docs", {2, 3});
  large.policy.quota_bytes = large.row_bytes() - 1;
  const auto above = state_.Publish(std::move(large), true, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(above.status())) << above.status();
  EXPECT_THAT(Names(), ElementsAre("docs"));
}

TEST_F(CorpusChangesTest, OnlyTheDirectoryMakesVersions) {
  const auto made = state_.Publish(Make("docs@7", {1}), false, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(made.status())) << made.status();
  // One that is there may move.
  const uint64_t first = Publish(Make("docs", {1}), {.kept_version_count = 1});
  Publish(Make("docs", {2}));
  Corpus moved = Make(VersionNameOf("docs", first), {1});
  moved.chunks[0].set_holders({{"b"}});
  Publish(std::move(moved));
  EXPECT_THAT(Names(), ElementsAre("docs", VersionNameOf("docs", first)));
}

TEST_F(CorpusChangesTest, ANameThatIsTooLongForAVersionIsRefusedFirst) {
  const std::string name(kCorpusNameBytesMax, 'n');
  Publish(Make(name, {1}), {.kept_version_count = 1});
  const auto replaced = state_.Publish(Make(name, {2}), true, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(replaced.status())) << replaced.status();
  EXPECT_THAT(Names(), ElementsAre(name));
}

TEST_F(CorpusChangesTest, ADropTakesTheVersionsToo) {
  const uint64_t first = Publish(Make("docs", {1}), {.kept_version_count = 2});
  Publish(Make("docs", {2}));
  Publish(Make("docs.old", {3}));
  ASSERT_TRUE(state_.Drop(VersionNameOf("docs", first), "").ok());
  EXPECT_THAT(Names(), ElementsAre("docs", "docs.old"));
  Publish(Make("docs", {4}));
  EXPECT_THAT(Names(), testing::SizeIs(3));
  DirectoryState::Orphans orphans;
  ASSERT_TRUE(state_.Drop("docs", "", &orphans).ok());
  EXPECT_THAT(Names(), ElementsAre("docs.old"));
  EXPECT_THAT(orphans, testing::SizeIs(2));
  EXPECT_TRUE(absl::IsNotFound(state_.Drop("docs", "").status()));
}

// A repair of a kept version gives it another number.
TEST_F(CorpusChangesTest, AVersionThatWasMovedIsDroppedToo) {
  const uint64_t first = Publish(Make("docs", {1}), {.kept_version_count = 1});
  Publish(Make("docs", {2}));
  Corpus moved = Make(VersionNameOf("docs", first), {1});
  moved.chunks[0].set_holders({{"b"}});
  Publish(std::move(moved));
  ASSERT_TRUE(state_.Drop("docs", "").ok());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CorpusChangesTest, ASmallerCountDropsKeptVersions) {
  Publish(Make("docs", {1}), {.kept_version_count = 2});
  Publish(Make("docs", {2}));
  Publish(Make("docs", {3}));
  EXPECT_THAT(Names(), testing::SizeIs(3));
  Publish(Make("docs", {3}), {.kept_version_count = 0});
  EXPECT_THAT(Names(), ElementsAre("docs"));
  EXPECT_THAT(orphans_, testing::SizeIs(2));
}

TEST_F(CorpusChangesTest, ACorpusEndsAfterItsTtl) {
  Publish(Make("docs", {1}), {.ttl_ms = kHourMs});
  Publish(Make("stays", {1}));
  EXPECT_EQ(PolicyOf("docs").expires_at_ms, wall_ms_ + kHourMs);
  Pass(std::chrono::minutes(59));
  EXPECT_THAT(Names(), ElementsAre("docs", "stays"));
  Pass(std::chrono::minutes(1));
  Pass(std::chrono::seconds(59));
  EXPECT_THAT(Names(), ElementsAre("docs", "stays")) << "the grace is a minute";
  Pass(std::chrono::seconds(1));
  EXPECT_THAT(Names(), ElementsAre("stays"));
}

TEST_F(CorpusChangesTest, OtherChunksProlongACorpusAndPlacesDoNot) {
  Publish(Make("docs", {1}), {.ttl_ms = kHourMs});
  const uint64_t first = PolicyOf("docs").expires_at_ms;
  Pass(std::chrono::minutes(30));
  Corpus moved = Make("docs", {1});
  moved.chunks[0].set_holders({{"b"}});
  Publish(std::move(moved));
  EXPECT_EQ(PolicyOf("docs").expires_at_ms, first);
  Publish(Make("docs", {1, 2}));
  EXPECT_EQ(PolicyOf("docs").expires_at_ms, wall_ms_ + kHourMs);
  Pass(std::chrono::minutes(40));
  Pass(std::chrono::minutes(2));
  EXPECT_THAT(Names(), ElementsAre("docs"));
  // 0 ends the ttl.
  Publish(Make("docs", {1, 2}), {.ttl_ms = 0});
  EXPECT_EQ(PolicyOf("docs").expires_at_ms, 0u);
}

TEST_F(CorpusChangesTest, AWallClockThatJumpsDropsNothing) {
  Publish(Make("docs", {1}), {.ttl_ms = kHourMs});
  const uint64_t right = wall_ms_;
  wall_ms_ += 1000 * kHourMs;
  for (int i = 0; i < 58; ++i) {
    clock_.Advance(std::chrono::seconds(1));
    state_.corpora().DropExpired();
  }
  wall_ms_ = right + kHourMs / 60;
  clock_.Advance(std::chrono::seconds(1));
  state_.corpora().DropExpired();
  wall_ms_ += 1000 * kHourMs;
  clock_.Advance(std::chrono::seconds(3));
  state_.corpora().DropExpired();
  EXPECT_THAT(Names(), ElementsAre("docs")) << "the grace begins again";
}

TEST_F(CorpusChangesTest, AKeptVersionHasTheTtlFromWhenItWasReplaced) {
  const uint64_t first = Publish(Make("docs", {1}), {.ttl_ms = kHourMs, .kept_version_count = 1});
  Pass(std::chrono::minutes(50));
  Publish(Make("docs", {2}));
  EXPECT_EQ(PolicyOf(VersionNameOf("docs", first)).expires_at_ms, wall_ms_ + kHourMs);
}

TEST_F(CorpusChangesTest, AQuotaIsOfOneCopyAndStays) {
  Corpus corpus = Make("docs", {1, 2});
  const uint64_t bytes = corpus.row_bytes();
  EXPECT_EQ(bytes, 4 * test::TestGeometry().token_bytes());
  Publish(std::move(corpus), {.quota_bytes = bytes});
  const auto above = state_.Publish(Make("docs", {1, 2, 3}), true, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(above.status())) << above.status();
  EXPECT_THAT(std::string(above.status().message()), testing::HasSubstr("corpus set docs --quota"));
  Publish(Make("docs", {1, 2, 3}), {.quota_bytes = 0});
}

TEST(CorpusPolicyTest, FindsChunksThatAreLost) {
  Corpus a, b;
  const auto chunk = [](uint8_t n) {
    ChunkPlacement placement;
    placement.id.bytes[0] = n;
    return placement;
  };
  a.chunks = {chunk(1), chunk(2)};
  b.chunks = {chunk(1), chunk(2), chunk(3)};
  EXPECT_FALSE(LacksChunks(a, b));
  EXPECT_TRUE(LacksChunks(b, a));
  b.chunks = {chunk(2), chunk(1)};
  EXPECT_FALSE(LacksChunks(a, b));
  b.chunks = {chunk(1), chunk(3)};
  EXPECT_TRUE(LacksChunks(a, b));
  b.chunks.clear();
  EXPECT_TRUE(LacksChunks(a, b));
  EXPECT_FALSE(LacksChunks(b, a));
}

}  // namespace
}  // namespace ckv
