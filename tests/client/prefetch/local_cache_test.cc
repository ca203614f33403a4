// Goal: prefetched rows give the same answers as their holders did, also after the holders are
// gone; rows that do not fit are refused with advice. Method: real holders in this process, and a
// local row cache.

#include <atomic>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "attention/mla_partial.h"
#include "client/context.h"
#include "client/context/local_rows.h"
#include "client/cost/live_error.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Answer;
using test::Cluster;
using test::MakeTestCorpus;
using test::RandomBf16;
using test::SmallShape;
using test::Soon;
using test::TestGeometry;

constexpr uint32_t kRowValues = 96, kLatentValues = 64;  // of the test geometry
constexpr uint32_t kRows = 5;
constexpr uint64_t kWide = uint64_t{64} << 20;

class LocalCacheTest : public testing::Test {
 protected:
  void Start(uint64_t local_cache_bytes, Fabric* fabric = nullptr) {
    if (fabric == nullptr) fabric = fabric_.get();
    cluster_ = std::make_unique<Cluster>(fabric, 2, SmallShape(), nullptr, 16, local_cache_bytes,
                                         local_row_source_);
    cluster_->fleet.Load("c", corpus_, {0, 1, 0, 1});
    resolved_ = cluster_->Resolve();
  }
  absl::StatusOr<Context> Open(ContextPolicy policy, std::vector<ChunkUse> uses = {}) {
    const ContextPart part = {resolved_, uses};
    return cluster_->requester->Open({.parts = {&part, 1}, .policy = policy}, Soon());
  }
  absl::Status Attend(const Context& context, Answer& answer, AttendReport* report = nullptr,
                      PartialDtype wire = PartialDtype::kF32, Instant deadline = Soon()) {
    const Segment segment = {.row_count = kRows, .context = &context};
    LayerCall call;
    call.layer = 1;
    call.q = {q_.data(), kRows, kRowValues};
    call.segments = {&segment, 1};
    call.wire = wire;
    call.deadline = deadline;
    return cluster_->requester->Attend(call, answer.View(), report);
  }

  LocalRowSource* local_row_source_ = nullptr;
  std::mt19937 rng_{7};
  const std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  const test::TestCorpus corpus_ = MakeTestCorpus(TestGeometry(), {1030, 1050, 1, 40}, 3);
  const std::vector<uint16_t> q_ = RandomBf16(kRows * kRowValues, rng_);
  std::unique_ptr<Cluster> cluster_;
  std::shared_ptr<const Corpus> resolved_;
};

