// Goal: rows of a chunk on disk that one selection read are not read for the next. The answers have
// the bits of a chunk in memory, and none is computed from a dropped chunk. Method: a real holder
// with a folder whose reads are counted, and a real requester that selects.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "proto/base/stripe.h"
#include "server/batch/sparse_layer.h"
#include "server/holder/holder.h"
#include "tests/server/dispatch/one_holder.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::Soon;
using Indices = std::vector<int32_t>;

constexpr uint32_t kTokens = 400;  // 13 stripes
constexpr uint32_t kLayer = 1;

class HolderStripeTest : public testing::TestWithParam<FabricKind> {
 public:
  ~HolderStripeTest() override { requester_.reset(); }

 protected:
  HolderStripeTest() {
    static int count = 0;
    path_ = test::TempPath(absl::StrCat("stripes", count++));
    files_.set_hook([this](FaultFileSystem::Call call, const std::string&) {
      if (call == FaultFileSystem::Call::kRead) ++read_count_;
      return absl::OkStatus();
    });
    fleet_ = std::make_unique<test::OneHolder>(fabric_.get(), path_);
    fleet_->files = &files_;
    fleet_->stripe_bytes_max = 1 << 20;
    Start();
    for (const auto& chunk : corpus_.chunks)
      EXPECT_TRUE(test::PutChunk(store(), corpus_.geometry, chunk).ok());
    fleet_->corpus = corpus_.Publish("c", "", {{HolderId{"h"}}});
  }

  // All chunks are cold then. There is room for two of three.
  void Start() {
    requester_.reset();
    fleet_->Start(2 * ChunkLayout(corpus_.geometry, kTokens).total_bytes());
    RequesterOptions options;
    options.fabrics = {fabric_.get()};
    requester_ = *Requester::Create(options, fleet_.get(), fleet_.get());
  }
  ChunkStore& store() { return fleet_->holder().store(); }
  HolderStats stats() { return fleet_->holder().stats(); }

  absl::Status Ask(const std::vector<uint32_t>& chunks, Answer* answer,
                   const Indices& selected = {}, uint32_t layer = kLayer,
                   Instant deadline = Soon()) {
    std::vector<ChunkUse> uses;
    for (const uint32_t chunk : chunks) uses.push_back({chunk, 0});
    AttendCall call;
    CKV_ASSIGN_OR_RETURN(call.corpus, requester_->Resolve("c", "", Soon()));
    call.chunks = uses;
    call.layer = layer;
    call.q = {q_.data(), 16, 96};
    if (!selected.empty())
      call.selection = {selected.data(), static_cast<uint32_t>(selected.size()), 16};
    call.wire = PartialDtype::kF32;
    call.deadline = deadline;
    return requester_->Attend(call, answer->View(), nullptr);
  }
  // The call waits until its deadline for a holder that may answer.
  void ExpectRefused(uint32_t chunk, const Indices& selected) {
    Answer none(16, 64);
    EXPECT_FALSE(Ask({chunk}, &none, selected, kLayer, test::Shortly()).ok());
    EXPECT_TRUE(none.Untouched());
  }

  // The answer of a chunk in memory. The other chunks are cold afterwards, as is this one.
  Answer HotAnswer(const std::vector<uint32_t>& chunks, const Indices& selected) {
    Answer answer(16, 64);
    EXPECT_TRUE(Ask(chunks, &answer).ok());
    EXPECT_TRUE(Ask(chunks, &answer, selected).ok());
    EXPECT_EQ(stats().stripe_read_count, 0u);
    Start();
    return answer;
  }
  void ExpectBits(const std::vector<uint32_t>& chunks, const Indices& selected,
                  const Answer& want) {
    Answer answer(16, 64);
    const absl::Status status = Ask(chunks, &answer, selected);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(answer.SameBits(want));
  }

