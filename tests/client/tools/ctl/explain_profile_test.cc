// Goal: ckvctl explain --profile compares the primitives as a requester on this machine would,
// without a requester daemon, and refuses a profile that is not of this machine and geometry.
// Method: daemons and the command in this process.

#include <filesystem>
#include <string>
#include <vector>

#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "client/cost/profile_file.h"
#include "tests/server/services/moving_chunks_fixture.h"
#include "tests/support/temp_folder.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ExplainProfileTest : public test::MovingChunksTest {
 protected:
  void SetUp() override {
    MovingChunksTest::SetUp();
    StartHolders(2);
    LoadOn("docs", test::MakeTestCorpus(test::TestGeometry(), {5, 6}, /*seed=*/41), {0, 1});
  }
  // A profile of `geometry` with the constants of one holder.
  static Profile ProfileOf(const Geometry& geometry) {
    Profile profile;
    profile.subject = SubjectOf(geometry, HostIdentity(), {}, /*quick=*/true);
    profile.lanes = {{"h0", "shm", {20, 1e9, 1e9}, {10, 0, 1, {{{1, 1}}}}}};
    return profile;
  }
  Ran Explain(std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"explain", "--corpus", "docs", "--profile", path_};
    words.insert(words.end(), more.begin(), more.end());
    return Run(words);
  }

  const std::string path_ = test::TempPath("explain-profile.json");
};

TEST_F(ExplainProfileTest, ComparesWithoutARequester) {
  ASSERT_TRUE(WriteProfile(path_, ProfileOf(test::TestGeometry())).ok());
  const Ran ran = Explain({"--mq", "16", "--steps", "100", "--chunks", "0-1"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.json["choice"], testing::AnyOf("route", "fetch"));
  EXPECT_EQ(ran.json["tokens"], 11);
  EXPECT_EQ(ran.json["holders"].size(), 2u);
}

TEST_F(ExplainProfileTest, RefusesAMissingOrForeignProfile) {
  std::filesystem::remove(path_);  // of another test
  const Ran missing = Explain();
  EXPECT_NE(missing.code, 0);
  EXPECT_THAT(missing.err, AllOf(HasSubstr(path_), HasSubstr("ckvctl calibrate --profile")));
  Geometry other = test::TestGeometry();
  other.d_qk += 16;
  other.d_v += 16;
  ASSERT_TRUE(WriteProfile(path_, ProfileOf(other)).ok());
  const Ran refused = Explain();
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(path_), HasSubstr("run ckvctl calibrate")));
}

TEST_F(ExplainProfileTest, RefusesChunksThatTheCorpusDoesNotHave) {
  ASSERT_TRUE(WriteProfile(path_, ProfileOf(test::TestGeometry())).ok());
  EXPECT_NE(Explain({"--chunks", "0-2"}).code, 0);
}

}  // namespace
}  // namespace ckv
