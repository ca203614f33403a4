// Goal: kill -9 of a real ckvd at any instant of a load over gRPC loses no acknowledged chunk,
// shows no partial one, and needs no help to start again (I3). Method: one loader, and 200 kills at
// instants drawn from a seed; after each, the next incarnation must verify its chunks.

#include <filesystem>
#include <iostream>
#include <iterator>
#include <random>
#include <set>
#include <thread>

#include "tests/e2e/one_daemon.h"

namespace ckv {
namespace {

using test::Call;

constexpr int kKillCount = 200;
constexpr uint32_t kTokens = 300;  // 170 KB a chunk: many messages, so that kills fall into puts
// All acknowledged chunks are verified once in this many kills, and the last 20 each time.
constexpr int kFullCheckPeriod = 25;

test::TestCorpus ChunkOf(size_t seed) {
  return test::MakeTestCorpus(test::TestGeometry(), {kTokens}, static_cast<uint32_t>(seed));
}

// Puts chunks of rising seeds until the daemon is killed.
class Loader {
 public:
  Loader(v1::HolderService::Stub* stub, size_t seed)
      : stub_(*stub), next_(seed), thread_([this] { Run(); }) {}
  ~Loader() { Join(); }

  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  // After Join: chunks with seeds below it were acknowledged.
  size_t next() const { return next_; }

 private:
  void Run() {
    for (;; ++next_) {
      const test::TestCorpus one = ChunkOf(next_);
      const grpc::Status put = test::Put(stub_, one.geometry, one.chunks[0]);
      // The chunk was whole but unacknowledged when the previous incarnation ended.
      if (!put.ok() && put.error_code() != grpc::StatusCode::ALREADY_EXISTS) return;
    }
  }
  v1::HolderService::Stub& stub_;
  size_t next_;
  std::thread thread_;
};

// Busy-waits: the kill must happen at this very instant.
void AwaitInstant(Instant until) {
  while (Clock::Real()->Now() < until) std::this_thread::yield();
}

std::set<std::string> Listed(v1::HolderService::Stub& stub) {
  std::set<std::string> ids;
  v1::ListChunksRequest request;
  request.set_count_max(10'000);
  v1::ListChunksReply reply;
  Call call;
  const grpc::Status status = stub.ListChunks(call.get(), request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_code() << ": " << status.error_message();
  EXPECT_FALSE(reply.more());
  for (const auto& chunk : reply.chunks()) ids.insert(chunk.id());
  return ids;
}

void ExpectWhole(v1::HolderService::Stub& stub, const std::vector<std::string>& ids) {
  v1::VerifyChunksRequest request;
  *request.mutable_geometry() = ToProto(test::TestGeometry());
  for (const std::string& id : ids) request.add_ids(id);
  Call call;
  const auto reader = stub.VerifyChunks(call.get(), request);
  v1::VerifyChunksReply reply;
  size_t count = 0;
  for (; reader->Read(&reply); ++count)
    EXPECT_EQ(reply.verdict(), v1::CHUNK_VERDICT_WHOLE) << reply.why();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(count, ids.size());
}

TEST(StoreKill, TwoHundredTimesNothingAcknowledgedIsLost) {
  const std::string path = test::TempPath("killed");
  test::OneDaemon daemon("directory,holder", {"--store-path=" + path, "--store-capacity=4MiB"});
  std::mt19937 random(1);
  std::vector<std::string> acknowledged;  // ids, by seed
  uint32_t in_puts = 0;
  const auto id_of = [](size_t seed) {
    return std::string(ChunkOf(seed).chunks[0].info.id.AsBytes());
  };
  for (int kill = 0; kill <= kKillCount; ++kill) {
    daemon.Start();
    if (kill % 20 == 19) {  // before it is up, or while it starts
      AwaitInstant(test::After(std::chrono::microseconds(random() % 40'000)));
      daemon.Kill();
      continue;
    }
    ASSERT_TRUE(daemon.AwaitListening()) << daemon.process().log();
    const std::set<std::string> listed = Listed(daemon.holder());
    for (const std::string& id : acknowledged) ASSERT_EQ(listed.count(id), 1u) << "kill " << kill;
    // One more chunk may be there, whole but unacknowledged, and nothing else.
    ASSERT_EQ(listed.size(), acknowledged.size() + listed.count(id_of(acknowledged.size())));
    std::vector<std::string> check(listed.begin(), listed.end());
    if (kill % kFullCheckPeriod != 0 && kill != kKillCount) {
      check.assign(acknowledged.end() - std::min<ptrdiff_t>(std::ssize(acknowledged), 20),
                   acknowledged.end());
    }
    ExpectWhole(daemon.holder(), check);
    if (kill == kKillCount) break;
    Loader loader(&daemon.holder(), acknowledged.size());
    AwaitInstant(test::After(std::chrono::microseconds(random() % 40'000)));
    daemon.process().Signal(SIGKILL);
    loader.Join();
    while (acknowledged.size() < loader.next()) acknowledged.push_back(id_of(acknowledged.size()));
    daemon.Kill();
    in_puts += !std::filesystem::is_empty(path + "/new");
  }
  EXPECT_GT(acknowledged.size(), size_t{kKillCount} / 4);
  EXPECT_GT(in_puts, 20u) << "kills did fall into puts";
  std::cout << absl::StrFormat("%d chunks acknowledged, %d of %d kills in the middle of a put\n",
                               acknowledged.size(), in_puts, kKillCount);
}

}  // namespace
}  // namespace ckv
