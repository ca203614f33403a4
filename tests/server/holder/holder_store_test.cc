// Goal: what does not fit in a holder's memory is answered for from its disk, with the same bits,
// and what it held is there after a restart. Method: a real holder with a folder and memory for a
// third of its chunks, a real requester over every fabric of this host.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "server/holder/holder.h"
#include "tests/server/dispatch/one_holder.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using test::Answer;
using test::MakeTestCorpus;
using test::OneHolder;
using test::PutChunk;
using test::RandomBf16;
using test::Soon;
using test::TestGeometry;

std::unique_ptr<Fabric> Make(FabricKind kind) {
  if (kind == FabricKind::kShm) return NewShmFabric(Clock::Real());
  if (kind == FabricKind::kTcp) return NewTcpFabric(Clock::Real());
  return NewLoopbackFabric(Clock::Real());
}

struct HolderStoreTest : testing::TestWithParam<FabricKind> {
  HolderStoreTest() {
    static int count = 0;
    path = test::TempPath(absl::StrCat("holder", count++));
    fleet = std::make_unique<OneHolder>(fabric.get(), path);
    Start();
    for (const auto& chunk : corpus.chunks) {
      const absl::Status put = PutChunk(fleet->holder().store(), corpus.geometry, chunk);
      EXPECT_TRUE(put.ok()) << put;
    }
    fleet->corpus = corpus.Publish("c", "", {{HolderId{"h"}}});
  }
  ~HolderStoreTest() override { requester.reset(); }

  // Memory for this many chunks of 100 tokens.
  void Start(size_t chunk_count = 4) {
    requester.reset();
    fleet->Start(chunk_count * ChunkLayout(corpus.geometry, 100).total_bytes());
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    requester = *Requester::Create(options, fleet.get(), fleet.get());
  }
  absl::Status Ask(uint32_t chunk, Answer* answer, std::span<const int32_t> selected = {}) {
    const ChunkUse use = {chunk, 0};
    AttendCall call;
    CKV_ASSIGN_OR_RETURN(call.corpus, requester->Resolve("c", "", Soon()));
    call.chunks = {&use, 1};
    call.layer = 1;
    call.q = {q.data(), 16, 96};
    if (!selected.empty())
      call.selection = {selected.data(), static_cast<uint32_t>(selected.size()), 16};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    return requester->Attend(call, answer->View(), nullptr);
  }
  void ExpectRight(uint32_t chunk) {
    Answer answer(16, 64);
    const absl::Status status = Ask(chunk, &answer);
    ASSERT_TRUE(status.ok()) << status;
    const auto want = test::Reference(corpus, 1, {chunk}, {q.data(), 16, 96}, {});
    test::ExpectNear(answer, want, 1e-5);
  }
  std::string FileOf(uint32_t chunk) {
    return test::ChunkFileOf(path, corpus.chunks[chunk].info.id);
  }

  std::string path;
  std::unique_ptr<Fabric> fabric = Make(GetParam());
  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), std::vector<uint32_t>(12, 100), 3);
  std::mt19937 rng{3};
  std::vector<uint16_t> q = RandomBf16(16 * 96, rng);
  std::unique_ptr<OneHolder> fleet;
  std::unique_ptr<Requester> requester;
};

INSTANTIATE_TEST_SUITE_P(Fabrics, HolderStoreTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         [](const auto& fabric) { return std::string(FabricName(fabric.param)); });

TEST_P(HolderStoreTest, EveryChunkIsAnsweredForColdOrHot) {
  EXPECT_GE(fleet->holder().stats().table.cold_count, 8u);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t chunk = 0; chunk < 12; ++chunk) ExpectRight(chunk);
  }
  EXPECT_GE(fleet->holder().stats().cold_count, 8u);
  EXPECT_EQ(fleet->holder().stats().table.pin_count,
            fleet->holder().store().stats().table.pin_count);
}

TEST_P(HolderStoreTest, ARestartForgetsNothing) {
  Answer before(16, 64), after(16, 64);
  ASSERT_TRUE(Ask(5, &before).ok());
  Start();
  EXPECT_EQ(fleet->holder().stats().table.chunk_count, 12u);
  ASSERT_TRUE(Ask(5, &after).ok());
  EXPECT_TRUE(after.SameBits(before));
  for (uint32_t chunk = 0; chunk < 12; ++chunk) ExpectRight(chunk);
}

