// Goal: an operator learns from ckvctl status where the directory keeps its state, and what of it
// is not proven. Method: replies that a directory may give.

#include "client/tools/ctl/fleet/directory_home.h"

#include "gtest/gtest.h"

namespace ckv::ctl {
namespace {

v1::DescribeDirectoryReply Calm() {
  v1::DescribeDirectoryReply home;
  home.set_path("/var/lib/ckv/directory");
  home.set_started_ago_ms(180'000);
  home.set_read_corpus_count(12);
  return home;
}

TEST(DirectoryHome, ShowsOnlyFieldsThatAreSet) {
  EXPECT_EQ(HomeText(Calm()),
            "in /var/lib/ckv/directory: 12 corpora read at its start, 3 min 00 s ago");
}

TEST(DirectoryHome, ReportsAMissingFolder) {
  v1::DescribeDirectoryReply home;
  home.set_started_ago_ms(180'000);
  home.set_rebuilt_corpus_count(2);
  EXPECT_EQ(
      HomeText(home),
      "in memory, no folder (directory.path): started 3 min 00 s ago; 2 made whole again from its "
      "holders");
}

TEST(DirectoryHome, ReportsFaultsOfTheFolder) {
  v1::DescribeDirectoryReply home = Calm();
  home.set_read_corpus_count(1);
  home.set_missing_holder_count(1);
  home.set_rebuilt_corpus_count(3);
  home.set_refusal("no space\tleft");
  EXPECT_EQ(HomeText(home),
            "in /var/lib/ckv/directory: 1 corpus read at its start, 3 min 00 s ago; 1 holder not "
            "back since; 3 made whole again from its holders; refuses changes: no space?left");
}

TEST(DirectoryHome, NamesWhatIsNotProven) {
  v1::DescribeDirectoryReply home = Calm();
  v1::UnprovenCorpus* corpus = home.add_unproven_corpora();
  corpus->set_name("a\nb");
  corpus->set_version(7);
  corpus->set_chunk_count(5);
  corpus->set_missing_count(2);
  corpus->set_conflict(true);
  corpus->set_version_count(2);
  corpus->add_reporters("h1");
  home.set_unproven_corpus_count(70);
  const Json json = HomeJson(home);
  EXPECT_EQ(json["unproven_corpus_count"], 70);
  EXPECT_EQ(json["unproven_corpora"][0]["missing_count"], 2);
  EXPECT_EQ(json["unproven_corpora"][0]["reporters"], Json::array({"h1"}));
}

}  // namespace
}  // namespace ckv::ctl
