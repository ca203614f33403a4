// Goal: a routed answer equals attention over all rows at once, whatever holds them.
// Method: real holders in this process over every fabric of this build; random splits of the
// chunks; slots so small that calls are cut into many frames; the f64 reference. Tolerances are
// the kernel's: 5e-7 x max(1, max|o|) with f32 partials, 2^-8 x max|o| with bf16.

#include "client/requester.h"

#include <cstring>
#include <thread>

#include "attention/bf16.h"
#include "attention/merge.h"
#include "client/holders/link_table.h"
#include "gtest/gtest.h"
#include "tests/support/fabric_kinds.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::ExpectNear;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

std::vector<uint32_t> AllOf(const test::TestCorpus& corpus) {
  std::vector<uint32_t> all(corpus.chunks.size());
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

struct OwnedFabric {
  std::unique_ptr<Fabric> fabric;
};
// A cluster with a fabric of its own.
struct FabricCluster : OwnedFabric, test::Cluster {
  FabricCluster(FabricKind kind, size_t holders, LaneShape shape, uint32_t contexts = 4)
      : OwnedFabric{test::MakeFabric(kind)},
        Cluster(fabric.get(), holders, shape, nullptr, contexts) {}
};

double Tolerance(PartialDtype wire, double max_abs_o) {
  return wire == PartialDtype::kF32 ? 5e-7 * std::max(1.0, max_abs_o) : max_abs_o / 256;
}

class OverFabrics : public testing::TestWithParam<FabricKind> {};
INSTANTIATE_TEST_SUITE_P(, OverFabrics,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         [](const auto& test) { return std::string(FabricName(test.param)); });

TEST_P(OverFabrics, AnySplitIsExact) {
  const std::vector<uint32_t> tokens = {5, 1, 0, 64, 130, 1, 0, 33, 7, 72};
  for (const size_t holders : {1, 2, 3, 8}) {
    FabricCluster setup(GetParam(), holders, SmallShape());
    for (uint32_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(testing::Message() << holders << " holders, seed " << seed);
      std::mt19937 rng(seed * 16 + uint32_t(holders));
      const auto corpus = MakeTestCorpus(TestGeometry(), tokens, seed);
      std::vector<size_t> placement(tokens.size());
      for (size_t& holder : placement) holder = rng() % holders;
      const std::string name = absl::StrFormat("c%d", seed);
      setup.fleet.Load(name, corpus, placement);
      const auto published = setup.Resolve(name);
      for (const uint32_t rows : {1u, 16u, 45u}) {
        const auto q = RandomBf16(size_t{rows} * corpus.geometry.d_qk, rng);
        AttendCall call;
        call.corpus = published;
        call.layer = rng() % corpus.geometry.layers;
        call.q = {q.data(), rows, corpus.geometry.d_qk};
        call.deadline = Soon();
        const auto want = test::Reference(corpus, call.layer, AllOf(corpus), call.q, {});
        for (const PartialDtype wire : {PartialDtype::kF32, PartialDtype::kBf16}) {
          call.wire = wire;
          Answer got(rows, corpus.geometry.d_v);
          AttendReport report;
          const absl::Status status = setup.requester->Attend(call, got.View(), &report);
          ASSERT_TRUE(status.ok()) << status;
          ExpectNear(got, want, Tolerance(wire, test::MaxAbsO(want)));
          EXPECT_LE(report.holder_count, holders);
          EXPECT_GT(report.bytes_sent, rows * 192u);
          EXPECT_FALSE(report.targets_differ);
          EXPECT_EQ(report.same_bits_anywhere, wire == PartialDtype::kF32);
        }
      }
    }
  }
}

TEST_P(OverFabrics, AnySelectionIsExact) {
  const std::vector<uint32_t> tokens = {5, 1, 0, 64, 130, 33, 7, 72};
  const uint32_t total = 312;
  FabricCluster setup(GetParam(), 3, SmallShape());
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const auto corpus = MakeTestCorpus(TestGeometry(), tokens, 100 + seed);
    std::vector<size_t> placement(tokens.size());
    for (size_t& holder : placement) holder = rng() % 3;
    const std::string name = absl::StrFormat("c%d", seed);
    setup.fleet.Load(name, corpus, placement);
    // A call names its chunks in any order; the selection counts in that order.
    std::vector<uint32_t> order = AllOf(corpus);
    std::shuffle(order.begin(), order.end(), rng);
    std::vector<ChunkUse> uses;
    for (const uint32_t chunk : order) uses.push_back({chunk, 0});
    const uint32_t rows = 1 + rng() % 50;
    const uint32_t group_rows = seed % 3 == 0 ? 1 : 1 + rng() % 24, k = rng() % 40;
    std::vector<int32_t> indices(size_t{(rows + group_rows - 1) / group_rows} * k + 1);
    for (int32_t& index : indices) {
      index = int32_t(rng() % total);
      if (rng() % 8 == 0) index = -1;
      if (seed % 4 == 1) index = index % 60;  // all on few chunks: holders with nothing to do
    }
    const auto q = RandomBf16(size_t{rows} * corpus.geometry.d_qk, rng);
    AttendCall call;
    call.corpus = setup.Resolve(name);
    call.chunks = uses;
    call.layer = 1;
    call.q = {q.data(), rows, corpus.geometry.d_qk};
    call.selection = {indices.data(), k, group_rows};
    call.deadline = Soon();
    const auto want = test::Reference(corpus, 1, order, call.q, call.selection);
    for (const PartialDtype wire : {PartialDtype::kF32, PartialDtype::kBf16}) {
      call.wire = wire;
      Answer got(rows, corpus.geometry.d_v);
      const absl::Status status = setup.requester->Attend(call, got.View(), nullptr);
      ASSERT_TRUE(status.ok()) << status;
      ExpectNear(got, want, Tolerance(wire, test::MaxAbsO(want)));
    }
  }
}