TEST_P(HolderStoreTest, AFetchOfAllReadsBothTiers) {
  FetchCall fetch;
  fetch.corpus = *requester->Resolve("c", "", Soon());
  fetch.chunk_end = 12;
  fetch.tensor_end = corpus.geometry.layers;
  fetch.deadline = Soon();
  std::map<std::pair<uint32_t, uint32_t>, std::string> rows;
  const absl::Status status = requester->Fetch(fetch, [&](const FetchedRows& run) {
    rows[{run.chunk, run.tensor}].append(reinterpret_cast<const char*>(run.rows.data()),
                                         run.rows.size());
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  for (uint32_t chunk = 0; chunk < 12; ++chunk) {
    for (uint32_t layer = 0; layer < corpus.geometry.layers; ++layer) {
      const auto want = std::as_bytes(std::span(corpus.chunks[chunk].layers[layer]));
      const std::string& got = rows[{chunk, layer}];
      ASSERT_EQ(got, std::string(reinterpret_cast<const char*>(want.data()), want.size()));
    }
  }
}

// Chunks that do not fit in memory together are read a layer at a time, outside that memory.
TEST_P(HolderStoreTest, MoreAtOnceThanFitsIsAnsweredWithTheSameBits) {
  std::vector<Answer> answers(2, Answer(16, 64));
  for (const int chunks_that_fit : {12, 4}) {
    Start(chunks_that_fit);
    AttendCall call;
    call.corpus = *requester->Resolve("c", "", Soon());
    call.layer = 1;
    call.q = {q.data(), 16, 96};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    Answer& answer = answers[chunks_that_fit == 4];
    for (int round = 0; round < 2; ++round) {
      const absl::Status status = requester->Attend(call, answer.View(), nullptr);
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  EXPECT_TRUE(answers[0].SameBits(answers[1]));
  EXPECT_EQ(fleet->holder().stats().table.cold_count, 8u);
}

// Of a chunk on disk only the stripes that have selected rows are read; once as much was read as
// the chunk has, it is read whole. Nothing is kept between two selections here
// (holder_stripe_test.cc).
TEST_P(HolderStoreTest, SelectedRowsOfAColdChunkLeaveItCold) {
  const std::vector<int32_t> selected = {97, 3, -1, 50, 3};
  Answer hot(16, 64), cold(16, 64);
  ExpectRight(6);
  ASSERT_TRUE(Ask(6, &hot, selected).ok());
  fleet->stripe_bytes_max = 0;
  Start();  // all cold
  // Three stripes of 32 rows each time.
  const uint64_t whole_after = corpus.geometry.layers * 100 / 96;
  for (uint64_t requested = 1; requested <= whole_after; ++requested) {
    ASSERT_TRUE(Ask(6, &cold, selected).ok());
    EXPECT_TRUE(cold.SameBits(hot));
    EXPECT_EQ(fleet->holder().store().stats().load_count, 0u) << requested;
  }
  EXPECT_EQ(fleet->holder().stats().table.cold_count, 12u);
  for (int more = 0; more < 2; ++more) ASSERT_TRUE(Ask(6, &cold, selected).ok());
  EXPECT_TRUE(cold.SameBits(hot));
  EXPECT_EQ(fleet->holder().store().stats().load_count, 1u);
}

TEST_P(HolderStoreTest, DamageAmongSelectedRowsIsNeverAnswered) {
  Start();  // all cold
  const uint64_t row_bytes = corpus.geometry.row_bytes();
  const ChunkLayout layout(corpus.geometry, 100);
  const uint64_t rows_begin = fs::file_size(FileOf(7)) - layout.total_bytes();
  test::FlipBits(FileOf(7), static_cast<int64_t>(rows_begin + layout.begin(1) + 40 * row_bytes));
  Answer answer(16, 64);
  EXPECT_TRUE(Ask(7, &answer, std::vector<int32_t>{3, 31, 64, 99}).ok());
  Answer damaged(16, 64);
  EXPECT_FALSE(Ask(7, &damaged, std::vector<int32_t>{3, 63}).ok());
  EXPECT_TRUE(damaged.Untouched());
  EXPECT_EQ(fleet->holder().store().stats().damaged_count, 1u);
}

// A request that was answered holds no chunk any more: memory full of what was read makes room for
// what is put.
TEST_P(HolderStoreTest, ReadChunksMakeRoomForAPut) {
  Start();  // all cold
  const ChunkUse four[] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}};
  AttendCall call;
  call.corpus = *requester->Resolve("c", "", Soon());
  call.chunks = four;
  call.q = {q.data(), 16, 96};
  call.deadline = Soon();
  Answer answer(16, 64);
  const absl::Status status = requester->Attend(call, answer.View(), nullptr);
  ASSERT_TRUE(status.ok()) << status;
  // The dispatcher releases the chunks after it answered; it serves the next request later still.
  ExpectRight(0);
  ExpectRight(1);
  EXPECT_EQ(fleet->holder().stats().table.cold_count, 8u);
  const auto more = MakeTestCorpus(TestGeometry(), {100}, 77);
  const absl::Status put = PutChunk(fleet->holder().store(), more.geometry, more.chunks[0]);
  EXPECT_TRUE(put.ok()) << put;
}

TEST_P(HolderStoreTest, DamageOnDiskIsNeverAnswered) {
  Start();  // all cold
  test::FlipBits(FileOf(7), -3000);
  Answer answer(16, 64);
  const absl::Status status = Ask(7, &answer);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(answer.Untouched());
  EXPECT_TRUE(absl::IsNotFound(Ask(7, &answer)));
  EXPECT_FALSE(fs::exists(FileOf(7)));
  ExpectRight(6);
  // Put again, it is answered for again.
  ASSERT_TRUE(PutChunk(fleet->holder().store(), corpus.geometry, corpus.chunks[7]).ok());
  ExpectRight(7);
}

TEST_P(HolderStoreTest, ManyThreadsOverColdChunks) {
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 24; ++i) ExpectRight((i * 5 + t * 4) % 12);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ckv