TEST_F(LocalCacheTest, ADecodeContinuesWhenItsHoldersAreGone) {
  Start(kWide);
  const auto routed = Open(ContextPolicy::kRoute), cached = Open(ContextPolicy::kCache);
  ASSERT_TRUE(routed.ok() && cached.ok()) << cached.status();
  Answer want(kRows, kLatentValues), got(kRows, kLatentValues), lost(kRows, kLatentValues);
  ASSERT_TRUE(Attend(*routed, want).ok());
  cluster_->fleet.StopHolder(0);
  cluster_->fleet.StopHolder(1);
  AttendReport report;
  const absl::Status status = Attend(*cached, got, &report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(got.SameBits(want));
  EXPECT_EQ(report.routed_pairs, 0u);
  EXPECT_EQ(report.cached_pairs, kRows * 2121u);
  EXPECT_EQ(report.holder_count, 0u);
  EXPECT_EQ(report.prefetched_bytes, cluster_->requester->Stats().local_cache.prefetched_bytes);
  EXPECT_TRUE(report.same_bits_anywhere);
  ASSERT_TRUE(Attend(*cached, got, &report).ok());
  EXPECT_EQ(report.prefetched_bytes, 0u) << "told once";
  EXPECT_FALSE(Attend(*routed, lost, nullptr, PartialDtype::kF32, test::Shortly()).ok());
}

// Own rows attended during a routed call are part of the call's time.
TEST_F(LocalCacheTest, ExplainReportsTheRatioOfMeasuredToPredictedTime) {
  Start(kWide);
  const auto routed = Open(ContextPolicy::kRoute), cached = Open(ContextPolicy::kCache);
  ASSERT_TRUE(routed.ok() && cached.ok()) << cached.status();
  ExplainCall question;
  question.corpus = resolved_;
  question.query_rows = kRows;
  question.deadline = Soon();
  const auto first = cluster_->requester->Explain(question);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->route_ratio.has_value());
  EXPECT_FALSE(first->cached_ratio.has_value());
  Answer answer(kRows, kLatentValues);
  const std::vector<std::byte> own_rows(kRowValues * 2);
  for (uint32_t i = 0; i < 2 * LiveError::kSampleCountMin; ++i)
    ASSERT_TRUE(Attend(*cached, answer).ok());
  const auto of_cached = cluster_->requester->Explain(question);
  ASSERT_TRUE(of_cached.ok()) << of_cached.status();
  EXPECT_FALSE(of_cached->route_ratio.has_value());
  ASSERT_TRUE(of_cached->cached_ratio.has_value());
  EXPECT_GT(*of_cached->cached_ratio, 0);
  const OwnRows own = {{own_rows.data(), 1, kRowValues * 2}, nullptr};
  const Segment segment = {.row_count = kRows, .context = &*routed, .own = {&own, 1}};
  LayerCall call;
  call.layer = 1;
  call.q = {q_.data(), kRows, kRowValues};
  call.segments = {&segment, 1};
  for (uint32_t i = 0; i < 2 * LiveError::kSampleCountMin; ++i) {
    call.deadline = Soon();
    ASSERT_TRUE(cluster_->requester->Attend(call, answer.View(), nullptr).ok());
  }
  const auto of_both = cluster_->requester->Explain(question);
  ASSERT_TRUE(of_both.ok()) << of_both.status();
  ASSERT_TRUE(of_both->route_ratio.has_value());
  EXPECT_GT(*of_both->route_ratio, 0);
  EXPECT_EQ(of_both->cached_ratio, of_cached->cached_ratio);
}

TEST_F(LocalCacheTest, AnyNumberOfThreadsGivesTheSameBits) {
  Start(kWide);
  const auto routed = Open(ContextPolicy::kRoute);
  Answer want(kRows, kLatentValues);
  ASSERT_TRUE(Attend(*routed, want).ok());
  for (const uint32_t threads : {1u, 2u, 5u}) {
    RequesterOptions options;
    options.fabrics = {fabric_.get()};
    options.local_cache_bytes = kWide;
    options.call_threads = threads;
    auto requester = Requester::Create(options, &cluster_->fleet, &cluster_->fleet);
    ASSERT_TRUE(requester.ok()) << requester.status();
    cluster_->requester = *std::move(requester);
    resolved_ = cluster_->Resolve();
    const auto cached = Open(ContextPolicy::kCache);
    ASSERT_TRUE(cached.ok()) << cached.status();
    Answer got(kRows, kLatentValues);
    AttendReport report;
    ASSERT_TRUE(Attend(*cached, got, &report).ok());
    EXPECT_EQ(report.routed_pairs, 0u);
    EXPECT_TRUE(got.SameBits(want)) << threads;
  }
  for (const uint32_t threads : {0u, WorkerPool::kThreadCountMax + 1}) {
    RequesterOptions options;
    options.call_threads = threads;
    const auto requester = Requester::Create(options, &cluster_->fleet, &cluster_->fleet);
    EXPECT_TRUE(absl::IsInvalidArgument(requester.status())) << threads;
  }
}