  std::string path_;
  FaultFileSystem files_;
  std::atomic<uint64_t> read_count_{0};
  std::unique_ptr<Fabric> fabric_ =
      GetParam() == FabricKind::kShm ? NewShmFabric(Clock::Real()) : NewTcpFabric(Clock::Real());
  test::TestCorpus corpus_ =
      test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(3, kTokens), 3);
  std::mt19937 rng_{3};
  std::vector<uint16_t> q_ = test::RandomBf16(16 * 96, rng_);
  std::unique_ptr<test::OneHolder> fleet_;
  std::unique_ptr<Requester> requester_;
};

INSTANTIATE_TEST_SUITE_P(Fabrics, HolderStripeTest,
                         testing::Values(FabricKind::kShm, FabricKind::kTcp),
                         [](const auto& fabric) { return std::string(FabricName(fabric.param)); });

// Not even by way of the reading thread: the requests that waited for it are counted.
TEST_P(HolderStripeTest, ASecondSelectionReadsNothing) {
  const Indices selected = {397, 3, -1, 150, 3};
  const Answer hot = HotAnswer({0}, selected);
  ExpectBits({0}, selected, hot);
  EXPECT_EQ(stats().stripe_read_count, 3u);
  EXPECT_EQ(stats().stripe_hit_count, 0u);
  EXPECT_EQ(stats().cold_count, 1u);
  EXPECT_GT(stats().stripe_bytes, 0u);
  const uint64_t reads = read_count_;
  for (int i = 0; i < 5; ++i) ExpectBits({0}, selected, hot);
  EXPECT_EQ(read_count_, reads);
  EXPECT_EQ(stats().stripe_read_count, 3u);
  EXPECT_EQ(stats().stripe_hit_count, 15u);
  EXPECT_EQ(stats().cold_count, 1u);
  EXPECT_EQ(stats().table.cold_count, 3u);
}

TEST_P(HolderStripeTest, ASelectionThatOverlapsReadsTheRest) {
  const Indices first = {0, 40, 70, 100}, second = {1, 71, 200, 399};
  const Answer hot = HotAnswer({0}, second);
  Answer answer(16, 64);
  ASSERT_TRUE(Ask({0}, &answer, first).ok());
  EXPECT_EQ(stats().stripe_read_count, 4u);
  ExpectBits({0}, second, hot);
  EXPECT_EQ(stats().stripe_read_count, 6u);
  EXPECT_EQ(stats().stripe_hit_count, 2u);
  EXPECT_EQ(stats().cold_count, 2u);
}

// A request over two chunks, of which one is in memory by stripes, and all of it the next time.
TEST_P(HolderStripeTest, OneRequestOverSeveralChunks) {
  const Indices both = {5, 100, 405, 700};
  const Answer hot = HotAnswer({0, 1}, both);
  Answer answer(16, 64);
  ASSERT_TRUE(Ask({0}, &answer, {5, 100}).ok());
  ExpectBits({0, 1}, both, hot);
  EXPECT_EQ(stats().stripe_read_count, 4u);
  EXPECT_EQ(stats().stripe_hit_count, 2u);
  ExpectBits({0, 1}, both, hot);
  EXPECT_EQ(stats().stripe_hit_count, 6u);
  EXPECT_EQ(stats().cold_count, 2u);
}

// Bytes that were not read do not count towards reading the chunk whole.
TEST_P(HolderStripeTest, HitsNeverMakeTheChunkHot) {
  const Indices selected = {0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384};
  Start();
  Answer answer(16, 64);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Ask({0}, &answer, selected).ok());
  EXPECT_EQ(stats().load_count, 0u);
  for (const uint32_t layer : {0u, 2u}) ASSERT_TRUE(Ask({0}, &answer, selected, layer).ok());
  // Every stripe of every layer was read once: as many bytes as the chunk has, and no more.
  EXPECT_EQ(stats().stripe_read_count, 3u * 13);
  EXPECT_EQ(stats().load_count, 0u);
}

