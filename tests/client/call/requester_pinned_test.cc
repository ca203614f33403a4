// Goal: a requester computes with a device that reaches only its own and pinned memory, like a GPU
// without the system's page tables.
// Method: answers are compared bit for bit with this processor's, over each fabric. The device's
// backend ends the process if it is given pinned memory that was never pinned, or if its own memory
// is touched. Holders compute on the processor.

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/holders/lane_pinning.h"
#include "client/paged/calibrate_here.h"
#include "client/paged/paged_cache.h"
#include "client/requester.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention/rotate_bf16.h"
#include "tests/support/cache_slots.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/fabric_kinds.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::Answer;
using test::DeferredBackend;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;
using testing::HasSubstr;

constexpr uint32_t kPinnedRowValues = 96, kPinnedLatentValues = 64;  // of the test geometry
constexpr uint32_t kPinnedRows = 60, kPinnedOwnRows = 30;

class RequesterPinnedTest : public testing::TestWithParam<FabricKind> {
 protected:
  RequesterPinnedTest() {
    for (size_t i = 0; i < 3; ++i) fleet_.StartHolder(i);
    fleet_.Load("c", corpus_, {0, 1, 1, 2, 0, 0, 0, 2});
  }

  std::unique_ptr<Requester> Start(Backend* backend, const LaneShape& shape) {
    RequesterOptions options;
    options.fabrics = {fabric_.get()};
    options.lane_shape = shape;
    options.backend = backend;
    auto made = Requester::Create(options, &fleet_, &fleet_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  static std::shared_ptr<const Corpus> Resolve(Requester& requester) {
    return *requester.Resolve("c", "", Soon());
  }

  BackendMemory Put(MemoryKind kind, std::span<const std::byte> bytes) {
    BackendMemory memory = *device_.Allocate(kind, bytes.size());
    device_.Copy(memory.data(), bytes);
    return memory;
  }

  // Makes a dense call over moved chunks with own rows. All of its memory is of `kind`.
  Answer Attend(Requester& requester, MemoryKind kind, absl::Status* status) {
    const std::vector<ChunkUse> uses = {{0, 0}, {1, 3}, {2, 3}, {4, 0}, {5, -2}, {7, 0}};
    const ContextPart part = {Resolve(requester), uses};
    const auto context =
        requester.Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon());
    EXPECT_TRUE(context.ok()) << context.status();
    const BackendMemory q = Put(kind, std::as_bytes(std::span(q_)));
    const BackendMemory own = Put(kind, std::as_bytes(std::span(own_)));
    Answer answer(kPinnedRows, kPinnedLatentValues);
    const BackendMemory o = Put(kind, std::as_bytes(std::span(answer.o)));
    const BackendMemory m = Put(kind, std::as_bytes(std::span(answer.m)));
    const BackendMemory l = Put(kind, std::as_bytes(std::span(answer.l)));
    OwnRows own_rows;
    own_rows.rows = {own.data(), kPinnedOwnRows, kPinnedRowValues * 2, kind};
    const Segment segment = {.row_count = kPinnedRows, .context = &*context, .own = {&own_rows, 1}};
    LayerCall call;
    call.layer = 1;
    call.q = {reinterpret_cast<const uint16_t*>(q.data()), kPinnedRows, kPinnedRowValues, kind};
    call.segments = {&segment, 1};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    *status =
        requester.Attend(call, {o.data(), reinterpret_cast<float*>(m.data()),
                                reinterpret_cast<float*>(l.data()), PartialDtype::kF32, kind});
    const auto take = [&](const BackendMemory& from, std::vector<float>& to) {
      device_.Copy(reinterpret_cast<std::byte*>(to.data()), {from.data(), from.size()});
    };
    take(o, answer.o);
    take(m, answer.m);
    take(l, answer.l);
    return answer;
  }

  FetchCall Fetch(Requester& requester, uint64_t position) {
    FetchCall call;
    call.corpus = Resolve(requester);
    call.chunk_end = 4;
    call.tensor_end = corpus_.geometry.layers;
    call.position = position;
    call.deadline = Soon();
    return call;
  }
  std::vector<uint16_t> Moved(uint32_t layer, uint64_t position) const {
    std::vector<uint16_t> rows = corpus_.Rows(layer, 0, 4);
    test::RotateBandsBf16(RopeRotation(corpus_.geometry.rope, corpus_.geometry.d_rope,
                                       static_cast<int64_t>(position)),
                          rows.data(), 190, kPinnedRowValues, kPinnedRowValues);
    return rows;
  }

  std::mt19937 rng_{1};
  const test::TestCorpus corpus_ =
      MakeTestCorpus(TestGeometry(), {5, 64, 21, 100, 9, 30, 7, 90}, 1);
  const std::vector<uint16_t> q_ = RandomBf16(size_t{kPinnedRows} * kPinnedRowValues, rng_);
  const std::vector<uint16_t> own_ = RandomBf16(size_t{kPinnedOwnRows} * kPinnedRowValues, rng_);
  DeferredBackend device_{DeferredBackend::ReachPinned()};
  const std::unique_ptr<Fabric> fabric_ = test::MakeFabric(GetParam());
  test::TestFleet fleet_{{fabric_.get()}};
};

INSTANTIATE_TEST_SUITE_P(Fabrics, RequesterPinnedTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         test::FabricOf);

// Replies are merged from the slots. With few slots, they are copied first.
TEST_P(RequesterPinnedTest, AnswersHaveTheBitsOfOneHere) {
  for (const LaneShape& shape : {LaneShape{.slot_count = 8}, SmallShape(2)}) {
    absl::Status status;
    const auto cpu = Start(Backend::Cpu(), shape);
    const Answer want = Attend(*cpu, MemoryKind::kHost, &status);
    ASSERT_TRUE(status.ok()) << status;
    const auto requester = Start(&device_, shape);
    for (const MemoryKind kind : {MemoryKind::kPinned, MemoryKind::kDevice}) {
      SCOPED_TRACE(MemoryKindName(kind));
      const Answer got = Attend(*requester, kind, &status);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(got.SameBits(want));
    }
    EXPECT_GT(device_.merge_count(), 0u);
    EXPECT_GT(device_.pinned_bytes(), 0u);
    Attend(*requester, MemoryKind::kHost, &status);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("host memory"));
  }
}