TEST_F(LocalCacheTest, MapsRowsOfHoldersOnThisHost) {
  const std::unique_ptr<Fabric> shm = NewShmFabric(Clock::Real());
  Start(kWide, shm.get());
  const auto routed = Open(ContextPolicy::kRoute), cached = Open(ContextPolicy::kCache);
  ASSERT_TRUE(routed.ok() && cached.ok()) << cached.status();
  Answer want(kRows, kLatentValues), got(kRows, kLatentValues);
  ASSERT_TRUE(Attend(*routed, want).ok());
  const LocalRowStats stats = cluster_->requester->Stats().local_cache;
  EXPECT_EQ(stats.prefetched_bytes, 0u);
  EXPECT_GE(stats.mapped_bytes, 2121 * kRowValues * 2 * TestGeometry().layers);
  EXPECT_EQ(stats.mapped_bytes, stats.bytes);
  cluster_->fleet.StopHolder(0);
  cluster_->fleet.StopHolder(1);
  AttendReport report;
  ASSERT_TRUE(Attend(*cached, got, &report).ok());
  EXPECT_TRUE(got.SameBits(want));
  EXPECT_EQ(report.routed_pairs, 0u);
  cluster_.reset();  // its lanes must be destroyed before the fabric
}

// The first holder has no room to copy a chunk. That does not affect how it answers queries.
TEST_F(LocalCacheTest, AHolderThatHandsNothingOverIsNotAvoided) {
  const std::unique_ptr<Fabric> shm = NewShmFabric(Clock::Real());
  test::TestFleet fleet({shm.get()});
  fleet.StartHolder(0, /*capacity_bytes=*/size_t{8} << 20);
  fleet.StartHolder(1, /*capacity_bytes=*/size_t{8} << 20);
  fleet.Load("c", corpus_, {0, 0, 0, 0});
  fleet.Lease("c", corpus_, 1, {0, 1, 2, 3});
  RequesterOptions options;
  options.fabrics = {shm.get()};
  options.lane_shape = SmallShape();
  options.local_cache_bytes = kWide;
  auto requester = *Requester::Create(options, &fleet, &fleet);
  const std::vector<ChunkUse> uses = {{1, 0}};
  const ContextPart part = {*requester->Resolve("c", "", Soon()), uses};
  const auto cached =
      requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kCache}, Soon());
  ASSERT_TRUE(cached.ok()) << cached.status();
  const RequesterStats stats = requester->Stats();
  EXPECT_EQ(stats.local_cache.mapped_bytes, 0u);
  EXPECT_GT(stats.local_cache.prefetched_bytes, 0u);
  EXPECT_EQ(stats.failover_count, 0u);
  EXPECT_EQ(stats.retry_count, 0u);
}

TEST_F(LocalCacheTest, ContextsShareWhatIsNear) {
  Start(kWide);
  const auto cached = Open(ContextPolicy::kCache, {{0, 0}, {2, 0}});
  const auto both = Open(ContextPolicy::kAuto), routed = Open(ContextPolicy::kRoute);
  ASSERT_TRUE(cached.ok() && both.ok() && routed.ok());
  Answer want(kRows, kLatentValues), got(kRows, kLatentValues);
  AttendReport report;
  ASSERT_TRUE(Attend(*routed, want, &report).ok());
  EXPECT_EQ(report.cached_pairs, 0u) << "policy route uses no cached rows";
  ASSERT_TRUE(Attend(*both, got, &report).ok());
  EXPECT_TRUE(got.SameBits(want));
  EXPECT_EQ(report.prefetched_bytes, 0u) << "the other context's";
  EXPECT_EQ(report.cached_pairs, kRows * 1031u);
  EXPECT_EQ(report.routed_pairs, kRows * 1090u);
}

