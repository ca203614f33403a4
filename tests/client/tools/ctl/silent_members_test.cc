// Goal: members and corpora that are silent cost a command one time limit, and not one each.
// Method: a directory and a holder made by hand. Some calls answer only while others wait, too.
// Others record how long they may take.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "client/tools/ctl/ctl.h"
#include "client/tools/ctl/fleet/query_members.h"
#include "client/tools/ctl/parallel_jobs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"

namespace ckv::ctl {
namespace {

using test::MakeTestCorpus;
using test::TestGeometry;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Calls that wait for each other. One alone waits until its caller gives up.
class Gathering {
 public:
  void Expect(int count) {
    absl::MutexLock lock(&mu_);
    missing_ = count;
  }
  grpc::Status Arrive(const grpc::ServerContext& context) {
    absl::MutexLock lock(&mu_);
    --missing_;
    const auto complete = [this] { return missing_ <= 0; };
    const auto deadline = absl::FromChrono(context.deadline());
    return mu_.AwaitWithDeadline(absl::Condition(&complete), deadline)
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "alone");
  }

 private:
  absl::Mutex mu_;
  int missing_ ABSL_GUARDED_BY(mu_) = 0;
};

class FakeDirectory final : public v1::DirectoryService::Service {
 public:
  grpc::Status ListMembers(grpc::ServerContext* /*context*/,
                           const v1::ListMembersRequest* /*request*/,
                           v1::ListMembersReply* reply) override {
    for (const Member& member : members) *reply->add_members() = ToProto(member);
    return grpc::Status::OK;
  }
  grpc::Status ListCorpora(grpc::ServerContext* /*context*/,
                           const v1::ListCorporaRequest* /*request*/,
                           v1::ListCorporaReply* reply) override {
    for (const Corpus& corpus : corpora) {
      v1::CorpusSummary& summary = *reply->add_corpora();
      summary.set_name(corpus.name);
      summary.set_chunk_count(static_cast<uint32_t>(corpus.chunks.size()));
      summary.set_token_count(corpus.token_count());
    }
    return grpc::Status::OK;
  }
  grpc::Status GetCorpus(grpc::ServerContext* context, const v1::GetCorpusRequest* request,
                         v1::GetCorpusReply* reply) override {
    if (late.contains(request->name()))
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "a disk that is slow"};
    for (const Corpus& corpus : corpora) {
      if (corpus.name == request->name()) *reply->mutable_corpus() = ToProto(corpus);
    }
    return gathering.Arrive(*context);
  }

  std::vector<Member> members;
  std::vector<Corpus> corpora;
  std::set<std::string> late;
  Gathering gathering;
};

class FakeHolder final : public v1::HolderService::Service {
 public:
  grpc::Status Stats(grpc::ServerContext* context, const v1::StatsRequest* /*request*/,
                     v1::StatsReply* /*reply*/) override {
    if (on_stats) on_stats();
    return gathering.Arrive(*context);
  }
  grpc::Status GetChunkInfo(grpc::ServerContext* context,
                            const v1::GetChunkInfoRequest* /*request*/,
                            v1::GetChunkInfoReply* /*reply*/) override {
    absl::MutexLock lock(&mu);
    const Clock& clock = *Clock::Real();
    left_max = std::max(left_max, DeadlineOf(*context, clock, kControlTimeoutMax) - clock.Now());
    return {grpc::StatusCode::UNAVAILABLE, "not now"};
  }

  Gathering gathering;
  std::function<void()> on_stats;  // called on many threads
  absl::Mutex mu;
  Duration left_max{0};  // the most that a GetChunkInfo might take
};

class SilentMembersTest : public testing::Test {
 public:
  ~SilentMembersTest() override { server_->Shutdown(); }

