// Goal: what a holder evicted is answered for from fp8 copies where a request allows it, marked so
// and close; a request that does not allow it gets the exact bits. Method: a real holder with a
// folder, memory for a third of its chunks, half of that for shadows, rows of DeepSeek's width.

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/bf16.h"
#include "attention/fp8.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "server/batch/shadow_codec.h"
#include "tests/attention/fp8_row.h"
#include "tests/server/dispatch/one_holder.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using test::Answer;
using test::OneHolder;
using test::Soon;

Geometry WideGeometry() {
  Geometry geometry = test::TestGeometry();
  geometry.layers = 2;
  geometry.d_qk = 576;
  geometry.d_v = 512;
  geometry.d_rope = 64;
  return geometry;
}

struct HolderShadowTest : testing::Test {
  HolderShadowTest() {
    static int count = 0;
    path = test::TempPath(absl::StrCat("shadow", count++));
    fleet = std::make_unique<OneHolder>(fabric.get(), path);
    const uint64_t capacity = 4 * ChunkLayout(corpus.geometry, 100).total_bytes();
    fleet->Start(capacity, capacity / 2);
    for (const auto& chunk : corpus.chunks)
      EXPECT_TRUE(test::PutChunk(fleet->holder().store(), corpus.geometry, chunk).ok());
    fleet->corpus = corpus.Publish("c", "", {{HolderId{"h"}}});
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    requester = *Requester::Create(options, fleet.get(), fleet.get());
  }
  ~HolderShadowTest() override { requester.reset(); }

  absl::Status Ask(const std::vector<uint32_t>& chunks, bool approximate, Answer* answer,
                   AttendReport* report) {
    std::vector<ChunkUse> uses;
    for (const uint32_t chunk : chunks) uses.push_back({chunk, 0});
    AttendCall call;
    CKV_ASSIGN_OR_RETURN(call.corpus, requester->Resolve("c", "", Soon()));
    call.chunks = uses;
    call.layer = 1;
    call.q = {q.data(), 16, 576};
    call.wire = PartialDtype::kF32;
    call.allow_approximate = approximate;
    call.deadline = Soon();
    return requester->Attend(call, answer->View(), report);
  }
  // A chunk that has a shadow and is not hot.
  uint32_t Shadowed() {
    ChunkStore& store = fleet->holder().store();
    for (uint32_t i = 0; i < corpus.chunks.size(); ++i) {
      const auto locator = store.table().Find(corpus.chunks[i].info.id, corpus.geometry);
      if (locator.ok() && store.shadows().Find(*locator) != nullptr) return i;
    }
    ADD_FAILURE() << "no chunk has a shadow";
    return 0;
  }
  // The corpus as a shadow has it.
  test::TestCorpus Rounded() const {
    test::TestCorpus rounded = corpus;
    std::vector<float> row(576);
    std::vector<uint8_t> packed(656);
    for (auto& chunk : rounded.chunks) {
      for (auto& layer : chunk.layers) {
        for (size_t at = 0; at < layer.size(); at += 576) {
          FloatsFromBf16(layer.data() + at, row.data(), 576);
          PackFp8DsMlaRow(row.data(), 512, 64, packed.data());
          test::UnpackFp8DsMlaRow(packed.data(), 512, 64, row.data());
          Bf16FromFloats(row.data(), layer.data() + at, 576);
        }
      }
    }
    return rounded;
  }

  std::string path;
  std::unique_ptr<Fabric> fabric = NewShmFabric(Clock::Real());
  test::TestCorpus corpus = test::MakeTestCorpus(WideGeometry(), std::vector<uint32_t>(12, 100), 3);
  std::mt19937 rng{3};
  std::vector<uint16_t> q = test::RandomBf16(16 * 576, rng);
  std::unique_ptr<OneHolder> fleet;
  std::unique_ptr<Requester> requester;
};