// A thread that drives many calls leaves slow steps to other threads.
TEST_F(LocalCacheTest, ATryDoesNotAttendManyCachedRows) {
  Start(kWide);
  const auto routed = Open(ContextPolicy::kRoute);
  const auto many = Open(ContextPolicy::kCache), few = Open(ContextPolicy::kCache, {{3, 0}});
  ASSERT_TRUE(routed.ok() && many.ok() && few.ok());
  Answer want(kRows, kLatentValues), got(kRows, kLatentValues), small(kRows, kLatentValues);
  ASSERT_TRUE(Attend(*routed, want).ok());
  const auto submit = [&](const Context& context, Answer& answer) {
    const Segment segment = {.row_count = kRows, .context = &context};
    LayerCall call;
    call.layer = 1;
    call.q = {q_.data(), kRows, kRowValues};
    call.segments = {&segment, 1};
    call.wire = PartialDtype::kF32;
    call.deadline = Soon();
    return cluster_->requester->TrySubmit(call, answer.View());
  };
  auto ticket = submit(*many, got);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(ticket->TryPoll(), TicketProgress::kMustWait);
  std::thread([&] { EXPECT_TRUE(ticket->Wait().ok()); }).join();
  EXPECT_TRUE(got.SameBits(want));
  auto short_one = submit(*few, small);
  ASSERT_TRUE(short_one.ok()) << short_one.status();
  EXPECT_EQ(short_one->TryPoll(), TicketProgress::kDone);
  EXPECT_TRUE(short_one->Wait().ok());
}