TEST(Requester, AttendingNothingGivesTheEmptyPartial) {
  FabricCluster setup(FabricKind::kLoopback, 2, SmallShape());
  const auto corpus = MakeTestCorpus(TestGeometry(), {0, 4, 0}, 1);
  setup.fleet.Load("c", corpus, {0, 1, 1});
  std::mt19937 rng(1);
  const auto q = RandomBf16(3 * 96, rng);
  const ChunkUse empty_chunks[] = {{2, 0}, {0, 0}};
  const std::vector<int32_t> nowhere = {-1, -1, -1};
  AttendCall call;
  call.corpus = setup.Resolve("c");
  call.q = {q.data(), 3, 96};
  call.deadline = Soon();
  const auto expect_empty = [&] {
    Answer got(3, 64);
    AttendReport report;
    ASSERT_TRUE(setup.requester->Attend(call, got.View(), &report).ok());
    EXPECT_EQ(report.holder_count, 0u);
    EXPECT_EQ(report.bytes_sent, 0u);
    for (const float o : got.o) EXPECT_EQ(o, 0);
    for (const float m : got.m) EXPECT_EQ(m, kEmptyM);
    for (const float l : got.l) EXPECT_EQ(l, 0);
  };
  call.chunks = empty_chunks;
  expect_empty();
  call.chunks = {};
  call.selection = {nowhere.data(), 1, 1};
  expect_empty();
  call.selection.k = 0;
  expect_empty();
}

// The bits depend on the chunks and their ordinals, not on who holds them or on the slots.
TEST(Requester, BitsDoNotDependOnThePlacement) {
  const std::vector<uint32_t> tokens = {5, 1, 64, 0, 130, 33, 7, 72, 20};
  const auto corpus = MakeTestCorpus(TestGeometry(), tokens, 7);
  std::mt19937 rng(7);
  const uint32_t rows = 37;
  const auto q = RandomBf16(size_t{rows} * 96, rng);
  std::vector<int32_t> indices(size_t{rows} * 50);
  for (int32_t& index : indices) index = int32_t(rng() % 332);
  for (const bool selected : {false, true}) {
    std::unique_ptr<Answer> first;
    for (const size_t holders : {1, 2, 3, 8}) {
      FabricCluster setup(FabricKind::kLoopback, holders,
                          holders % 2 ? SmallShape() : LaneShape{.slot_count = 4});
      for (int split = 0; split < 3; ++split) {
        SCOPED_TRACE(testing::Message() << holders << " holders, split " << split);
        std::vector<size_t> placement(tokens.size());
        for (size_t& holder : placement) holder = rng() % holders;
        const std::string name = absl::StrFormat("c%d", split);
        setup.fleet.Load(name, corpus, placement);
        AttendCall call;
        call.corpus = setup.Resolve(name);
        call.q = {q.data(), rows, 96};
        call.wire = PartialDtype::kF32;
        if (selected) call.selection = {indices.data(), 50, 1};
        call.deadline = Soon();
        auto got = std::make_unique<Answer>(rows, 64);
        const absl::Status status = setup.requester->Attend(call, got->View(), nullptr);
        ASSERT_TRUE(status.ok()) << status;
        if (first == nullptr) {
          first = std::move(got);
        } else {
          ASSERT_TRUE(got->SameBits(*first));
        }
      }
    }
  }
}