TEST_P(RequesterPinnedTest, RowsAreFetched) {
  constexpr uint64_t kPosition = 777;
  const auto requester = Start(&device_, LaneShape{.slot_count = 8});
  const Geometry& geometry = corpus_.geometry;
  const FetchCall call = Fetch(*requester, kPosition);
  for (const MemoryKind kind : {MemoryKind::kPinned, MemoryKind::kDevice}) {
    const size_t layer_bytes = size_t{16} * kCacheBlockTokens * geometry.row_bytes();
    std::vector<BackendMemory> memory;
    std::vector<std::span<std::byte>> layers;
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      memory.push_back(*device_.Allocate(kind, layer_bytes));
      layers.emplace_back(memory.back().data(), layer_bytes);
    }
    const auto cache = *PagedCache::Over(geometry, {.block_count = 16, .memory = kind}, layers);
    const CacheSequenceId sequence = cache->Begin();
    const absl::Status status = requester->FetchInto(call, *cache, sequence);
    ASSERT_TRUE(status.ok()) << MemoryKindName(kind) << status;
    const std::vector<int32_t> slots = *test::SlotsOf(*cache, sequence);
    ASSERT_EQ(slots.size(), 190u);
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      std::vector<std::byte> got(layer_bytes);
      device_.Copy(got.data(), layers[layer]);
      const std::vector<uint16_t> want = Moved(layer, kPosition);
      for (size_t t = 0; t < slots.size(); ++t) {
        ASSERT_EQ(std::memcmp(&got[size_t(slots[t]) * geometry.row_bytes()],
                              &want[t * kPinnedRowValues], geometry.row_bytes()),
                  0)
            << MemoryKindName(kind) << " layer " << layer << " token " << t;
      }
    }
  }
  // Rows for the processor are rotated by the processor.
  FetchCall one = call;
  one.tensor_end = 1;
  std::vector<std::byte> got;
  const absl::Status status = requester->Fetch(one, [&](const FetchedRows& run) {
    got.insert(got.end(), run.rows.begin(), run.rows.end());
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<uint16_t> want = Moved(0, kPosition);
  ASSERT_EQ(got.size(), want.size() * 2);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0);
}

TEST_P(RequesterPinnedTest, LanesArePinnedAsLongAsTheyAreUp) {
  absl::Status status;
  auto requester = Start(&device_, SmallShape(4));
  device_.FailPins(true);
  const ContextPart part = {Resolve(*requester), {}};
  status = requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pinning the slots of a lane"));
  EXPECT_EQ(device_.pinned_bytes(), 0u);
  device_.FailPins(false);
  Attend(*requester, MemoryKind::kPinned, &status);
  ASSERT_TRUE(status.ok()) << status;
  const size_t lane_bytes = size_t{4} * (4096 + 4096);
  EXPECT_GE(device_.pinned_bytes(), 3 * lane_bytes);
  requester.reset();
  for (size_t i = 0; i < 3; ++i) fleet_.StopHolder(i);  // on loopback it has the lane, too
  EXPECT_EQ(device_.pinned_bytes(), 0u);
}

