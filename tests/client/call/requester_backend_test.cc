// Goal: a call computes only through its requester's backend. Queries, own rows, answers and caches
// may be in memory that this process cannot touch.
// Method: a backend that does nothing before it is waited for, and whose memory ends the process if
// it is touched, against this processor's, bit for bit.

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/paged/calibrate_here.h"
#include "client/paged/paged_cache.h"
#include "client/requester.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention/rotate_bf16.h"
#include "tests/support/cache_slots.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::Answer;
using test::Cluster;
using test::DeferredBackend;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;
using testing::HasSubstr;

constexpr uint32_t kRowValues = 96, kLatentValues = 64;  // of the test geometry
constexpr uint32_t kRows = 60, kOwnRows = 30;

class RequesterBackendTest : public testing::Test {
 protected:
  // Three holders and a requester, all with the same backend.
  std::unique_ptr<Cluster> Start(Backend* backend, const LaneShape& shape) {
    auto cluster =
        std::make_unique<Cluster>(fabric_.get(), 3, shape, /*requesters=*/nullptr,
                                  /*call_count_max=*/16, uint64_t{64} << 20, nullptr, backend);
    cluster->fleet.Load("c", corpus_, {0, 1, 1, 2, 0, 0, 0, 2});
    return cluster;
  }

  // Values in a view of the kind of memory.
  BackendMemory Put(MemoryKind kind, std::span<const std::byte> bytes) {
    BackendMemory memory = *device_.Allocate(kind, bytes.size());
    device_.Copy(memory.data(), bytes);
    return memory;
  }

  // One call of two contexts: one with own rows, the other with cached rows and a selection. All
  // memory of the caller except the selection is of `kind`.
  Answer Attend(Cluster& cluster, MemoryKind kind, AttendReport* report, absl::Status* status) {
    const auto corpus = cluster.Resolve();
    const std::vector<ChunkUse> uses = {{0, 0}, {1, 3}, {2, 3}, {4, 0}, {5, -2}, {7, 0}};
    const ContextPart part = {corpus, uses};
    const auto routed =
        cluster.requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon());
    const auto cached =
        cluster.requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kCache}, Soon());
    EXPECT_TRUE(routed.ok() && cached.ok()) << routed.status() << cached.status();
    const BackendMemory q = Put(kind, std::as_bytes(std::span(q_)));
    const BackendMemory own = Put(kind, std::as_bytes(std::span(own_)));
    Answer answer(kRows, kLatentValues);
    const BackendMemory o = Put(kind, std::as_bytes(std::span(answer.o)));
    const BackendMemory m = Put(kind, std::as_bytes(std::span(answer.m)));
    const BackendMemory l = Put(kind, std::as_bytes(std::span(answer.l)));
    OwnRows own_rows;
    own_rows.rows = {own.data(), kOwnRows, kRowValues * 2, kind};
    Segment segments[2];
    segments[0] = {.row_count = 24, .context = &*routed, .own = {&own_rows, 1}};
    segments[1] = {.row_begin = 24, .row_count = kRows - 24, .context = &*cached};
    std::vector<int32_t> indices;
    for (int32_t i = 0; i < 2 * 50; ++i) indices.push_back(i * 37 % 220 - 1);
    segments[1].selection = {.indices = indices.data(), .k = 50, .group_rows = (kRows - 24) / 2};
    LayerCall call;
    call.layer = 1;
    call.q = {reinterpret_cast<const uint16_t*>(q.data()), kRows, kRowValues, kind};
    call.segments = segments;
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    *status =
        cluster.requester->Attend(call,
                                  {o.data(), reinterpret_cast<float*>(m.data()),
                                   reinterpret_cast<float*>(l.data()), PartialDtype::kF32, kind},
                                  report);
    const auto take = [&](const BackendMemory& from, std::vector<float>& to) {
      device_.Copy(reinterpret_cast<std::byte*>(to.data()), {from.data(), from.size()});
    };
    take(o, answer.o);
    take(m, answer.m);
    take(l, answer.l);
    return answer;
  }

  std::mt19937 rng_{1};
  const std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  const test::TestCorpus corpus_ =
      MakeTestCorpus(TestGeometry(), {5, 64, 21, 100, 9, 30, 7, 90}, 1);
  const std::vector<uint16_t> q_ = RandomBf16(size_t{kRows} * kRowValues, rng_);
  const std::vector<uint16_t> own_ = RandomBf16(size_t{kOwnRows} * kRowValues, rng_);
  DeferredBackend device_;
};