// Rotates the band of one row by `positions`, in f64, as its geometry defines (interleaved, plain).
void RotateF64(const Geometry& geometry, std::vector<double>& row, double positions) {
  for (uint32_t i = 0; i < geometry.d_rope / 2; ++i) {
    const double angle =
        positions * std::pow(geometry.rope.theta, -2.0 * i / double(geometry.d_rope));
    double& x = row[geometry.d_qk - geometry.d_rope + 2 * i];
    double& y = row[geometry.d_qk - geometry.d_rope + 2 * i + 1];
    const double rotated_x = x * std::cos(angle) - y * std::sin(angle);
    y = x * std::sin(angle) + y * std::cos(angle);
    x = rotated_x;
  }
}

// For a chunk that is used `offset` away from its own position, rotating the queries back equals
// recomputing the keys there. The queries' rotated bands are rounded to bf16, which errs by
// 3 x 2^-8 of each pair's length at most; a logit then errs by d = scale x sum over pairs of
// 3 x 2^-8 |q_i| |k_i|, the weights by a factor e^(+-2d), and o by
// (e^2d - 1) x (max|v| + max|o|).
TEST(Requester, OffsetsEqualKeysAtTheShiftedPosition) {
  const std::vector<uint32_t> tokens = {5, 40, 64, 1};
  const auto corpus = MakeTestCorpus(TestGeometry(), tokens, 3);
  const Geometry& geometry = corpus.geometry;
  FabricCluster setup(FabricKind::kShm, 2, SmallShape());
  setup.fleet.Load("c", corpus, {0, 1, 0, 1});
  std::mt19937 rng(3);
  const uint32_t rows = 21, layer = 2;
  const auto q = RandomBf16(size_t{rows} * 96, rng);
  const std::vector<ChunkUse> uses = {{0, 1000}, {2, -37}, {3, 1000}, {1, 0}};
  AttendCall call;
  call.corpus = setup.Resolve("c");
  call.chunks = uses;
  call.layer = layer;
  call.q = {q.data(), rows, 96};
  call.wire = PartialDtype::kF32;
  call.deadline = Soon();
  Answer got(rows, 64);
  ASSERT_TRUE(setup.requester->Attend(call, got.View(), nullptr).ok());

  const AttentionShape shape = AttentionShape::Of(geometry);
  std::vector<std::vector<double>> keys;
  for (const ChunkUse& use : uses) {
    const auto& chunk = corpus.chunks[use.ordinal].layers[layer];
    for (size_t t = 0; t < chunk.size() / 96; ++t) {
      keys.push_back(
          reference::DecodeRow(shape, reinterpret_cast<const std::byte*>(chunk.data() + t * 96)));
      RotateF64(geometry, keys.back(), double(use.offset));
    }
  }
  std::vector<const std::vector<double>*> attended;
  for (const auto& key : keys) attended.push_back(&key);
  double worst_unrotated = 0, worst_bound = 0;
  for (uint32_t row = 0; row < rows; ++row) {
    std::vector<double> query(96);
    for (uint32_t d = 0; d < 96; ++d) query[d] = reference::DecodeBf16(q[row * 96 + d]);
    const auto want = reference::AttendRow(shape, query, attended);
    double logit_error = 0;
    for (const auto& key : keys) {
      double sum = 0;
      for (uint32_t d = 64; d < 96; d += 2)
        sum += std::hypot(query[d], query[d + 1]) * std::hypot(key[d], key[d + 1]);
      logit_error = std::max(logit_error, 3.0 / 256 * sum * double(geometry.softmax_scale));
    }
    const double bound = (std::exp(2 * logit_error) - 1) * 2;
    worst_bound = std::max(worst_bound, bound);
    for (uint32_t d = 0; d < 64; ++d) ASSERT_NEAR(got.o[row * 64 + d], want.o[d], bound);
    // The same without rotating the keys: the answer if the offset were ignored.
    std::vector<std::vector<double>> home = keys;
    size_t key = 0;
    for (const ChunkUse& use : uses) {
      for (uint32_t t = 0; t < tokens[use.ordinal]; ++t)
        RotateF64(geometry, home[key++], -double(use.offset));
    }
    std::vector<const std::vector<double>*> unrotated;
    for (const auto& k : home) unrotated.push_back(&k);
    const auto wrong = reference::AttendRow(shape, query, unrotated);
    for (uint32_t d = 0; d < 64; ++d)
      worst_unrotated = std::max(worst_unrotated, std::fabs(wrong.o[d] - got.o[row * 64 + d]));
    // A tighter bound that distinguishes the rotations: the typical error is a tenth of `bound`.
    for (uint32_t d = 0; d < 64; ++d) ASSERT_NEAR(got.o[row * 64 + d], want.o[d], 4e-3);
  }
  EXPECT_GT(worst_unrotated, 4e-2);
}

