// Goal: daemons start, report their state, refuse what cannot work, and drain.
// Method: whole daemons in this process, called over gRPC as any client would.

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "attention/mla_partial.h"
#include "client/cost/profile_file.h"
#include "tests/server/services/services_fixture.h"
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

using DaemonTest = test::ServicesTest;

TEST_F(DaemonTest, HealthAndReflectionOfEveryServer) {
  StartHolders(1);
  StartRequester();
  const std::pair<Daemon*, std::string> servers[] = {{directory_.get(), "DirectoryService"},
                                                     {holders_[0].get(), "HolderService"},
                                                     {requester_.get(), "RequesterService"}};
  for (const auto& [daemon, name] : servers) {
    const std::string service = "ckv.v1." + name;
    const auto channel = MakeChannel(daemon->address());
    const test::HealthAnswer whole = test::CheckHealth(channel, "");
    EXPECT_TRUE(whole.status.ok()) << whole.status.error_message();
    EXPECT_EQ(whole.serving, 1);
    EXPECT_EQ(test::CheckHealth(channel, service).serving, 1) << service;
    EXPECT_EQ(test::CheckHealth(channel, "ckv.v1.Nothing").status.error_code(),
              grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(test::ListServices(channel),
                AllOf(HasSubstr(service), HasSubstr("grpc.health.v1.Health")));
  }
}

TEST_F(DaemonTest, AHolderWithoutADirectoryIsNotReadyAndNotServing) {
  Config config = ConfigOf({"holder"}, "alone");
  config.directory = "127.0.0.1:9";  // discard: no one listens
  config.ready_file = test::TempPath("alone.ready");
  const auto daemon = Daemon::Start(config);
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const absl::Status ready =
      (*daemon)->AwaitReady(Clock::Real()->Now() + std::chrono::milliseconds(50));
  EXPECT_EQ(ready.code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE((*daemon)->Tick().ok());
  EXPECT_FALSE((*daemon)->ready());
  EXPECT_NE(access(config.ready_file.c_str(), F_OK), 0);
  const auto channel = MakeChannel((*daemon)->address());
  EXPECT_EQ(test::CheckHealth(channel, "ckv.v1.HolderService").serving, 2);
  EXPECT_EQ(test::CheckHealth(channel, "").serving, 2) << "what Kubernetes asks";
}

TEST_F(DaemonTest, ComputesWithTheConfiguredKernelTarget) {
  Config config = MemberOf({"holder"}, "told");
  config.kernel_target = "PDP11";
  const absl::Status refused = Daemon::Start(config).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("kernel_target"), HasSubstr("PDP11"),
                    HasSubstr(std::string(KernelTargets().front()))));
  const std::string target(KernelTargets()[1]);
  config.kernel_target = target;
  config.metrics_address = "127.0.0.1:0";
  {
    const auto daemon = StartDaemon(config);
    const auto stub = v1::HolderService::NewStub(MakeChannel(daemon->address()));
    v1::StatsReply stats;
    ASSERT_TRUE(stub->Stats(Call().get(), {}, &stats).ok());
    EXPECT_EQ(stats.kernel_target(), target);
    EXPECT_EQ(static_cast<size_t>(stats.kernel_targets_size()), KernelTargets().size());
    EXPECT_EQ(stats.kernel_targets(1), target);
    v1::ListMembersReply members;
    ASSERT_TRUE(directory_stub_->ListMembers(Call().get(), {}, &members).ok());
    EXPECT_EQ(members.members(0).kernel_target(), target);
    EXPECT_THAT(test::Scrape(daemon->metrics_address()).text(),
                HasSubstr("kernel=\"" + target + "\""));
  }
  ASSERT_TRUE(ForceKernelTarget("").ok());
}

// One file of a host serves all its daemons, and a directory may not see the device of the others.
TEST_F(DaemonTest, ADirectoryNeedsNoFabric) {
  Config config = ConfigOf({"directory"}, "far from RDMA");
  config.fabrics = {"verbs"};
  config.verbs_device = "none";
  const auto directory = Daemon::Start(config);
  EXPECT_TRUE(directory.ok()) << directory.status();
  Config holder = MemberOf({"holder"}, "h");
  holder.fabrics = {"verbs"};
  holder.verbs_device = "none";
  EXPECT_FALSE(Daemon::Start(holder).ok());
}

