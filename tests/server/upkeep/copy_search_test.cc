// Goal: a lost chunk is looked for in the corpora that place it here, and brought from the first
// other holder that has it. Method: the search, over answers of a directory and of holders that the
// test sets.

#include "server/upkeep/copy_search.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

class SetAnswers final : public CopySearch {
 public:
  SetAnswers() : CopySearch({"here"}, Clock::Real()) {}
  void Cancel() override { Stop(); }

  std::map<std::string, std::vector<Corpus>> places;  // by tenant
  std::vector<Member> members;
  std::map<std::string, absl::Status> failures;  // of copies, by holder
  std::vector<std::string> copied_from;
  bool stops_at_copy = false;

 private:
  absl::StatusOr<std::vector<std::string>> AllTenants(Instant /*deadline*/) override {
    std::vector<std::string> tenants;
    for (const auto& [tenant, corpora] : places) tenants.push_back(tenant);
    return tenants;
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant /*deadline*/) override { return members; }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& /*id*/, const std::string& tenant,
                                                  Instant /*deadline*/) override {
    if (!places.contains(tenant)) return absl::NotFoundError("none");
    return places[tenant];
  }
  absl::Status CopyFrom(const Member& from, const Corpus& /*place*/,
                        Instant /*deadline*/) override {
    copied_from.push_back(from.id.name);
    if (stops_at_copy) Cancel();
    return failures[from.id.name];
  }
};

struct CopySearchTest : testing::Test {
  CopySearchTest() {
    for (const char* name : {"other", "here", "second", "leased"}) {
      search.members.push_back({{name}, MemberRole::kHolder, std::string(name) + ":1", {}, {}});
    }
    lost.id = made.chunks[0].info.id;
  }
  // The chunk in a corpus that places it on these holders.
  Corpus Place(const std::string& tenant, std::vector<HolderId> holders,
               std::vector<HolderId> leased = {}) {
    Corpus corpus;
    corpus.name = "docs";
    corpus.tenant = tenant;
    corpus.geometry = made.geometry;
    corpus.chunks.emplace_back();
    corpus.chunks[0].id = lost.id;
    corpus.chunks[0].set_holders(std::move(holders));
    corpus.chunks[0].set_leased(std::move(leased));
    return corpus;
  }
  absl::StatusOr<RepairSource::Restored> Restore() { return search.Restore(lost, test::Soon()); }

  const test::TestCorpus made = test::MakeTestCorpus(test::TestGeometry(), {9}, 3);
  SetAnswers search;
  LostChunk lost;
};

TEST_F(CopySearchTest, TriesHoldersInTheOrderOfTheDirectory) {
  search.places["t"] = {Place("t", {{"here"}, {"second"}, {"other"}}, {{"leased"}})};
  search.failures["second"] = absl::UnavailableError("gone");
  const auto restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->tenant, "t");
  EXPECT_EQ(search.copied_from, (std::vector<std::string>{"second", "other"}));
}

TEST_F(CopySearchTest, ALeasedCopyIsOne) {
  search.places[""] = {Place("", {{"here"}}, {{"leased"}})};
  EXPECT_TRUE(Restore().ok());
  EXPECT_EQ(search.copied_from, std::vector<std::string>{"leased"});
}

TEST_F(CopySearchTest, LooksOnlyWhereACorpusPlacesItHere) {
  EXPECT_TRUE(absl::IsNotFound(Restore().status()));
  search.places[""] = {Place("", {{"other"}, {"second"}})};
  EXPECT_TRUE(absl::IsNotFound(Restore().status()));
  EXPECT_TRUE(search.copied_from.empty());
  // The readers of the chunk are known, and no other tenant is asked for.
  search.places["t"] = {Place("t", {{"here"}, {"other"}})};
  lost.readers = {"u"};
  EXPECT_TRUE(absl::IsNotFound(Restore().status()));
  lost.readers = {"t"};
  EXPECT_TRUE(Restore().ok());
}

TEST_F(CopySearchTest, AHolderThatIsNotListedMayHaveTheLastCopy) {
  search.places[""] = {Place("", {{"here"}, {"second"}})};
  search.failures["second"] = absl::NotFoundError("damaged too");
  search.failures["other"] = absl::NotFoundError("never had it");
  EXPECT_TRUE(Restore().ok());
  EXPECT_EQ(search.copied_from, (std::vector<std::string>{"second", "other", "leased"}));
}

TEST_F(CopySearchTest, TheNumberOfUnlistedHoldersIsLimited) {
  search.places[""] = {Place("", {{"here"}})};
  search.members.clear();
  for (size_t i = 0; i < CopySearch::kUnlistedMax + 8; ++i) {
    const std::string name = "h" + std::to_string(i);
    search.members.push_back({{name}, MemberRole::kHolder, name + ":1", {}, {}});
    search.failures[name] = absl::NotFoundError("never had it");
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(Restore().status()));
  EXPECT_EQ(search.copied_from.size(), CopySearch::kUnlistedMax);
}

TEST_F(CopySearchTest, NamesWhyThereIsNoCopy) {
  for (const char* name : {"other", "second", "leased"})
    search.failures[name] = absl::NotFoundError("never had it");
  search.places[""] = {Place("", {{"here"}})};
  EXPECT_TRUE(absl::IsFailedPrecondition(Restore().status())) << Restore().status();
  search.places[""] = {Place("", {{"here"}, {"unknown"}})};
  EXPECT_TRUE(absl::IsUnavailable(Restore().status())) << Restore().status();
  // If two corpora have the chunk, the error is the one that is worth another attempt.
  search.places[""] = {Place("", {{"here"}, {"unknown"}}), Place("", {{"here"}})};
  EXPECT_TRUE(absl::IsUnavailable(Restore().status())) << Restore().status();
}

TEST_F(CopySearchTest, EndsWhenItIsCancelled) {
  search.places[""] = {Place("", {{"here"}, {"other"}}), Place("", {{"here"}, {"second"}})};
  search.failures["other"] = absl::UnavailableError("gone");
  search.stops_at_copy = true;
  EXPECT_TRUE(absl::IsCancelled(Restore().status()));
  EXPECT_EQ(search.copied_from, std::vector<std::string>{"other"});
}

}  // namespace
}  // namespace ckv