TEST(Requester, MoreOffsetsThanAFrameHasCopies) {
  const std::vector<uint32_t> tokens(40, 3);
  const auto corpus = MakeTestCorpus(TestGeometry(), tokens, 4);
  FabricCluster setup(FabricKind::kLoopback, 1, LaneShape{.slot_count = 4});
  setup.fleet.Load("c", corpus, std::vector<size_t>(40, 0));
  std::vector<ChunkUse> uses;
  for (uint32_t i = 0; i < 40; ++i) uses.push_back({i, 10 * int64_t(i)});
  std::mt19937 rng(4);
  const auto q = RandomBf16(5 * 96, rng);
  AttendCall call;
  call.corpus = setup.Resolve("c");
  call.chunks = uses;
  call.q = {q.data(), 5, 96};
  call.wire = PartialDtype::kF32;
  call.deadline = Soon();
  Answer together(5, 64);
  ASSERT_TRUE(setup.requester->Attend(call, together.View(), nullptr).ok());
  // One chunk at a time, merged here: no frame has more than one copy.
  std::vector<Answer> parts;
  std::vector<ConstPartialView> views;
  for (const ChunkUse& use : uses) {
    call.chunks = {&use, 1};
    parts.emplace_back(5, 64);
    ASSERT_TRUE(setup.requester->Attend(call, parts.back().View(), nullptr).ok());
  }
  for (Answer& part : parts) views.push_back(part.View());
  Answer apart(5, 64);
  MergePartials(views, 5, 64, apart.View());
  for (size_t i = 0; i < apart.o.size(); ++i) EXPECT_NEAR(together.o[i], apart.o[i], 5e-7);
}

// A call with far more frames than slots, on lanes of 1, 2 and 8 slots. Frames are pipelined. They
// are copied out if one block alone needs more frames than there are slots.
TEST(Requester, MoreFramesThanSlots) {
  const std::vector<uint32_t> tokens(30, 2);
  const auto corpus = MakeTestCorpus(TestGeometry(), tokens, 5);
  std::vector<size_t> placement(30);
  for (size_t i = 0; i < 30; ++i) placement[i] = i % 2;
  std::mt19937 rng(5);
  const auto q = RandomBf16(200 * 96, rng);
  for (const uint32_t slots : {1u, 2u, 8u}) {
    SCOPED_TRACE(slots);
    FabricCluster setup(FabricKind::kLoopback, 2, SmallShape(slots));
    setup.fleet.Load("c", corpus, placement);
    AttendCall call;
    call.corpus = setup.Resolve("c");
    call.q = {q.data(), 200, 96};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    const auto want = test::Reference(corpus, 0, AllOf(corpus), call.q, {});
    Answer got(200, 64);
    const absl::Status status = setup.requester->Attend(call, got.View(), nullptr);
    ASSERT_TRUE(status.ok()) << status;
    ExpectNear(got, want, Tolerance(call.wire, test::MaxAbsO(want)));
  }
}