// With less room than a step needs, answers are right, memory is bounded, and the chunk is soon
// read whole.
TEST_P(HolderStripeTest, WithoutRoomForAStepTheChunkIsReadWhole) {
  const Indices selected = {0, 100, 200, 300};
  fleet_->stripe_bytes_max = 5 * 3 * SparseLayer::kPageBytes;  // a stripe touches 2 or 3 pages
  const Answer hot = HotAnswer({0}, selected);
  int steps = 0;
  for (; steps < 20 && stats().load_count == 0; ++steps) {
    for (uint32_t layer = 0; layer < corpus_.geometry.layers; ++layer) {
      if (layer == kLayer) ExpectBits({0}, selected, hot);
      Answer other(16, 64);
      if (layer != kLayer) {
        ASSERT_TRUE(Ask({0}, &other, selected, layer).ok());
      }
      EXPECT_LE(stats().stripe_bytes, *fleet_->stripe_bytes_max);
    }
  }
  EXPECT_LE(steps, 4);  // 39 stripes, 12 a step
}

// The same id with other rows: no answer uses stripes of the chunk's first generation.
TEST_P(HolderStripeTest, AReplacedChunkIsReadAgain) {
  const Indices selected = {7, 200};
  Answer old(16, 64), other(16, 64);
  Start();
  ASSERT_TRUE(Ask({0}, &old, selected).ok());
  const auto first = store().table().Find(corpus_.chunks[0].info.id, corpus_.geometry);
  ASSERT_TRUE(store().Drop(corpus_.chunks[0].info.id).ok());
  EXPECT_FALSE(Ask({0}, &other, selected).ok());
  EXPECT_TRUE(other.Untouched());
  test::TestChunk replaced = corpus_.chunks[0];
  for (uint32_t l = 0; l < corpus_.geometry.layers; ++l) {
    replaced.layers[l] = test::RandomBf16(replaced.layers[l].size(), rng_);
    replaced.info.tensor_checksums[l] = ChecksumOf(std::as_bytes(std::span(replaced.layers[l])));
  }
  ASSERT_TRUE(test::PutChunk(store(), corpus_.geometry, replaced).ok());
  requester_.reset();
  RequesterOptions options;
  options.fabrics = {fabric_.get()};
  requester_ = *Requester::Create(options, fleet_.get(), fleet_.get());
  Answer hot(16, 64);
  ASSERT_TRUE(Ask({0}, &hot, selected).ok());
  EXPECT_FALSE(hot.SameBits(old));
  ASSERT_TRUE(Ask({1, 2}, &other).ok());  // they fill the memory
  const auto locator = store().table().Find(replaced.info.id, corpus_.geometry);
  ASSERT_TRUE(absl::IsUnavailable(store().table().Pin(*locator).status())) << "it is cold";
  ASSERT_EQ(locator->slot, first->slot);  // only the generation distinguishes them
  const uint64_t stripe_reads = stats().stripe_read_count;
  ExpectBits({0}, selected, hot);
  EXPECT_EQ(stats().stripe_read_count, stripe_reads + 2);
}

TEST_P(HolderStripeTest, NeverAnswersFromAQuarantinedChunk) {
  const Indices selected = {7, 200};
  Start();
  Answer answer(16, 64);
  ASSERT_TRUE(Ask({0}, &answer, selected).ok());
  test::FlipBits(test::ChunkFileOf(path_, corpus_.chunks[0].info.id), -3000);
  const auto locator = store().table().Find(corpus_.chunks[0].info.id, corpus_.geometry);
  const auto check = store().Verify(*locator, [](uint64_t) { return true; });
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_EQ(check->health, ChunkCheck::Health::kDamaged);
  ExpectRefused(0, selected);
  // Nor without a lease, whatever is in memory.
  ASSERT_TRUE(Ask({1}, &answer, selected).ok());
  ASSERT_TRUE(Ask({1}, &answer, selected).ok());
  fleet_->holder().lease().Revoke();
  ExpectRefused(1, selected);
}

}  // namespace
}  // namespace ckv
