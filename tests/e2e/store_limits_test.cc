// Goal: a real ckvd whose disk is full refuses puts, answers, and takes puts again once there is
// room. One that holds twice what fits in its memory stays within its capacity and a tenth. One
// that keeps stripes for selections reports it.

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include "absl/cleanup/cleanup.h"
#include "tests/e2e/one_daemon.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using test::Call;

// As root, or as root of a user namespace where those are allowed; before there are threads.
bool MountSmall(const std::string& path) {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return mount("tmpfs", path.c_str(), "tmpfs", 0, "size=4m") == 0;
}

// The first test: a namespace of its own needs a process of one thread.
TEST(StoreLimits, AFullDiskRefusesPutsAndNothingElse) {
  const std::string path = test::TempPath("small");
  fs::create_directory(path);
  if (!MountSmall(path))
    GTEST_SKIP() << "no mount for this user: " << strerror(errno)
                 << "; to run it: the same as root";
  // Else the folder of this process, which is busy under a mount, would be left with all in it.
  const absl::Cleanup unmount = [&path] { umount2(path.c_str(), MNT_DETACH); };
  test::OneDaemon daemon("directory,holder,requester",
                         {"--store-path=" + path + "/store", "--store-capacity=1MiB",
                          "--fabrics=shm", "--store-scrub-bytes-per-second=1MiB"});
  daemon.Start();
  ASSERT_TRUE(daemon.AwaitListening()) << daemon.process().log();
  const auto corpus =
      test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(8, 300), /*seed=*/3);
  for (int i = 0; i < 6; ++i)
    ASSERT_TRUE(test::Put(daemon.holder(), corpus.geometry, corpus.chunks[i]).ok());
  test::TestCorpus published = corpus;
  published.chunks.resize(6);
  ASSERT_TRUE(test::Publish(daemon.directory(), published.Publish("c", "", {{{"one"}}})).ok());
  std::mt19937 random(4);
  const std::vector<uint16_t> q = test::RandomBf16(4 * corpus.geometry.d_qk, random);
  // Attends each chunk alone: not all fit in memory, so some are read from the full disk.
  const auto expect_right = [&] {
    for (uint32_t chunk = 0; chunk < 6; ++chunk) {
      v1::AttendRequest request = test::AttendOf("c", 1, q, corpus.geometry.d_qk);
      request.set_chunk_begin(chunk);
      request.set_chunk_end(chunk + 1);
      v1::AttendReply reply;
      grpc::Status status;
      for (const Instant give_up = test::After(test::kStartTime);;) {
        Call call;
        status = daemon.requester().Attend(call.get(), request, &reply);
        // Its lease may begin a moment after the first calls.
        if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
        if (Clock::Real()->Now() >= give_up) break;
      }
      ASSERT_TRUE(status.ok()) << status.error_message();
      test::ExpectNear(reply,
                       test::Reference(corpus.geometry, q, corpus.Rows(1, chunk, chunk + 1)));
    }
  };
  expect_right();
  const std::string ballast = path + "/ballast";
  {
    std::ofstream file(ballast, std::ios::binary);
    const std::string some(4096, 'x');
    while (file.write(some.data(), static_cast<std::streamsize>(some.size())).flush()) continue;
  }
  for (int again = 0; again < 3; ++again) {
    const grpc::Status full = test::Put(daemon.holder(), corpus.geometry, corpus.chunks[6]);
    EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_NE(full.error_message().find("No space left"), std::string::npos)
        << full.error_message();
    expect_right();
  }
  fs::remove(ballast);
  for (int i = 6; i < 8; ++i) {
    const grpc::Status put = test::Put(daemon.holder(), corpus.geometry, corpus.chunks[i]);
    EXPECT_TRUE(put.ok()) << put.error_message();
  }
  expect_right();
  v1::StatsReply stats;
  ASSERT_TRUE(daemon.holder().Stats(Call().get(), {}, &stats).ok());
  EXPECT_EQ(stats.chunk_count(), 8u);
  EXPECT_GT(stats.cold_count(), 0u);
  EXPECT_EQ(stats.damaged_count(), 0u);
}