TEST(Requester, QueriesMayBeAPartOfWiderRows) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {9, 9}, 6);
  FabricCluster setup(FabricKind::kLoopback, 2, SmallShape());
  setup.fleet.Load("c", corpus, {0, 1});
  std::mt19937 rng(6);
  const auto q = RandomBf16(20 * 100, rng);
  AttendCall call;
  call.corpus = setup.Resolve("c");
  call.q = {q.data(), 20, 100};
  call.wire = PartialDtype::kF32;
  call.deadline = Soon();
  Answer got(20, 64);
  ASSERT_TRUE(setup.requester->Attend(call, got.View(), nullptr).ok());
  const auto want = test::Reference(corpus, 0, {0, 1}, call.q, {});
  ExpectNear(got, want, 5e-7);
}

// After the first call neither the directory nor any holder's control plane is queried.
TEST(Requester, TheHotPathMakesNoControlCalls) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {9, 9, 9, 9}, 6);
  FabricCluster setup(FabricKind::kLoopback, 2, SmallShape());
  setup.fleet.Load("c", corpus, {0, 1, 0, 1});
  std::mt19937 rng(6);
  const auto q = RandomBf16(4 * 96, rng);
  Answer got(4, 64);
  AttendCall call;
  call.corpus = setup.Resolve("c");
  call.q = {q.data(), 4, 96};
  const ChunkUse one[] = {{0, 0}, {1, 0}};
  call.chunks = one;
  call.deadline = Soon();
  ASSERT_TRUE(setup.requester->Attend(call, got.View(), nullptr).ok());
  EXPECT_EQ(setup.fleet.session_calls(), 2);
  EXPECT_EQ(setup.fleet.resolve_calls(), 2);  // the whole corpus, once for each holder
  setup.fleet.set_directory_down(true);
  const int requested = setup.fleet.directory_calls();
  call.chunks = {};
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(setup.requester->Attend(call, got.View(), nullptr).ok());
  EXPECT_EQ(setup.fleet.session_calls(), 2);
  EXPECT_EQ(setup.fleet.resolve_calls(), 2);
  EXPECT_EQ(setup.fleet.directory_calls(), requested);
  const auto views = setup.requester->Holders();
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[0].member.id, TestFleet::Name(0));
  EXPECT_TRUE(views[0].connected);
  EXPECT_EQ(views[0].fabric, FabricKind::kLoopback);
  EXPECT_EQ(views[0].in_flight, 0u);
}

// Eight threads over fewer contexts: every answer has the bits of the same call made alone.
TEST(Requester, ConcurrentCalls) {
  const std::vector<uint32_t> tokens = {5, 64, 130, 33, 7, 72};
  const auto corpus = MakeTestCorpus(TestGeometry(), tokens, 8);
  FabricCluster setup(FabricKind::kShm, 3, SmallShape(), /*contexts=*/3);
  setup.fleet.Load("c", corpus, {0, 1, 2, 0, 1, 2});
  const auto published = setup.Resolve("c");
  const auto attend = [&](uint32_t seed, Answer& out) {
    std::mt19937 rng(seed);
    const auto q = RandomBf16(size_t{out.m.size()} * 96, rng);
    AttendCall call;
    call.corpus = published;
    call.layer = seed % 3;
    call.q = {q.data(), uint32_t(out.m.size()), 96};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    return setup.requester->Attend(call, out.View(), nullptr);
  };
  const auto rows_of = [](uint32_t seed) { return 1 + seed % 40; };
  constexpr uint32_t kCalls = 20;
  std::vector<Answer> alone;
  for (uint32_t i = 0; i < 8 * kCalls; ++i) {
    alone.emplace_back(rows_of(i), 64);
    ASSERT_TRUE(attend(i, alone[i]).ok());
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint32_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint32_t i = thread * kCalls; i < (thread + 1) * kCalls; ++i) {
        Answer got(rows_of(i), 64);
        if (!attend(i, got).ok() || !got.SameBits(alone[i])) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace ckv