 protected:
  SilentMembersTest() {
    KeepGrpcUp();
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&directory_);
    builder.RegisterService(&holder_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  // All holders are one process, which is unaware of it.
  void AddHolders(int count) {
    for (int i = 0; i < count; ++i) {
      directory_.members.push_back(
          {{absl::StrCat("h", i)}, MemberRole::kHolder, address_, {static_cast<uint64_t>(i + 1)}});
    }
  }
  void AddCorpus(const std::string& name) {
    Corpus corpus =
        MakeTestCorpus(TestGeometry(), {5, 6}, /*seed=*/90).Publish(name, "", {{{"h0"}}});
    corpus.version = 1;
    directory_.corpora.push_back(std::move(corpus));
  }
  struct Ran {
    int code = 0;
    std::string text, err;
  };
  Ran Run(std::vector<std::string> arguments) const {
    Ctl ctl;
    std::ostringstream out, err;
    ctl.out = &out;
    ctl.err = &err;
    ctl.fleet.directory = address_;
    const int code = RunCtl(ctl, std::move(arguments));
    return {code, out.str(), err.str()};
  }

  FakeDirectory directory_;
  FakeHolder holder_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

TEST_F(SilentMembersTest, QueriesAllMembersAtOnce) {
  AddHolders(3);
  for (const auto& command : std::vector<std::vector<std::string>>{{"status"}, {"health"}}) {
    holder_.gathering.Expect(3);
    EXPECT_THAT(Run(command).text, Not(testing::ContainsRegex("h[012] [^\n]*does not answer")))
        << command[0];
  }
}

// The first call takes an hour of the clock, and more members wait than are queried at once.
TEST_F(SilentMembersTest, QueriesEndBeforeAllHadATurn) {
  AddHolders(static_cast<int>(3 * kParallelJobsMax));
  ManualClock clock;
  holder_.on_stats = [&clock] { clock.Advance(std::chrono::hours(1)); };
  FleetOptions options;
  options.directory = address_;
  Fleet fleet(options, &clock);
  const std::vector<MemberReport> reports = QueryMembers(fleet, directory_.members);
  ASSERT_EQ(reports.size(), 3 * kParallelJobsMax);
  size_t answer_count = 0;
  for (size_t i = 0; i < reports.size(); ++i) {
    EXPECT_EQ(reports[i].member.id.name, absl::StrCat("h", i));
    answer_count += reports[i].status.ok() ? 1 : 0;
    if (reports[i].status.ok()) continue;
    EXPECT_EQ(reports[i].status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(reports[i].status.message()), HasSubstr("took 1 min 00 s"));
  }
  EXPECT_GE(answer_count, 1u);
  EXPECT_LE(answer_count, kParallelJobsMax);
}

TEST_F(SilentMembersTest, TheListQueriesCorporaAtOnce) {
  for (const char* name : {"a", "b", "c"}) AddCorpus(name);
  directory_.gathering.Expect(3);
  const Ran ran = Run({"corpus", "list", "-o", "json"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  const Json json = Json::parse(ran.text);
  ASSERT_EQ(json["corpora"].size(), 3u);
  for (const Json& corpus : json["corpora"]) EXPECT_TRUE(corpus.contains("layers")) << corpus;
}

TEST_F(SilentMembersTest, ACorpusThatIsLateDoesNotHideTheOthers) {
  for (const char* name : {"a", "late", "z"}) AddCorpus(name);
  directory_.late = {"late"};
  const Ran ran = Run({"corpus", "list", "-o", "json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Json listed = Json::parse(ran.text);
  for (const Json& corpus : listed.at("corpora"))
    EXPECT_EQ(corpus.contains("layers"), corpus["name"] != "late") << corpus;
  EXPECT_THAT(Run({"corpus", "list"}).text, HasSubstr("late    -"));
}

// A holder may take 10 s, and the whole command less.
TEST_F(SilentMembersTest, TokenIdsTakeTimeOfTheWholeCommand) {
  AddHolders(1);
  AddCorpus("docs");
  for (const char* command : {"fetch", "attach"}) {
    holder_.left_max = {};
    const Ran ran = Run({command, "--corpus", "docs", "--out",
                         test::TempPath(absl::StrCat(command, ".ggsq")), "--timeout", "4s"});
    EXPECT_EQ(ran.code, 4) << ran.err;
    EXPECT_GT(holder_.left_max, std::chrono::seconds(0)) << ran.err;
    EXPECT_LT(holder_.left_max, std::chrono::seconds(5)) << command;  // the wire rounds it up
    EXPECT_THAT(ran.err, HasSubstr("token ids of chunk 0"));
  }
}

}  // namespace
}  // namespace ckv::ctl
