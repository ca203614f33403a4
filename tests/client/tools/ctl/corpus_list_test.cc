// Goal: ckvctl corpus list shows how large a corpus is, which holders have it and how old it is.
// Method: daemons and the command in this process; a directory that is restarted.

#include "server/services/publish_times.h"
#include "tests/server/services/moving_chunks_fixture.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using test::ConfigOf;
using test::MakeTestCorpus;
using test::Soon;
using test::StartDaemon;
using test::TestGeometry;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CorpusListTest : public test::MovingChunksTest {
 protected:
  ctl::Json Listed(const std::string& name, const std::string& tenant = "") {
    const ctl::Json json = Run({"corpus", "list", "--tenant", tenant}).json;
    for (const ctl::Json& corpus : json["corpora"]) {
      if (corpus["name"] == name && corpus["tenant"] == tenant) return corpus;
    }
    return {};
  }
};

TEST_F(CorpusListTest, CountsBytesCopiesAndMissingChunks) {
  StartHolders(2);
  const auto corpus = MakeTestCorpus(TestGeometry(), {5, 6, 7}, /*seed=*/70);
  for (const size_t i : {0u, 1u}) PutOn(i, corpus);
  ASSERT_TRUE(test::Publish(*directory_stub_,
                            corpus.Publish("docs", "", {{{"h0"}}, {{"h0"}, {"h1"}}, {{"gone"}}}))
                  .ok());
  const ctl::Json json = Listed("docs");
  EXPECT_EQ(json["total_row_bytes"], 18 * TestGeometry().token_bytes());
  EXPECT_EQ(json["layers"], TestGeometry().layers);
  EXPECT_EQ(json["copies_min"], 1);
  EXPECT_EQ(json["copies_max"], 2);
  EXPECT_EQ(json["missing_count"], 1);
  EXPECT_EQ(json["missing_copy_count"], 1);
  EXPECT_LT(json["age_ms"], 600'000);
  const std::string text = Run({"corpus", "list"}, /*json=*/false).text;
  EXPECT_THAT(text, AllOf(HasSubstr("COPIES  MISSING  AGE"), HasSubstr("   1-2        1  "),
                          Not(HasSubstr("VERSION"))));
}

TEST_F(CorpusListTest, ATenantsCorpusHidesNoSharedOneOfItsName) {
  const auto shared = MakeTestCorpus(TestGeometry(), {5}, /*seed=*/71);
  const auto own = MakeTestCorpus(TestGeometry(), {6, 7}, /*seed=*/72);
  ASSERT_TRUE(test::Publish(*directory_stub_, shared.Publish("docs", "", {{{"h0"}}})).ok());
  ASSERT_TRUE(test::Publish(*directory_stub_, own.Publish("docs", "acme", {{{"h0"}}})).ok());
  const ctl::Json json = Run({"corpus", "list", "--tenant", "acme"}).json;
  ASSERT_EQ(json["corpora"].size(), 2u);
  for (const ctl::Json& corpus : json["corpora"]) {
    const uint64_t tokens = corpus["tenant"] == "acme" ? 13 : 5;
    EXPECT_EQ(corpus["total_row_bytes"], tokens * TestGeometry().token_bytes());
  }
}

TEST_F(CorpusListTest, ShowsALowerBoundForAgesBeforeTheDirectorysStart) {
  Config config = ConfigOf({"directory"}, "durable");
  config.directory_path = test::TempPath("corpus-list-directory");
  directory_ = StartDaemon(config);
  directory_stub_ = v1::DirectoryService::NewStub(MakeChannel(directory_->address()));
  const auto corpus = MakeTestCorpus(TestGeometry(), {5}, /*seed=*/73);
  ASSERT_TRUE(test::Publish(*directory_stub_, corpus.Publish("docs", "", {{{"h0"}}})).ok());
  EXPECT_TRUE(Listed("docs").contains("age_ms"));
  directory_->Drain(Soon());
  directory_.reset();
  directory_ = StartDaemon(config);
  directory_stub_ = v1::DirectoryService::NewStub(MakeChannel(directory_->address()));
  const ctl::Json json = Listed("docs");
  EXPECT_FALSE(json.contains("age_ms"));
  EXPECT_LT(json["age_ms_min"], 600'000);
  EXPECT_FALSE(json.contains("missing_count")) << "h0 may still come back";
  EXPECT_THAT(Run({"corpus", "list"}, /*json=*/false).text, HasSubstr("> "));
}

TEST(PublishTimes, BelongToOneVersion) {
  PublishTimes times;
  times.Note("acme", "docs", 7, {70});
  times.Note("acme", "docs", 6, {80});  // arrived late
  EXPECT_EQ(times.Of("acme", "docs", 7), Instant{70});
  EXPECT_EQ(times.Of("acme", "docs", 6), std::nullopt);
  EXPECT_EQ(times.Of("", "docs", 7), std::nullopt);
  times.Forget("acme", "docs");
  EXPECT_EQ(times.Of("acme", "docs", 7), std::nullopt);
}

}  // namespace
}  // namespace ckv