// Merged at the end, and block by block with few slots.
TEST_F(RequesterBackendTest, AnAnswerOnADeviceHasTheBitsOfOneHere) {
  for (const LaneShape& shape : {LaneShape{.slot_count = 8}, SmallShape(2)}) {
    const auto cpu = Start(Backend::Cpu(), shape), device = Start(&device_, shape);
    AttendReport want_report, report;
    absl::Status want_status, status;
    const Answer want = Attend(*cpu, MemoryKind::kHost, &want_report, &want_status);
    ASSERT_TRUE(want_status.ok()) << want_status;
    for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kPinned, MemoryKind::kDevice}) {
      SCOPED_TRACE(MemoryKindName(kind));
      const uint64_t attends = device_.attend_count(), merges = device_.merge_count();
      const uint64_t rotates = device_.rotate_count();
      const Answer got = Attend(*device, kind, &report, &status);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(got.SameBits(want));
      EXPECT_TRUE(report.same_bits_anywhere);
      EXPECT_GT(report.cached_pairs, 0u);
      EXPECT_GT(report.routed_pairs, 0u);
      EXPECT_GT(report.own_pairs, 0u);
      EXPECT_GE(device_.attend_count(), attends + 2) << "here, and at a holder";
      EXPECT_GE(device_.merge_count(), merges + 2);
      EXPECT_GT(device_.rotate_count(), rotates);
    }
  }
}

TEST_F(RequesterBackendTest, RowsAreFetchedIntoACacheOnADevice) {
  for (const LaneShape& shape : {LaneShape{.slot_count = 8}, SmallShape()}) {
    const auto cluster = Start(&device_, shape);
    const Geometry& geometry = corpus_.geometry;
    const size_t layer_bytes = size_t{16} * kCacheBlockTokens * geometry.row_bytes();
    std::vector<BackendMemory> memory;
    std::vector<std::span<std::byte>> layers;
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      memory.push_back(*device_.Allocate(MemoryKind::kDevice, layer_bytes));
      layers.emplace_back(memory.back().data(), layer_bytes);
    }
    const auto cache =
        *PagedCache::Over(geometry, {.block_count = 16, .memory = MemoryKind::kDevice}, layers);
    EXPECT_EQ(cache->layer_rows(0).memory, MemoryKind::kDevice);
    FetchCall call;
    call.corpus = cluster->Resolve();
    call.chunk_end = 4;
    call.tensor_end = geometry.layers;
    call.position = 777;
    call.deadline = Soon();
    const CacheSequenceId sequence = cache->Begin();
    const uint64_t scatters = device_.scatter_count();
    const absl::Status status = cluster->requester->FetchInto(call, *cache, sequence);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_GT(device_.scatter_count(), scatters);
    const std::vector<int32_t> slots = *test::SlotsOf(*cache, sequence);
    ASSERT_EQ(slots.size(), 190u);
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      std::vector<std::byte> got(layer_bytes);
      device_.Copy(got.data(), layers[layer]);
      // All chunks are moved by as much.
      std::vector<uint16_t> want = corpus_.Rows(layer, 0, 4);
      test::RotateBandsBf16(RopeRotation(geometry.rope, geometry.d_rope, 777), want.data(), 190,
                            kRowValues, kRowValues);
      for (size_t t = 0; t < slots.size(); ++t) {
        ASSERT_EQ(std::memcmp(&got[size_t(slots[t]) * geometry.row_bytes()], &want[t * kRowValues],
                              geometry.row_bytes()),
                  0)
            << "layer " << layer << " token " << t;
      }
    }
  }
}