uint64_t KibibytesOf(const test::Process& process, const std::string& field) {
  std::ifstream status(absl::StrCat("/proc/", process.pid(), "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1));
  }
  ADD_FAILURE() << field;
  return 0;
}

// Method: 2 GiB of chunks of the same rows under ids of their own, every one attended, at the
// default capacity. Of the tenth the process takes 26 MiB before anything is put, and gRPC's
// messages 19 to 37 while one loader sends as fast as it can.
TEST(StoreLimits, TwiceTheCapacityStaysWithinIt) {
#ifdef CKV_TEST_ADDRESS_SANITIZER
  GTEST_SKIP()
      << "a sanitizer's memory is its own; to run it: tests/run.sh, which has no sanitizer";
#endif
  constexpr uint64_t kCapacityKib = 1 << 20;
  constexpr uint32_t kTokens = 2048;
  const Geometry geometry = test::TestGeometry(/*layers=*/4, /*d_qk=*/576, /*d_v=*/512);
  const uint64_t chunk_bytes = kTokens * geometry.token_bytes();
  const auto chunk_count = static_cast<uint32_t>(2 * kCapacityKib * 1024 / chunk_bytes + 1);
  test::OneDaemon daemon("directory,holder",
                         {"--store-path=" + test::TempPath("large"), "--store-capacity=1GiB"});
  daemon.Start();
  ASSERT_TRUE(daemon.AwaitListening()) << daemon.process().log();
  test::OneDaemon asking("requester", {"--directory=" + daemon.address()}, "asking");
  asking.Start();
  ASSERT_TRUE(asking.AwaitListening()) << asking.process().log();
  const uint64_t base_kib = KibibytesOf(daemon.process(), "VmHWM");

  test::TestCorpus one = test::MakeTestCorpus(geometry, {kTokens}, /*seed=*/6);
  test::TestCorpus all = {.geometry = geometry, .chunks = {}};
  std::vector<v1::PutChunkRequest> messages =
      test::MessagesOf(geometry, one.chunks[0], /*piece_bytes=*/1 << 20);
  for (uint32_t i = 0; i < chunk_count; ++i) {
    ChunkInfo& info = one.chunks[0].info;
    info.token_ids[0] = static_cast<int32_t>(i);
    info.id =
        ComputeChunkId(ModelFingerprint(geometry), info.parent, info.position, info.token_ids);
    messages[0] = test::HeaderOf(geometry, one.chunks[0]);
    const grpc::Status put = test::PutMessages(daemon.holder(), messages);
    ASSERT_TRUE(put.ok()) << put.error_message();
    all.chunks.push_back({info, {}});
  }
  ASSERT_TRUE(test::Publish(daemon.directory(), all.Publish("c", "", {{{"one"}}})).ok());
  std::mt19937 random(7);
  const std::vector<uint16_t> q = test::RandomBf16(16 * geometry.d_qk, random);
  std::string first;
  for (uint32_t i = 0; i < chunk_count + chunk_count / 4; ++i) {
    v1::AttendRequest request = test::AttendOf("c", 1, q, geometry.d_qk);
    request.set_chunk_begin(i % chunk_count);
    request.set_chunk_end(i % chunk_count + 1);
    v1::AttendReply reply;
    const grpc::Status status = asking.requester().Attend(Call().get(), request, &reply);
    ASSERT_TRUE(status.ok()) << status.error_message();
    if (i == 0) {
      first = reply.o();
      test::ExpectNear(reply, test::Reference(geometry, q, one.chunks[0].layers[1]));
    }
    ASSERT_EQ(reply.o(), first) << "chunk " << i;
  }
  v1::StatsReply stats;
  ASSERT_TRUE(daemon.holder().Stats(Call().get(), {}, &stats).ok());
  EXPECT_EQ(stats.chunk_count(), chunk_count);
  EXPECT_GT(stats.evicted_count(), chunk_count / 2);
  const uint64_t peak_kib = KibibytesOf(daemon.process(), "VmHWM");
  std::cout << absl::StrFormat(
      "capacity %d KiB; resident at most %d KiB, of which %d KiB before anything was put; now "
      "anonymous %d KiB, shared %d KiB, of files %d KiB\n",
      kCapacityKib, peak_kib, base_kib, KibibytesOf(daemon.process(), "RssAnon"),
      KibibytesOf(daemon.process(), "RssShmem"), KibibytesOf(daemon.process(), "RssFile"));
  EXPECT_LE(peak_kib, kCapacityKib + kCapacityKib / 10);
}

// Method: eight chunks where six fit. One row of each is selected three times: what is cold is read
// once, and found twice.
TEST(StoreLimits, KeptStripesAreReported) {
  test::OneDaemon daemon("directory,holder,requester",
                         {"--store-path=" + test::TempPath("stripes"), "--store-capacity=1MiB",
                          "--store-stripe-percent=10"});
  daemon.Start();
  ASSERT_TRUE(daemon.AwaitListening()) << daemon.process().log();
  const auto corpus =
      test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(8, 300), /*seed=*/3);
  for (const test::TestChunk& chunk : corpus.chunks)
    ASSERT_TRUE(test::Put(daemon.holder(), corpus.geometry, chunk).ok());
  ASSERT_TRUE(test::Publish(daemon.directory(), corpus.Publish("c", "", {{{"one"}}})).ok());
  std::mt19937 random(4);
  const std::vector<uint16_t> q = test::RandomBf16(4 * corpus.geometry.d_qk, random);
  const int32_t first_row = 0;
  for (uint32_t i = 0; i < 3 * 8; ++i) {
    v1::AttendRequest request = test::AttendOf("c", 1, q, corpus.geometry.d_qk);
    request.set_chunk_begin(i % 8);
    request.set_chunk_end(i % 8 + 1);
    request.mutable_selection()->set_indices(&first_row, sizeof(first_row));
    request.mutable_selection()->set_k(1);
    request.mutable_selection()->set_group_rows(4);
    v1::AttendReply reply;
    grpc::Status status;
    for (const Instant give_up = test::After(test::kStartTime);;) {
      status = daemon.requester().Attend(Call().get(), request, &reply);
      // Its lease may begin a moment after the first calls.
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
      if (Clock::Real()->Now() >= give_up) break;
    }
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  v1::StatsReply stats;
  ASSERT_TRUE(daemon.holder().Stats(Call().get(), {}, &stats).ok());
  EXPECT_GE(stats.cold_count(), 2u);
  EXPECT_EQ(stats.stripe_read_count(), stats.cold_count());
  EXPECT_EQ(stats.stripe_hit_count(), 2 * stats.cold_count());
  EXPECT_EQ(stats.stripe_bytes(), stats.cold_count() * 2 * 4096);  // 6144 bytes each
}

}  // namespace
}  // namespace ckv