TEST_F(HolderShadowTest, AnEvictedChunkIsAnsweredForAndMarked) {
  const uint32_t chunk = Shadowed();
  Answer answer(16, 512);
  AttendReport report;
  const absl::Status status = Ask({chunk}, /*approximate=*/true, &answer, &report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(report.approximate);
  EXPECT_EQ(fleet->holder().stats().cold_count, 0u);  // nothing was read
  EXPECT_EQ(fleet->holder().stats().approximate_count, 1u);
  EXPECT_GT(fleet->holder().stats().shadow_count, 0u);
  const auto want = test::Reference(Rounded(), 1, {chunk}, {q.data(), 16, 576}, {});
  test::ExpectNear(answer, want, 1e-5);
}

TEST_F(HolderShadowTest, WithoutLeaveTheAnswerIsExact) {
  const uint32_t chunk = Shadowed();
  Answer exact(16, 512), again(16, 512);
  AttendReport report;
  ASSERT_TRUE(Ask({chunk}, /*approximate=*/false, &exact, &report).ok());
  EXPECT_FALSE(report.approximate);
  const auto want = test::Reference(corpus, 1, {chunk}, {q.data(), 16, 576}, {});
  test::ExpectNear(exact, want, 1e-5);
  // It is hot now: exact whatever is allowed.
  ASSERT_TRUE(Ask({chunk}, /*approximate=*/true, &again, &report).ok());
  EXPECT_FALSE(report.approximate);
  EXPECT_TRUE(again.SameBits(exact));
}

// Hot chunks and shadows in one answer: two kernels, one merge.
TEST_F(HolderShadowTest, HotAndShadowedTogether) {
  Answer answer(16, 512);
  AttendReport report;
  const uint32_t shadowed = Shadowed();
  const uint32_t hot = 11;  // put last
  ASSERT_TRUE(Ask({shadowed, hot}, /*approximate=*/true, &answer, &report).ok());
  EXPECT_TRUE(report.approximate);
  EXPECT_EQ(fleet->holder().stats().cold_count, 0u);
  test::TestCorpus mixed = corpus;
  mixed.chunks[shadowed] = Rounded().chunks[shadowed];
  const auto want = test::Reference(mixed, 1, {shadowed, hot}, {q.data(), 16, 576}, {});
  test::ExpectNear(answer, want, 1e-5);
}

TEST_F(HolderShadowTest, ADroppedChunkHasNone) {
  const uint32_t chunk = Shadowed();
  const ChunkId id = corpus.chunks[chunk].info.id;
  ChunkStore& store = fleet->holder().store();
  const ChunkLocator locator = *store.table().Find(id, corpus.geometry);
  const uint64_t shadows = store.stats().shadow_count;
  ASSERT_TRUE(store.Drop(id).ok());
  EXPECT_EQ(store.shadows().Find(locator), nullptr);
  EXPECT_EQ(store.stats().shadow_count, shadows - 1);
  Answer answer(16, 512);
  EXPECT_FALSE(Ask({chunk}, /*approximate=*/true, &answer, nullptr).ok());
  EXPECT_TRUE(answer.Untouched());
}

TEST(Fp8ShadowCodecTest, PacksWhatTheKernelTakesOnly) {
  const ShadowCodec& codec = *Fp8ShadowCodec();
  EXPECT_EQ(codec.PackedRowBytes(WideGeometry()), 656u);
  EXPECT_EQ(codec.PackedRowBytes(test::TestGeometry()), 0u);  // d_v is no multiple of 128
  Geometry packed = WideGeometry();
  packed.dtype = RowDtype::kFp8DsMla;
  EXPECT_EQ(codec.PackedRowBytes(packed), 0u);
  std::vector<uint16_t> row(576, 0x3f80);
  std::vector<std::byte> out(656);
  const auto pack = [&] {
    return codec.Pack(WideGeometry(), reinterpret_cast<const std::byte*>(row.data()), out.data());
  };
  EXPECT_TRUE(pack());
  for (const uint16_t bad : {0x7f80, 0xff80, 0x7fc0, 0x7f7f}) {  // infinities, NaN, the largest
    row[100] = bad;
    EXPECT_FALSE(pack()) << bad;
  }
}

}  // namespace
}  // namespace ckv
