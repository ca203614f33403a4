// Goal: a directory with a folder restarts, and its fleet continues. Clients see where it keeps its
// state, what it read, and who is not back. Method: whole daemons in this process, and ckvctl.

#include <filesystem>

#include "tests/server/services/moving_chunks_fixture.h"
#include "tests/server/web/scrape.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using test::Call;
using test::ConfigOf;
using test::Soon;
using test::StartDaemon;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class DirectoryRestartTest : public test::MovingChunksTest {
 protected:
  void SetUp() override {
    static int count = 0;
    path_ = test::TempPath("directory" + std::to_string(count++));
    holder_metrics_address_ = "127.0.0.1:0";
    StartDirectoryAt("127.0.0.1:0");
  }
  Config DirectoryConfig(const std::string& listen) {
    Config config = ConfigOf({"directory"}, "d");
    config.listen = listen;
    config.directory_path = path_;
    config.lease_ttl = std::chrono::milliseconds(500);
    config.metrics_address = "127.0.0.1:0";
    return config;
  }
  void StartDirectoryAt(const std::string& listen) { StartDirectory(DirectoryConfig(listen)); }
  void RestartDirectory() { StartDirectoryAt(EndDirectory()); }
  // Restarts with an empty folder in place of its own.
  void RestartWithLostDisk() {
    path_ += "-empty";
    RestartDirectory();
  }
  // Waits until the holders are members again; in real time, so that a bug fails the test.
  void AwaitMembers(size_t count) {
    const Instant give_up = Soon();
    v1::ListMembersRequest request;
    request.set_as_known(true);
    v1::ListMembersReply reply;
    while (reply.members_size() != static_cast<int>(count) && Clock::Real()->Now() < give_up) {
      reply.Clear();
      // A subchannel of the previous incarnation may still be in its backoff.
      if (!directory_stub_->ListMembers(Call().get(), request, &reply).ok()) reply.Clear();
    }
    ASSERT_EQ(reply.members_size(), static_cast<int>(count));
  }
  // Waits until all but `missing` holders have reported.
  void AwaitReported(uint32_t missing = 0) {
    const Instant give_up = Soon();
    v1::DescribeDirectoryReply reply;
    grpc::Status requested;
    do {
      reply.Clear();
      requested = directory_stub_->Describe(Call().get(), {}, &reply);
    } while ((!requested.ok() || reply.missing_holder_count() != missing) &&
             Clock::Real()->Now() < give_up);
    ASSERT_TRUE(requested.ok()) << requested.error_message();
    ASSERT_EQ(reply.missing_holder_count(), missing);
  }
  // Waits until `count` holders keep a part of a corpus.
  void AwaitKept(size_t count) {
    const auto keeping = [&] {
      size_t kept = 0;
      for (const auto& holder : holders_)
        kept += test::Scrape(holder->metrics_address())["ckv_holder_corpus_parts"] > 0 ? 1 : 0;
      return kept;
    };
    const Instant give_up = Soon();
    while (keeping() < count && Clock::Real()->Now() < give_up) continue;
    ASSERT_EQ(keeping(), count);
  }
  // Corpus "c" is on h0 and h1, and h0 has a chunk that no corpus has. Then h1 ends, and the
  // directory restarts.
  void RestartWithoutH1() {
    StartHolders(2);
    LoadOn("c", Chunks(3), {0, 1});
    const auto rest = Chunks(1, /*seed=*/2);
    ASSERT_TRUE(test::Put(*holder_stubs_[0], rest.geometry, rest.chunks[0]).ok());
    holders_[1].reset();
    RestartDirectory();
    AwaitMembers(1);
    AwaitReported(/*missing=*/1);
    AwaitIdle(0);
  }
  grpc::Status Attend(v1::AttendReply* reply) {
    v1::AttendRequest request;
    request.set_corpus("c");
    request.set_row_count(1);
    request.set_q(std::string(2 * test::TestGeometry().d_qk, '\x3c'));
    request.set_wire(v1::PARTIAL_DTYPE_F32);
    return requester_stub_->Attend(Call().get(), request, reply);
  }

  std::string path_;
};

