// Goal: a fleet of real processes starts, answers right, reports what is wrong, and ends cleanly.
// Method: one ckvd per role on loopback, started and ended by pid; every answer is compared with an
// f64 reference, every wait has a deadline.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "tests/e2e/process.h"
#include "tests/server/services/control_client.h"

namespace ckv {
namespace {

using test::Call;
using test::Process;
using testing::HasSubstr;

Instant After(Duration duration) { return Clock::Real()->Now() + duration; }
// A daemon is up in 50 ms; a loaded machine under a sanitizer gets its time.
constexpr Duration kStartTime = std::chrono::seconds(20);

struct Node {
  std::unique_ptr<Process> process;
  std::string ready_path;
  std::string address;
};

class FleetTest : public testing::TestWithParam<std::string> {
 protected:
  FleetTest() : folder_(MakeFolder()), watch_(folder_) {}
  void TearDown() override {
    nodes_.clear();
    const std::string command = "rm -rf '" + folder_ + "'";
    EXPECT_EQ(std::system(command.c_str()), 0);
  }

  static std::string MakeFolder() {
    std::string folder = testing::TempDir() + "/ckv-e2e-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    return folder;
  }
  std::string PathOf(const std::string& name) const { return folder_ + "/" + name; }

  std::unique_ptr<Process> Run(const std::vector<std::string>& arguments) {
    return std::make_unique<Process>(CKVD_PATH, arguments, PathOf("run.log"));
  }

  // Starts a daemon and waits until it serves.
  Node& Start(const std::string& name, std::vector<std::string> arguments) {
    Node& node = nodes_.emplace_back();
    node.ready_path = PathOf(name + ".ready");
    arguments.insert(arguments.end(),
                     {"--name=" + name, "--listen=127.0.0.1:0", "--ready-file=" + node.ready_path});
    node.process = std::make_unique<Process>(CKVD_PATH, arguments, PathOf(name + ".log"));
    EXPECT_TRUE(watch_.Await(node.ready_path, true, node.process->pidfd(), After(kStartTime)))
        << name << ":\n"
        << node.process->log();
    std::ifstream(node.ready_path) >> node.address;
    return node;
  }

  // nodes_: directory, holders, requester.
  void StartFleet(size_t holder_count) {
    nodes_.reserve(holder_count + 2);
    Start("directory", {"--role=directory"});
    const std::string directory = "--directory=" + nodes_[0].address;
    const std::string fabrics = "--fabrics=" + GetParam();
    for (size_t i = 0; i < holder_count; ++i) {
      Start("h" + std::to_string(i),
            {"--role=holder", directory, fabrics, "--store-capacity=64MiB"});
    }
    Start("requester", {"--role=requester", directory, fabrics});
    requester_ = v1::RequesterService::NewStub(MakeChannel(nodes_.back().address));
  }
  Node& holder(size_t i) { return nodes_[1 + i]; }

  void Load(const test::TestCorpus& corpus, size_t holder_count) {
    std::vector<std::vector<HolderId>> placement;
    for (size_t i = 0; i < holder_count; ++i) placement.push_back({{"h" + std::to_string(i)}});
    for (size_t i = 0; i < corpus.chunks.size(); ++i) {
      const auto stub = v1::HolderService::NewStub(MakeChannel(holder(i % holder_count).address));
      const grpc::Status put = test::Put(*stub, corpus.geometry, corpus.chunks[i]);
      ASSERT_TRUE(put.ok()) << put.error_message();
    }
    const auto directory = v1::DirectoryService::NewStub(MakeChannel(nodes_[0].address));
    const grpc::Status published = test::Publish(*directory, corpus.Publish("c", "", placement));
    ASSERT_TRUE(published.ok()) << published.error_message();
  }

  grpc::Status Attend(const v1::AttendRequest& request, v1::AttendReply* reply) {
    Call call;
    return requester_->Attend(call.get(), request, reply);
  }