TEST_F(LocalCacheTest, AContextThatDoesNotFitIsRefusedWithAdvice) {
  Start(/*local_cache_bytes=*/10'000);
  const auto cached = Open(ContextPolicy::kCache);
  EXPECT_EQ(cached.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(cached.status().message().find("raise local_cache_bytes"), std::string::npos)
      << cached.status();
  EXPECT_TRUE(Open(ContextPolicy::kAuto).ok()) << "auto routes what does not fit";
}

TEST_F(LocalCacheTest, NeverEvictsRowsOfPolicyNear) {
  // Room for the largest chunk and little else.
  const uint64_t layer_bytes = 1050 * kRowValues * 2;
  Start(layer_bytes * TestGeometry().layers + 4096);
  auto first = Open(ContextPolicy::kCache, {{1, 0}});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Open(ContextPolicy::kCache, {{3, 0}});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted) << second.status();
  first->Close();
  const auto third = Open(ContextPolicy::kCache, {{3, 0}});
  ASSERT_TRUE(third.ok()) << third.status();
  Answer got(kRows, kLatentValues), want(kRows, kLatentValues);
  const auto routed = Open(ContextPolicy::kRoute, {{3, 0}});
  ASSERT_TRUE(Attend(*third, got).ok() && Attend(*routed, want).ok());
  EXPECT_TRUE(got.SameBits(want));
}

// Chunks evicted between two steps are routed from the next step on.
TEST_F(LocalCacheTest, EvictionInTheMiddleOfADecodeChangesNoBit) {
  Start(1050 * kRowValues * 2 * TestGeometry().layers + 4096);
  auto prefetched = Open(ContextPolicy::kCache, {{1, 0}});
  const auto routed = Open(ContextPolicy::kRoute, {{1, 0}});
  ASSERT_TRUE(prefetched.ok() && routed.ok()) << prefetched.status();
  const auto decode = Open(ContextPolicy::kAuto, {{1, 0}});
  prefetched->Close();
  Answer want(kRows, kLatentValues), got(kRows, kLatentValues);
  AttendReport report;
  ASSERT_TRUE(Attend(*routed, want).ok());
  ASSERT_TRUE(Attend(*decode, got, &report).ok());
  EXPECT_EQ(report.cached_pairs, kRows * 1050u);
  EXPECT_TRUE(got.SameBits(want));
  const auto other = Open(ContextPolicy::kCache, {{3, 0}});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(cluster_->requester->Stats().local_cache.eviction_count, 1u);
  ASSERT_TRUE(Attend(*decode, got, &report).ok());
  EXPECT_EQ(report.cached_pairs, 0u);
  EXPECT_EQ(report.routed_pairs, kRows * 1050u);
  EXPECT_TRUE(got.SameBits(want));
}

// Rows of chunk 0, as this process' holder has them until they are found damaged.
class RowsHere final : public LocalRowSource {
 public:
  struct Rows final : LocalRows {
    std::span<const std::byte> tensor(uint32_t l) const override {
      return std::as_bytes(std::span(chunk->layers[l]));
    }
    bool current() const override { return sound; }
    const test::TestChunk* chunk = nullptr;
    std::atomic<bool> sound{true};
  };
  std::shared_ptr<const LocalRows> Find(const Corpus&, uint32_t chunk) override {
    return chunk == 0 && rows->sound ? rows : nullptr;
  }
  absl::Status Copy(const std::shared_ptr<const Corpus>&, const std::vector<uint32_t>&,
                    Instant) override {
    return absl::UnavailableError("no copies here");
  }
  const std::shared_ptr<Rows> rows = std::make_shared<Rows>();
};

TEST_F(LocalCacheTest, RowsFoundDamagedAreRoutedFromTheNextCallOn) {
  RowsHere here;
  here.rows->chunk = &corpus_.chunks[0];
  local_row_source_ = &here;
  Start(kWide);
  const auto context = Open(ContextPolicy::kAuto, {{0, 0}});
  const auto routed = Open(ContextPolicy::kRoute, {{0, 0}});
  ASSERT_TRUE(context.ok() && routed.ok());
  Answer want(kRows, kLatentValues), got(kRows, kLatentValues);
  AttendReport report;
  ASSERT_TRUE(Attend(*routed, want).ok());
  ASSERT_TRUE(Attend(*context, got, &report).ok());
  EXPECT_EQ(report.cached_pairs, kRows * 1030u);
  EXPECT_TRUE(got.SameBits(want));
  here.rows->sound = false;
  ASSERT_TRUE(Attend(*context, got, &report).ok());
  EXPECT_EQ(report.cached_pairs, 0u);
  EXPECT_TRUE(got.SameBits(want));
  cluster_.reset();  // it borrows the rows
}

// Bits that were the same when the context was opened may differ later.
TEST_F(LocalCacheTest, RoutesRowsOfHoldersThatReturnWithAnotherKernelTarget) {
  RowsHere here;
  here.rows->chunk = &corpus_.chunks[0];
  local_row_source_ = &here;
  Start(kWide);
  const auto context = Open(ContextPolicy::kAuto, {{0, 0}, {1, 0}});
  ASSERT_TRUE(context.ok()) << context.status();
  Answer answer(kRows, kLatentValues);
  AttendReport report;
  ASSERT_TRUE(Attend(*context, answer, &report).ok());
  EXPECT_EQ(report.cached_pairs, kRows * 1030u);
  EXPECT_TRUE(report.same_bits_anywhere);
  test::TestFleet& fleet = cluster_->fleet;
  fleet.StopHolder(1);
  ASSERT_TRUE(ForceKernelTarget(KernelTargets()[1]).ok());
  fleet.StartHolder(1);
  ASSERT_TRUE(ForceKernelTarget("").ok());
  for (const size_t chunk : {1, 3}) {
    ASSERT_TRUE(
        test::PutChunk(fleet.holder(1).store(), corpus_.geometry, corpus_.chunks[chunk]).ok());
  }
  // The first call detects and reports it. The requester acts on it a moment later.
  ASSERT_TRUE(Attend(*context, answer, &report).ok());
  EXPECT_TRUE(report.targets_differ);
  EXPECT_FALSE(report.same_bits_anywhere);
  for (const Instant give_up = Soon(); report.cached_pairs > 0 && Clock::Real()->Now() < give_up;)
    ASSERT_TRUE(Attend(*context, answer, &report).ok());
  EXPECT_EQ(report.cached_pairs, 0u);
  cluster_.reset();  // it borrows the rows
}

}  // namespace
}  // namespace ckv