TEST_F(DirectoryRestartTest, TheFleetContinues) {
  StartHolders(2);
  // A requester that learns of the corpus only after it queried it would have to query it again.
  const Corpus corpus = LoadOn("c", Chunks(5), {0, 1});
  StartRequester();
  v1::AttendReply before, meanwhile, after;
  // Twice: the first answer is not kept if the requester's watch begins while it arrives.
  ASSERT_TRUE(Attend(&before).ok());
  ASSERT_TRUE(Attend(&before).ok());
  const std::string address = EndDirectory();
  grpc::Status requested = Attend(&meanwhile);
  ASSERT_TRUE(requested.ok()) << "the directory is away: " << requested.error_message();
  StartDirectoryAt(address);
  EXPECT_EQ(Get("c"), corpus) << "the same version, too";
  AwaitMembers(3);
  requested = Attend(&after);
  ASSERT_TRUE(requested.ok()) << requested.error_message();
  EXPECT_TRUE(after.o() == before.o());
  EXPECT_TRUE(meanwhile.o() == before.o());
  // Recorded versions continue, and later changes get higher ones.
  EXPECT_GT(LoadOn("d", Chunks(1, 2), {0}).version, corpus.version);
}

TEST_F(DirectoryRestartTest, StatusAndMetricsReportTheFolder) {
  StartHolders(2);
  LoadOn("c", Chunks(5), {0, 1});
  RestartDirectory();
  AwaitMembers(2);
  AwaitReported();
  const Ran ran = Run({"status"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const ctl::Json& state = ran.json["directory_state"];
  EXPECT_EQ(state["path"], path_);
  EXPECT_EQ(state["read_corpus_count"], 1);
  EXPECT_EQ(state["missing_holder_count"], 0);
  EXPECT_EQ(state["refusal"], "");
  EXPECT_THAT(Run({"status"}, /*json=*/false).text,
              HasSubstr("in " + path_ + ": 1 corpus read at its start"));
  const test::Scrape scrape(directory_->metrics_address());
  EXPECT_GT(scrape["ckv_directory_log_bytes"], 0);
  EXPECT_GE(scrape["ckv_directory_log_replayed_records"], 2);
  EXPECT_GE(scrape["ckv_directory_log_syncs_total"], 1);
  EXPECT_EQ(scrape["ckv_directory_log_failures_total"], 0);
  EXPECT_GE(scrape["ckv_directory_snapshot_age_seconds"], 0);
}

TEST_F(DirectoryRestartTest, NothingIsGarbageBeforeEveryHolderIsBack) {
  ASSERT_NO_FATAL_FAILURE(RestartWithoutH1());
  // A client that needs all members before all are back gets an error, and has to retry.
  Ran ran = Run({"gc", "--grace", "1ms", "--dry-run"});
  EXPECT_EQ(ran.code, 7) << ran.err;
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("1 holder with chunks of corpora has not reported since: h1"),
                    HasSubstr("not registered: h1: start it"), HasSubstr("--gone h1"),
                    HasSubstr("corpus partition")));
  EXPECT_EQ(Listed(0).size(), 4u);
  EXPECT_THAT(Run({"status"}, /*json=*/false).text, HasSubstr("1 holder not back since"));

  StartHolderAgain(1);
  AwaitReported();
  ran = Run({"gc", "--grace", "1ms"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["dropped_count"], 1);
}

// Two of three holders have all chunks between them; the third is offline.
TEST_F(DirectoryRestartTest, HoldersRestoreALostFolder) {
  StartHolders(3);
  StartRequester();
  const auto chunks = Chunks(9);
  for (size_t i = 0; i < 9; ++i) {
    for (const size_t holder : {i % 3, (i + 1) % 3})
      ASSERT_TRUE(test::Put(*holder_stubs_[holder], chunks.geometry, chunks.chunks[i]).ok());
  }
  const std::vector<std::vector<HolderId>> places = {
      {{"h0"}, {"h1"}}, {{"h1"}, {"h2"}}, {{"h2"}, {"h0"}}};
  ASSERT_TRUE(test::Publish(*directory_stub_, chunks.Publish("c", "", places)).ok());
  const Corpus corpus = Get("c");
  v1::AttendReply before, after;
  ASSERT_TRUE(Attend(&before).ok());
  // What a holder keeps follows the directory within a third of a lease.
  AwaitKept(3);
  holders_[2].reset();
  RestartWithLostDisk();
  AwaitMembers(3);  // two holders and the requester
  const Instant give_up = Soon();
  absl::StatusOr<Corpus> again = absl::UnknownError("");
  while (!again.ok() && Clock::Real()->Now() < give_up) {
    ASSERT_TRUE(directory_->Tick().ok());
    again = MakeFleet().GetCorpus("c");
  }
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, corpus) << "the version and all holders, too";
  const grpc::Status requested = Attend(&after);
  EXPECT_TRUE(requested.ok()) << requested.error_message();
  EXPECT_EQ(after.o(), before.o());
  const Ran ran = Run({"status"});
  EXPECT_EQ(ran.json["directory_state"]["rebuilt_corpus_count"], 1) << ran.err;
  EXPECT_EQ(ran.json["directory_state"]["unproven_corpus_count"], 0);
}