  const std::string folder_;
  test::FolderWatch watch_;
  std::vector<Node> nodes_;
  std::unique_ptr<v1::RequesterService::Stub> requester_;
};

TEST_P(FleetTest, StartsAnswersAndDrains) {
  StartFleet(2);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {64, 5, 0, 130, 1}, /*seed=*/1);
  Load(corpus, 2);
  std::mt19937 rng(2);
  const std::vector<uint16_t> q = test::RandomBf16(16 * corpus.geometry.d_qk, rng);
  for (uint32_t layer = 0; layer < corpus.geometry.layers; ++layer) {
    v1::AttendReply reply;
    const grpc::Status status = Attend(test::AttendOf("c", layer, q, corpus.geometry.d_qk), &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    test::ExpectNear(reply, test::Reference(corpus.geometry, q, corpus.Rows(layer)));
    EXPECT_EQ(reply.holder_count(), 2u);
  }

  // Of two fabrics, one was chosen by what both were measured at.
  v1::DescribeReply described;
  ASSERT_TRUE(requester_->Describe(Call().get(), {}, &described).ok());
  ASSERT_EQ(described.holders_size(), 2);
  for (const auto& seen : described.holders()) {
    EXPECT_TRUE(seen.connected());
    EXPECT_EQ(seen.trials_size(), GetParam() == "tcp" ? 0 : 2);
    EXPECT_TRUE(seen.fabric() == "tcp" || (seen.trials_size() == 2 && seen.fabric() == "shm"));
    for (const auto& trial : seen.trials()) EXPECT_GT(trial.exchange_us(), 0) << trial.why_not();
  }

  v1::AttendRequest unknown = test::AttendOf("c", 0, q, corpus.geometry.d_qk);
  unknown.clear_corpus();
  *unknown.mutable_geometry() = ToProto(corpus.geometry);
  unknown.add_chunks()->set_id(std::string(32, 'x'));
  v1::AttendReply reply;
  EXPECT_EQ(Attend(unknown, &reply).error_code(), grpc::StatusCode::NOT_FOUND);

  while (!nodes_.empty()) {
    Node& node = nodes_.back();
    const Instant start = Clock::Real()->Now();
    node.process->Signal(SIGTERM);
    EXPECT_EQ(node.process->AwaitExit(After(std::chrono::seconds(15))), 0) << node.process->log();
    // Far below the 5 s that calls in progress would get: nothing is.
    EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(3));
    EXPECT_NE(access(node.ready_path.c_str(), F_OK), 0);
    EXPECT_THAT(node.process->log(), HasSubstr("drained"));
    nodes_.pop_back();
  }
}

// Goal: a holder that dies in the middle of a stream makes errors, never wrong rows (I1, I2).
// Method: requests are written ahead, one holder is killed after a few replies; every reply must be
// the first one bit for bit or UNAVAILABLE in time; what the other holder has is still answered.
TEST_P(FleetTest, AHolderKilledMidStreamIsUnavailableAndNeverWrong) {
  StartFleet(2);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {200, 200}, /*seed=*/3);
  Load(corpus, 2);
  std::mt19937 rng(4);
  const std::vector<uint16_t> q = test::RandomBf16(16 * corpus.geometry.d_qk, rng);
  v1::AttendRequest request = test::AttendOf("c", 1, q, corpus.geometry.d_qk);
  request.set_timeout_ms(1000);
  // Policy auto prefetches rows that are queried often, and then needs no holder.
  request.set_policy(v1::CONTEXT_POLICY_ROUTE);

  Call call;
  const auto stream = requester_->AttendStream(call.get());
  constexpr int kRequestCount = 15;
  constexpr int kKillAfter = 10;
  v1::AttendStreamReply first;
  int refused = 0;
  for (int i = 0; i < kRequestCount; ++i) {
    ASSERT_TRUE(stream->Write(request));
    if (i == kKillAfter) holder(1).process->Signal(SIGKILL);
    const Instant start = Clock::Real()->Now();
    v1::AttendStreamReply reply;
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(6));
    if (i == 0) {
      ASSERT_EQ(reply.code(), 0u) << reply.message();
      test::ExpectNear(reply.reply(), test::Reference(corpus.geometry, q, corpus.Rows(1)));
      first = reply;
    } else if (reply.code() == 0) {
      EXPECT_EQ(reply.reply().o(), first.reply().o());
      EXPECT_EQ(reply.reply().m(), first.reply().m());
      EXPECT_EQ(reply.reply().l(), first.reply().l());
    } else {
      EXPECT_EQ(reply.code(), static_cast<uint32_t>(grpc::StatusCode::UNAVAILABLE))
          << reply.message();
      EXPECT_GE(i, kKillAfter);
      ++refused;
    }
  }
  EXPECT_GE(refused, kRequestCount - kKillAfter - 1);

  request.set_chunk_end(1);  // of the holder that is alive
  ASSERT_TRUE(stream->Write(request));
  v1::AttendStreamReply alive;
  ASSERT_TRUE(stream->Read(&alive));
  ASSERT_EQ(alive.code(), 0u) << alive.message();
  test::ExpectNear(alive.reply(), test::Reference(corpus.geometry, q, corpus.Rows(1, 0, 1)));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(holder(1).process->AwaitExit(After(std::chrono::seconds(5))), 128 + SIGKILL);
}