// A device that only merges is a kernel target of its own: its answers have other bits.
TEST(RequesterTargetTest, ADeviceThatMergesIsOneMoreTarget) {
  const auto fabric = NewLoopbackFabric(Clock::Real());
  const test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5, 64}, 1);
  std::mt19937 rng(1);
  const std::vector<uint16_t> q = RandomBf16(size_t{kPinnedRows} * kPinnedRowValues, rng);
  DeferredBackend device(DeferredBackend::ReachAll(), "CUDA_SM90");
  for (const bool at_holders : {false, true}) {
    test::TestFleet fleet({fabric.get()});
    if (at_holders) fleet.set_backend(&device);
    fleet.StartHolder(0);
    fleet.Load("c", corpus, {0, 0});
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    options.backend = &device;
    const auto requester = *Requester::Create(options, &fleet, &fleet);
    const ContextPart part = {*requester->Resolve("c", "", Soon()), {}};
    const auto context =
        requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon());
    ASSERT_TRUE(context.ok()) << context.status();
    const Segment segment = {.row_count = kPinnedRows, .context = &*context};
    LayerCall call;
    call.q = {q.data(), kPinnedRows, kPinnedRowValues};
    call.segments = {&segment, 1};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    Answer answer(kPinnedRows, kPinnedLatentValues);
    AttendReport report;
    const absl::Status status = requester->Attend(call, answer.View(), &report);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(report.targets_differ, !at_holders);
    EXPECT_EQ(report.same_bits_anywhere, at_holders);
  }
}

// If this process cannot pin memory, no holder is suspected and no replica is queried.
TEST(RequesterPinsTest, APinThatFailsIsOfThisProcess) {
  const auto shm = NewShmFabric(Clock::Real()), tcp = NewTcpFabric(Clock::Real());
  test::TestFleet fleet({shm.get(), tcp.get()});
  for (size_t i = 0; i < 2; ++i) fleet.StartHolder(i);
  const test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5, 64}, 1);
  fleet.Load("c", corpus, {0, 0});
  fleet.Lease("c", corpus, 1, {0, 1});
  DeferredBackend device{DeferredBackend::ReachPinned()};
  RequesterOptions options;
  options.fabrics = {shm.get(), tcp.get()};
  options.backend = &device;
  const auto requester = *Requester::Create(options, &fleet, &fleet);
  const ContextPart part = {*requester->Resolve("c", "", Soon()), {}};
  device.FailPins(true);
  const int requested = fleet.session_calls();
  const absl::Status status =
      requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("of the process that pins them"));
  EXPECT_EQ(fleet.session_calls(), requested + 1) << "one holder over one fabric";
  EXPECT_EQ(requester->Stats().failover_count, 0u);
  device.FailPins(false);
  const auto opened =
      requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon());
  EXPECT_TRUE(opened.ok()) << opened.status();
}

TEST(LaneMemoryFor, IsWhatTheBackendReaches) {
  DeferredBackend all, pinned(DeferredBackend::ReachPinned());
  EXPECT_EQ(*LaneMemoryFor(Backend::Cpu()), MemoryKind::kHost);
  EXPECT_EQ(*LaneMemoryFor(&all), MemoryKind::kHost);
  EXPECT_EQ(*LaneMemoryFor(&pinned), MemoryKind::kPinned);
  EXPECT_EQ(LanePinnerFor(&all), nullptr);
  BackendReach reach = DeferredBackend::ReachAll();
  reach.parts = {MemoryKind::kDevice};
  DeferredBackend device(reach);
  EXPECT_EQ(LaneMemoryFor(&device).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(LaneMemoryFor(nullptr).status().code(), StatusCode::kInvalidArgument);
}

TEST(CalibrateHere, MeasuresADeviceThatReachesPinnedMemory) {
  DeferredBackend device(DeferredBackend::ReachPinned());
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "r";
  auto here = CalibrateHere(geometry, *Clock::Real(), device);
  // On a busy machine, more tokens may take no longer than few.
  for (const Instant end = test::Soon(); here.ok() && here->splice_per_token_layer_us == 0;) {
    ASSERT_LT(Clock::Real()->Now(), end);
    here = CalibrateHere(geometry, *Clock::Real(), device);
  }
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_GT(here->merge_per_row_us, 0);
  EXPECT_GT(here->splice_per_token_layer_us, 0);
}

}  // namespace
}  // namespace ckv