TEST_F(DaemonTest, AReadyFileThatIsALinkStaysOne) {
  const std::string file = test::TempPath("linked.ready"), link = test::TempPath("link.ready");
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);
  Config config = MemberOf({"holder"}, "linked");
  config.ready_file = link;
  std::string address;
  {
    const auto daemon = StartDaemon(config);
    ASSERT_TRUE(daemon->AwaitReady(Soon()).ok());
    std::ifstream(file) >> address;
    EXPECT_EQ(address, daemon->address());
  }
  struct stat found = {};
  ASSERT_EQ(lstat(link.c_str(), &found), 0);
  EXPECT_TRUE(S_ISLNK(found.st_mode));
}

// Goal: a holder that lost its directory reports so on every interface.
TEST_F(DaemonTest, AHolderWithAnEndedLeaseReportsItEverywhere) {
  Config config = MemberOf({"holder", "requester"}, "left");
  config.lease_ttl = std::chrono::milliseconds(500);
  config.metrics_address = "127.0.0.1:0";
  const auto daemon = StartDaemon(config);
  const auto channel = MakeChannel(daemon->address());
  EXPECT_EQ(test::CheckHealth(channel, "").serving, 1);
  const auto held = [&] {
    const test::Scrape scrape(daemon->metrics_address());
    return std::pair(scrape["ckv_lease_held{role=\"holder\"}"],
                     scrape["ckv_lease_held{role=\"requester\"}"]);
  };
  EXPECT_EQ(held(), std::pair(1.0, 1.0));
  directory_.reset();
  const Instant give_up = Soon();
  while (held() != std::pair(0.0, 0.0) && Clock::Real()->Now() < give_up) {
  }
  EXPECT_EQ(held(), std::pair(0.0, 0.0));
  v1::StatsReply stats;
  Call call;
  const auto holder = v1::HolderService::NewStub(channel);
  ASSERT_TRUE(holder->Stats(call.get(), {}, &stats).ok());
  EXPECT_TRUE(stats.refuses_without_lease());
  ASSERT_TRUE(daemon->Tick().ok());
  EXPECT_EQ(test::CheckHealth(channel, "ckv.v1.HolderService").serving, 2);
  EXPECT_EQ(test::CheckHealth(channel, "").serving, 2);
}

TEST_F(DaemonTest, AProcessWithoutANameIsNamedByItsPort) {
  Config config = MemberOf({"holder"}, "");
  const auto daemon = StartDaemon(config);
  v1::ListMembersReply members;
  ASSERT_TRUE(directory_stub_->ListMembers(Call().get(), {}, &members).ok());
  ASSERT_EQ(members.members_size(), 1);
  const std::string& address = daemon->address();
  EXPECT_THAT(members.members(0).id(),
              testing::EndsWith("-holder-" + address.substr(address.rfind(':') + 1)));
  EXPECT_EQ(members.members(0).control_address(), address);
}

TEST_F(DaemonTest, ASecondProcessOfANameEndsAndLeavesTheFirstAlone) {
  StartHolders(1);
  Config config = MemberOf({"holder"}, "h0");
  config.lease_ttl = std::chrono::milliseconds(500);
  const auto second = Daemon::Start(config);
  ASSERT_TRUE(second.ok()) << second.status();
  const absl::Status refused = (*second)->AwaitReady(Soon());
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("name 'h0' is held by " + holders_[0]->address() + "; choose another with --name"));
  EXPECT_EQ((*second)->Tick(), refused) << "which ends the process";
  ASSERT_TRUE(holders_[0]->Tick().ok());
  const auto channel = MakeChannel(holders_[0]->address());
  EXPECT_EQ(test::CheckHealth(channel, "ckv.v1.HolderService").serving, 1);
}

TEST_F(DaemonTest, ReportsAnAddressInUse) {
  Config config = ConfigOf({"directory"}, "second");
  config.listen = directory_->address();
  const auto second = Daemon::Start(config);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(directory_->address()), HasSubstr("Address already in use"),
                    HasSubstr("--listen")));
}

TEST_F(DaemonTest, ReportsAMetricsAddressInUse) {
  Config config = ConfigOf({"directory"}, "second");
  config.metrics_address = directory_->address();
  const auto second = Daemon::Start(config);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              "cannot serve metrics: cannot listen on " + directory_->address() +
                  ": Address already in use; choose another address by --metrics-address");
  EXPECT_EQ(directory_->metrics_address(), "") << "off unless asked for";
}