// Goal: a holder that does not respond costs its caller at most the deadline, and answers again.
TEST_P(FleetTest, AStoppedHolderEndsInTheDeadline) {
  StartFleet(1);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {50}, /*seed=*/5);
  Load(corpus, 1);
  std::mt19937 rng(6);
  const std::vector<uint16_t> q = test::RandomBf16(corpus.geometry.d_qk, rng);
  v1::AttendRequest request = test::AttendOf("c", 0, q, corpus.geometry.d_qk);
  request.set_policy(v1::CONTEXT_POLICY_ROUTE);  // locally cached rows need no holder
  v1::AttendReply reply;
  ASSERT_TRUE(Attend(request, &reply).ok());
  const std::string o = reply.o();

  holder(0).process->Stop();
  request.set_timeout_ms(300);
  const Instant start = Clock::Real()->Now();
  EXPECT_EQ(Attend(request, &reply).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(3));
  holder(0).process->Signal(SIGCONT);

  request.set_timeout_ms(5000);
  grpc::Status status;
  const Instant deadline = After(std::chrono::seconds(10));
  do {  // a lane or a lease may have to be renewed first
    status = Attend(request, &reply);
  } while (!status.ok() && Clock::Real()->Now() < deadline);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.o(), o);
}

INSTANTIATE_TEST_SUITE_P(Fabrics, FleetTest, testing::Values("shm,tcp", "tcp"),
                         [](const auto& fabrics) {
                           return std::string(fabrics.param == "tcp" ? "Tcp" : "Shm");
                         });

using DaemonProcessTest = FleetTest;
INSTANTIATE_TEST_SUITE_P(Once, DaemonProcessTest, testing::Values("tcp"));

TEST_P(DaemonProcessTest, ConfigErrorsExitWith2) {
  const std::string path = PathOf("ckvd.yaml");
  std::ofstream(path) << "role: directory\nlisten: nonsense\nstore: {capasity: 1GiB}\n";
  const auto bad = Run({"--config", path});
  EXPECT_EQ(bad->AwaitExit(After(kStartTime)), 2);
  EXPECT_THAT(bad->log(), HasSubstr("ckvd.yaml:2: listen: 'nonsense' is not host:port"));
  EXPECT_THAT(bad->log(), HasSubstr("ckvd.yaml:3: store.capasity: unknown key; did you mean "
                                    "store.capacity?"));
  const auto flag = Run({"--role=directory", "--lissen=h:1"});
  EXPECT_EQ(flag->AwaitExit(After(kStartTime)), 2);
  EXPECT_THAT(flag->log(), HasSubstr("--lissen: unknown flag; did you mean --listen?"));

  std::ofstream(path) << "role: directory\nstore: {capacity: 1GiB}\n";
  const auto good = Run({"--config", path, "--check-config"});
  EXPECT_EQ(good->AwaitExit(After(kStartTime)), 0);
  EXPECT_THAT(good->log(), HasSubstr("capacity: \"1GiB\"  # " + path + ":2: store.capacity"));
}

TEST_P(DaemonProcessTest, AnAddressInUseExitsWith1AndARemedy) {
  const Node& first = Start("directory", {"--role=directory"});
  const auto second = Run({"--role=directory", "--listen=" + first.address});
  EXPECT_EQ(second->AwaitExit(After(kStartTime)), 1);
  EXPECT_THAT(second->log(), HasSubstr("Address already in use; choose another by --listen"));
}