TEST_F(DirectoryRestartTest, ReportsACorpusThatIsNotWhole) {
  StartHolders(2);
  LoadOn("a", Chunks(2), {0});
  const auto chunks = Chunks(4, /*seed=*/2);
  for (size_t i = 0; i < 4; ++i)
    ASSERT_TRUE(test::Put(*holder_stubs_[i % 2], chunks.geometry, chunks.chunks[i]).ok());
  for (const char* name : {"b", "d"}) {
    const Corpus corpus = chunks.Publish(name, "", {{{"h0"}}, {{"h1"}}});
    ASSERT_TRUE(test::Publish(*directory_stub_, corpus).ok());
  }
  AwaitKept(2);
  holders_[1].reset();
  RestartWithLostDisk();
  AwaitMembers(1);
  const Instant give_up = Soon();
  Ran ran;
  do {
    ASSERT_TRUE(directory_->Tick().ok());
    ran = Run({"corpus", "show", "a"});
  } while (ran.code != 0 && Clock::Real()->Now() < give_up);
  EXPECT_EQ(ran.code, 0) << ran.err;
  ran = Run({"corpus", "show", "b"});
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("holders report 2 of its 4 chunks"));
  ran = Run({"status"}, /*json=*/false);
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.text, HasSubstr("corpus b is not served: it is not proven to be complete, and 2 "
                                  "of its 4 chunks are unreported"));
  // Nothing of it is garbage.
  AwaitReported();
  AwaitIdle(0);
  ran = Run({"gc", "--grace", "1ms"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["garbage_count"], 0);
  ASSERT_EQ(Run({"corpus", "drop", "b"}).code, 0);
  ran = Run({"corpus", "load", "d", "/usr/share/common-licenses/GPL-3", "--text", "--max-tokens",
             "32", "--chunk-tokens", "16", "--replace"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  ran = Run({"status"}, /*json=*/false);
  EXPECT_EQ(ran.code, 0) << ran.err << ran.text;
  ran = Run({"gc", "--grace", "1ms"});
  EXPECT_EQ(ran.json["dropped_count"], 2) << ran.err;
}

TEST_F(DirectoryRestartTest, AFolderBelongsToOneDirectory) {
  const auto second = Daemon::Start(DirectoryConfig("127.0.0.1:0"));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().ToString(),
              AllOf(HasSubstr("directory.path: "),
                    HasSubstr("process " + std::to_string(getpid()) + " uses it"),
                    HasSubstr("two directories need two folders")));
}

// Its machine will never return: an operator declares it gone.
TEST_F(DirectoryRestartTest, AHolderThatIsGoneForGoodHoldsNothingUp) {
  ASSERT_NO_FATAL_FAILURE(RestartWithoutH1());
  EXPECT_EQ(Run({"gc", "--grace", "1ms", "--gone", "h0"}).code, 7) << "another one is missing";
  // For one lease the directory lists no members, because others may be on their way.
  const Instant give_up = Soon();
  Ran ran;
  do {
    ran = Run({"gc", "--grace", "1ms", "--gone", "h0", "--gone", "h1"});
  } while (ran.code == 4 && Clock::Real()->Now() < give_up);
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.json["dropped_count"], 1);
  EXPECT_EQ(Listed(0).size(), 3u) << "what corpora place stays";
}

TEST_F(DirectoryRestartTest, ReportsAMissingFolder) {
  directory_ = StartDaemon(ConfigOf({"directory"}, "memory"));
  const Ran ran = Run({"status"}, /*json=*/false);
  EXPECT_THAT(ran.text, HasSubstr("in memory, no folder (directory.path)"));
}

}  // namespace
}  // namespace ckv