TEST_F(DaemonTest, AProfileThatCannotBeReadEndsTheStart) {
  Config config = MemberOf({"requester"}, "seeded");
  config.requester_profile = test::TempPath("no-profile.json");
  const auto none = Daemon::Start(config);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()),
              AllOf(HasSubstr("requester.profile"), HasSubstr(config.requester_profile)));
  std::string text = FormatProfile({});
  const std::string_view field = "\"merge_per_row_us\": ";
  const size_t at = text.find(field);
  ASSERT_NE(at, std::string::npos) << text;
  text.insert(at + field.size(), "-1");
  std::ofstream(config.requester_profile) << text;
  const auto bad = Daemon::Start(config);
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.status().message()),
              AllOf(HasSubstr("requester.profile"), HasSubstr(config.requester_profile),
                    HasSubstr("merge_per_row_us: negative")));
  // A profile of another host is reported as ignored, and does not keep the daemon from serving.
  Profile profile;
  profile.subject = "of something else";
  ASSERT_TRUE(WriteProfile(config.requester_profile, profile).ok());
  const auto started = Daemon::Start(config);
  EXPECT_TRUE(started.ok()) << started.status();
}

// Goal: one process may have all roles, and exports metrics of each to Prometheus. Method: put,
// publish and attend through a single daemon.
TEST_F(DaemonTest, RunsAllRolesInOneProcess) {
  Config config = ConfigOf({"directory", "holder", "requester"}, "all");
  config.ready_file = test::TempPath("all.ready");
  config.metrics_address = "127.0.0.1:0";
  config.fabric = "shm";  // fixed in advance
  const auto daemon = StartDaemon(config);
  EXPECT_EQ(access(config.ready_file.c_str(), F_OK), 0);
  const auto channel = MakeChannel(daemon->address());
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {5, 64}, /*seed=*/20);
  const auto holder = v1::HolderService::NewStub(channel);
  for (const test::TestChunk& chunk : corpus.chunks) {
    ASSERT_TRUE(test::Put(*holder, corpus.geometry, chunk).ok());
  }
  ASSERT_TRUE(
      test::Publish(*v1::DirectoryService::NewStub(channel), corpus.Publish("c", "", {{{"all"}}}))
          .ok());
  std::mt19937 rng(21);
  const std::vector<uint16_t> q = test::RandomBf16(4 * corpus.geometry.d_qk, rng);
  v1::AttendReply reply;
  const grpc::Status status = v1::RequesterService::NewStub(channel)->Attend(
      Call().get(), test::AttendOf("c", 0, q, corpus.geometry.d_qk), &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  test::ExpectNear(reply, test::Reference(corpus.geometry, q, corpus.Rows(0)));

  const test::Scrape scrape(daemon->metrics_address());
  EXPECT_EQ(scrape["ckv_requester_attends_total"], 1);
  EXPECT_EQ(scrape["ckv_requester_lanes{holder=\"all\",fabric=\"shm\"}"], 1);
  EXPECT_EQ(scrape["ckv_holder_lanes{fabric=\"shm\"}"], 1);
  EXPECT_EQ(scrape["ckv_holder_query_rows_total"], 4);
  EXPECT_EQ(scrape["ckv_holder_lease_live"], 1);
  EXPECT_EQ(scrape["ckv_lease_held{role=\"holder\"}"], 1);
  EXPECT_EQ(scrape["ckv_lease_held{role=\"requester\"}"], 1);
  EXPECT_EQ(scrape["ckv_directory_corpora"], 1);
  daemon->Drain(Soon());
  EXPECT_NE(access(config.ready_file.c_str(), F_OK), 0);
}

// Goal: idle streams do not hold a drain up. Method: an open AttendStream and an open Watch, and a
// drain with a deadline far beyond what it may take.
TEST_F(DaemonTest, DrainEndsStreamsThatWait) {
  StartRequester();
  Call attend_call;
  const auto stream = requester_stub_->AttendStream(attend_call.get());
  v1::AttendRequest request;
  request.set_corpus("nothing");
  ASSERT_TRUE(stream->Write(request));
  v1::AttendStreamReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.code(), static_cast<uint32_t>(grpc::StatusCode::NOT_FOUND));

  const Instant start = Clock::Real()->Now();
  const Duration limit = std::chrono::seconds(60);
  requester_->Drain(start + limit);
  EXPECT_FALSE(stream->Read(&reply));
  // CANCELLED would look like the frontend's own doing; this it retries elsewhere.
  const grpc::Status ended = stream->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(ended.error_message(), HasSubstr("draining"));

  Call watch_call;
  const auto reader = directory_stub_->Watch(watch_call.get(), {});
  v1::WatchEvent event;
  ASSERT_TRUE(reader->Read(&event));
  directory_->Drain(start + limit);
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(Clock::Real()->Now() - start, limit / 2);
}

}  // namespace
}  // namespace ckv