TEST_P(DaemonProcessTest, ASecondProcessOfANameEndsAndNamesTheFirst) {
  const std::string directory = "--directory=" + Start("d", {"--role=directory"}).address;
  nodes_.reserve(2);
  const std::string held_by =
      Start("h1", {"--role=holder", directory, "--lease-ttl=500ms"}).address;
  const auto second = Run({"--role=holder", "--name=h1", "--listen=127.0.0.1:0", directory,
                           "--lease-ttl=500ms", "--store-capacity=1MiB"});
  EXPECT_EQ(second->AwaitExit(After(kStartTime)), 1);
  const std::string refusal = "name 'h1' is held by " + held_by + "; choose another with --name";
  EXPECT_THAT(second->log(), HasSubstr(refusal + ". Waiting 500 ms for that lease to run out"));
  EXPECT_THAT(second->log(), HasSubstr("error directory " + directory.substr(12) +
                                       ": Register: " + refusal + "\n"));
}

// Goal: SIGHUP reloads the configuration and ends nothing, whatever the file contains by then.
TEST_P(DaemonProcessTest, AHangUpReloadsAndNeverEnds) {
  const std::string path = testing::TempDir() + "/reload." + std::to_string(getpid()) + ".yaml";
  const auto write = [&path](const std::string& text) { std::ofstream(path) << text; };
  write("log.level: info\ndrain_timeout: 5s\nlease_ttl: 3s\n");
  Node& node = Start("d", {"--role=directory", "--config=" + path});
  const auto reload_until = [&node](const std::string& line) {
    node.process->Signal(SIGHUP);
    const Instant deadline = After(kStartTime);
    while (node.process->log().find(line) == std::string::npos) {
      if (Clock::Real()->Now() > deadline) return false;
      Clock::Real()->WaitUntil(Clock::Real()->Now() + std::chrono::milliseconds(5));
    }
    return true;
  };
  write("log.level: debug\ndrain_timeout: 7s\nlease_ttl: 4s\n");
  EXPECT_TRUE(reload_until("2 changed, 1 need a restart")) << node.process->log();
  EXPECT_THAT(node.process->log(),
              AllOf(HasSubstr("log.level: 'info' is now 'debug'"),
                    HasSubstr("lease_ttl: '3s' here, '4s' in the configuration: needs a restart")));
  write("log.level: loud\n");
  EXPECT_TRUE(reload_until("nothing changes: " + path + ":1: log.level")) << node.process->log();
  std::remove(path.c_str());
  EXPECT_TRUE(reload_until("nothing changes: " + path + ": No such file")) << node.process->log();
  node.process->Signal(SIGTERM);
  EXPECT_EQ(node.process->AwaitExit(After(kStartTime)), 0) << node.process->log();
  EXPECT_THAT(node.process->log(), HasSubstr("Terminated: draining, at most 7000 ms"));
}

// Goal: a second signal does not wait for the drain. Method: an unfinished put keeps the drain
// busy; the ready file is removed when the drain begins.
TEST_P(DaemonProcessTest, ASecondSignalExitsAtOnceWith1) {
  Node& node = Start("all", {"--role=directory,holder", "--drain-timeout=1min"});
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {8}, /*seed=*/7);
  const auto stub = v1::HolderService::NewStub(MakeChannel(node.address));
  Call call;
  v1::PutChunkReply reply;
  const auto writer = stub->PutChunk(call.get(), &reply);
  ASSERT_TRUE(writer->Write(test::HeaderOf(corpus.geometry, corpus.chunks[0])));
  // The put has begun once its memory is reserved.
  v1::StatsReply stats;
  const Instant deadline = After(std::chrono::seconds(10));
  while (stats.used_bytes() == 0 && Clock::Real()->Now() < deadline) {
    ASSERT_TRUE(stub->Stats(Call().get(), {}, &stats).ok());
  }
  node.process->Signal(SIGTERM);
  ASSERT_TRUE(watch_.Await(node.ready_path, false, node.process->pidfd(), deadline));
  node.process->Signal(SIGTERM);
  EXPECT_EQ(node.process->AwaitExit(After(std::chrono::seconds(10))), 1) << node.process->log();
}

}  // namespace
}  // namespace ckv