TEST_F(RequesterBackendTest, FetchedRowsAreTurnedBeforeTheyAreShown) {
  const auto cluster = Start(&device_, LaneShape{.slot_count = 8});
  FetchCall call;
  call.corpus = cluster->Resolve();
  call.chunk_end = 4;
  call.tensor_end = 1;
  call.position = 50;
  call.deadline = Soon();
  std::vector<std::byte> got;
  const absl::Status status = cluster->requester->Fetch(call, [&](const FetchedRows& run) {
    got.insert(got.end(), run.rows.begin(), run.rows.end());
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  std::vector<uint16_t> want = corpus_.Rows(0, 0, 4);
  test::RotateBandsBf16(RopeRotation(corpus_.geometry.rope, corpus_.geometry.d_rope, 50),
                        want.data(), 190, kRowValues, kRowValues);
  ASSERT_EQ(got.size(), want.size() * 2);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0);
  EXPECT_GT(device_.rotate_count(), 0u);
}

TEST_F(RequesterBackendTest, MemoryThatIsNotReachedIsRefusedBeforeAnythingIsSent) {
  const auto cluster = Start(Backend::Cpu(), LaneShape{.slot_count = 8});
  const auto corpus = cluster->Resolve();
  const ContextPart part = {corpus, {}};
  const auto context = cluster->requester->Open({.parts = {&part, 1}}, Soon());
  ASSERT_TRUE(context.ok()) << context.status();
  OwnRows own;
  own.rows = {reinterpret_cast<const std::byte*>(own_.data()), kOwnRows, kRowValues * 2};
  const Segment segment = {.row_count = kRows, .context = &*context, .own = {&own, 1}};
  LayerCall call;
  call.q = {q_.data(), kRows, kRowValues};
  call.segments = {&segment, 1};
  call.deadline = Soon();
  Answer answer(kRows, kLatentValues);
  PartialView out = answer.View();
  const auto refused = [&](const char* what) {
    const absl::Status status = cluster->requester->Attend(call, out);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_THAT(std::string(status.message()), HasSubstr("device memory"));
    EXPECT_TRUE(answer.Untouched());
  };
  const uint64_t before = cluster->fleet.holder(0).stats().request_count;
  call.q.memory = MemoryKind::kDevice;
  refused("query rows");
  call.q.memory = MemoryKind::kPinned;
  own.rows.memory = MemoryKind::kDevice;
  refused("own rows");
  EXPECT_EQ(cluster->fleet.holder(0).stats().request_count, before);
  own.rows.memory = MemoryKind::kPinned;
  out.memory = MemoryKind::kDevice;
  refused("the answer");
  out.memory = MemoryKind::kPinned;
  EXPECT_TRUE(cluster->requester->Attend(call, out).ok());

  const Geometry& geometry = corpus_.geometry;
  EXPECT_EQ(PagedCache::Create(geometry, {.block_count = 16, .memory = MemoryKind::kDevice})
                .status()
                .code(),
            StatusCode::kInvalidArgument);
  std::vector<std::byte> memory(size_t{16} * kCacheBlockTokens * geometry.row_bytes() + 64);
  const auto aligned = std::span(memory).subspan(
      (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64, memory.size() - 64);
  const std::vector<std::span<std::byte>> layers(geometry.layers, aligned);
  const auto cache =
      *PagedCache::Over(geometry, {.block_count = 16, .memory = MemoryKind::kDevice}, layers);
  FetchCall fetch;
  fetch.corpus = corpus;
  fetch.chunk_end = 1;
  fetch.tensor_end = geometry.layers;
  fetch.deadline = Soon();
  const absl::Status status = cluster->requester->FetchInto(fetch, *cache, cache->Begin());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the cache is in device memory"));
}

// Chunks are queried at holders, and not prefetched, if the backend does not reach rows here.
TEST_F(RequesterBackendTest, RowsThatWouldNotBeReachedAreNotPrefetched) {
  BackendReach reach = DeferredBackend::ReachAll();
  reach.rows = {MemoryKind::kDevice};
  DeferredBackend device(reach);
  test::TestFleet fleet({fabric_.get()});
  fleet.StartHolder(0);
  fleet.Load("c", corpus_, std::vector<size_t>(corpus_.chunks.size(), 0));
  RequesterOptions options;
  options.fabrics = {fabric_.get()};
  options.backend = &device;
  const auto requester = *Requester::Create(options, &fleet, &fleet);
  const ContextPart part = {*requester->Resolve("c", "", Soon()), {}};
  const auto cached =
      requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kCache}, Soon());
  ASSERT_TRUE(cached.ok()) << cached.status();
  EXPECT_EQ(requester->Stats().local_cache.chunk_count, 0u);
  EXPECT_EQ(requester->Stats().local_cache.prefetch_count, 0u);
  const Segment segment = {.row_count = kRows, .context = &*cached};
  LayerCall call;
  call.q = {q_.data(), kRows, kRowValues};
  call.segments = {&segment, 1};
  call.deadline = Soon();
  Answer answer(kRows, kLatentValues);
  AttendReport report;
  const absl::Status status = requester->Attend(call, answer.View(), &report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(report.cached_pairs, 0u);
  EXPECT_GT(report.routed_pairs, 0u);
  EXPECT_EQ(device.attend_count(), 0u);
  // The size of the local row cache does not matter: there is nothing to store in it.
  options.local_cache_bytes = 0;
  options.id = "another";
  const auto without = *Requester::Create(options, &fleet, &fleet);
  EXPECT_TRUE(without->Open({.parts = {&part, 1}, .policy = ContextPolicy::kCache}, Soon()).ok());
}

TEST_F(RequesterBackendTest, ABackendMustReachLanes) {
  test::TestFleet fleet({fabric_.get()});
  BackendReach reach = DeferredBackend::ReachAll();
  reach.parts = {MemoryKind::kDevice};
  DeferredBackend device(reach);
  RequesterOptions options;
  options.fabrics = {fabric_.get()};
  for (Backend* const backend : {static_cast<Backend*>(&device), static_cast<Backend*>(nullptr)}) {
    options.backend = backend;
    EXPECT_EQ(Requester::Create(options, &fleet, &fleet).status().code(),
              StatusCode::kInvalidArgument);
  }
}

// No holder can help with a failed backend of this process, so none is tried.
TEST_F(RequesterBackendTest, ABackendThatFailsEndsTheCall) {
  for (const auto failure :
       {DeferredBackend::Failure::kAtCall, DeferredBackend::Failure::kAtWait}) {
    DeferredBackend here;
    test::TestFleet fleet({fabric_.get()});
    fleet.StartHolder(0);
    fleet.Load("c", corpus_, std::vector<size_t>(corpus_.chunks.size(), 0));
    RequesterOptions options;
    options.fabrics = {fabric_.get()};
    options.backend = &here;
    const auto requester = *Requester::Create(options, &fleet, &fleet);
    AttendCall call;
    call.corpus = *requester->Resolve("c", "", Soon());
    call.q = {q_.data(), kRows, kRowValues};
    call.deadline = Soon();
    Answer answer(kRows, kLatentValues);
    here.Fail(failure);
    EXPECT_EQ(requester->Attend(call, answer.View(), nullptr).code(), StatusCode::kInternal);
    EXPECT_TRUE(answer.Untouched());
    EXPECT_EQ(requester->Stats().failover_count, 0u);
    EXPECT_EQ(requester->Stats().reopen_count, 0u);
    here.FailStreams(true);
    options.id = "another";
    const auto without = *Requester::Create(options, &fleet, &fleet);
    EXPECT_EQ(without->Attend(call, answer.View(), nullptr).code(), StatusCode::kResourceExhausted);
  }
}

TEST_F(RequesterBackendTest, AHolderWhoseBackendFailsIsReplaced) {
  test::TestFleet fleet({fabric_.get()});
  fleet.set_backend(&device_);
  fleet.StartHolder(0);
  fleet.set_backend(Backend::Cpu());
  fleet.StartHolder(1);
  fleet.Load("c", corpus_, std::vector<size_t>(corpus_.chunks.size(), 0));
  ASSERT_TRUE(test::PutCorpus(fleet.holder(1).store(), corpus_).ok());
  fleet.Edit("c", [](Corpus& corpus) {
    for (ChunkPlacement& chunk : corpus.chunks)
      chunk.mutable_holders().push_back(test::TestFleet::Name(1));
  });
  RequesterOptions options;
  options.fabrics = {fabric_.get()};
  const auto requester = *Requester::Create(options, &fleet, &fleet);
  AttendCall call;
  call.corpus = *requester->Resolve("c", "", Soon());
  call.q = {q_.data(), kRows, kRowValues};
  device_.Fail(DeferredBackend::Failure::kAtWait);
  // The cost model chooses which of the two is queried first.
  for (int i = 0; i < 100 && device_.attend_count() == 0; ++i) {
    Answer answer(kRows, kLatentValues);
    call.deadline = Soon();
    const absl::Status status = requester->Attend(call, answer.View(), nullptr);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_FALSE(answer.Untouched());
  }
  EXPECT_GT(device_.attend_count(), 0u);
  EXPECT_EQ(requester->Stats().failover_count, 1u);
}

// This requester's costs are those of its backend.
TEST_F(RequesterBackendTest, ConstantsAreMeasuredOnTheBackend) {
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "r";
  const auto here = CalibrateHere(geometry, *Clock::Real(), device_);
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_GT(here->merge_per_row_us, 0);
  EXPECT_GT(here->attend_per_row_token_us, 0);
  // On a busy machine, a splice of one block may take as long as one of many.
  EXPECT_GT(here->splice_per_layer_us + here->splice_per_token_layer_us, 0);
  EXPECT_GT(device_.attend_count(), 0u);
  EXPECT_GT(device_.merge_count(), 0u);
  EXPECT_GT(device_.scatter_count(), 0u);
  device_.Fail(DeferredBackend::Failure::kAtCall);
  EXPECT_EQ(CalibrateHere(geometry, *Clock::Real(), device_).status().code(),
            StatusCode::kInternal);
}

}  // namespace
}  // namespace ckv
