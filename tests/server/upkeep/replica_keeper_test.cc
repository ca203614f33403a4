// Goal: a copy is announced only when it is whole and checked, is dropped only by its owner, and is
// announced again under every new lease.
// Method: two real holders over loopback, a real requester and a real DirectoryState; the keeper's
// thread runs on a ManualClock, and the test waits for the directory's state.

#include "server/upkeep/replica_keeper.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::TestFleet;
using testing::HasSubstr;

// The chunks that a holder reports; a test can falsify the report.
class TableInfos final : public ChunkInfoSource {
 public:
  explicit TableInfos(TestFleet* fleet) : fleet_(fleet) {}
  absl::StatusOr<ChunkInfo> GetChunkInfo(const Member& holder, const ChunkId& id,
                                         const Geometry& geometry, std::string_view tenant,
                                         Instant /*deadline*/) override {
    EXPECT_EQ(holder.id, TestFleet::Name(0));
    const auto pin = fleet_->holder(0).table().Pin(id, geometry, tenant);
    if (!pin.ok()) return pin.status();
    ChunkInfo info = pin->chunk().info();
    if (falsify) falsify(info);
    return info;
  }
  std::function<void(ChunkInfo&)> falsify;

 private:
  TestFleet* const fleet_;
};

// The local registry, with a wire that can be cut.
class CuttableRegistry final : public ReplicaRegistry {
 public:
  explicit CuttableRegistry(DirectoryState* state) : local_(state) {}
  absl::StatusOr<std::vector<bool>> Announce(uint64_t lease_id, std::string_view tenant,
                                             std::span<const ChunkId> ids,
                                             Instant deadline) override {
    if (cut) return absl::UnavailableError("cut off");
    return local_.Announce(lease_id, tenant, ids, deadline);
  }
  absl::Status Withdraw(uint64_t lease_id, std::optional<std::string_view> tenant,
                        std::span<const ChunkId> ids, Instant deadline) override {
    if (cut) return absl::UnavailableError("cut off");
    return local_.Withdraw(lease_id, tenant, ids, deadline);
  }
  std::atomic<bool> cut{false};

 private:
  LocalReplicaRegistry local_;
};

class ReplicaKeeperTest : public testing::Test {
 public:
  ~ReplicaKeeperTest() override { keeper_.reset(); }

 protected:
  ReplicaKeeperTest() {
    fleet_.StartHolder(0);
    fleet_.StartHolder(1);
    fleet_.Load("c", corpus_, {0, 0, 0, 0});
    EXPECT_TRUE(
        directory_.Publish(corpus_.Publish("c", "", {{TestFleet::Name(0)}}), false, 0).ok());
    RequesterOptions options;
    options.fabrics = {fabric_.get()};
    auto requester = Requester::Create(options, &fleet_, &fleet_);
    CKV_CHECK(requester.ok());
    requester_ = *std::move(requester);
    auto published = requester_->Resolve("c", "", test::Soon());
    CKV_CHECK(published.ok());
    published_ = *std::move(published);
    options_.self = TestFleet::Name(1);
    options_.clock = &clock_;
    options_.replica_bytes_max = 16u << 20;
    Register();
    Start();
  }

  void Start() {
    keeper_.reset();
    keeper_ = std::make_unique<ReplicaKeeper>(options_, &fleet_, &infos_, &registry_,
                                              requester_.get(), &store(), [this] {
                                                absl::MutexLock lock(&mu_);
                                                return lease_;
                                              });
  }
  void Register() {
    const Member member{.id = TestFleet::Name(1),
                        .role = MemberRole::kHolder,
                        .control_address = "h:1",
                        .epoch = {}};
    const auto grant = directory_.Register(member, seconds(60));
    ASSERT_TRUE(grant.ok());
    absl::MutexLock lock(&mu_);
    lease_ = *grant;
  }
  void LoseLease() {
    absl::MutexLock lock(&mu_);
    lease_.reset();
  }

  static std::vector<uint32_t> Chunks(uint32_t begin, uint32_t end) {
    std::vector<uint32_t> chunks(end - begin);
    std::iota(chunks.begin(), chunks.end(), begin);
    return chunks;
  }
  absl::StatusOr<ReplicaReport> Replicate(uint32_t begin, uint32_t end) {
    return keeper_->Replicate({published_, Chunks(begin, end), kInstantMax});
  }
  ChunkStore& store() { return fleet_.holder(1).store(); }
  const ChunkTable& table() { return store().table(); }
  bool Has(uint32_t i) { return table().Contains(corpus_.chunks[i].info.id); }
  uint64_t BytesOf(uint32_t i) const {
    return ChunkLayout(corpus_.geometry, corpus_.chunks[i].info.token_count()).total_bytes();
  }
  // The ordinals of the chunks that the directory lists for h1, as "0,2".
  std::string Told(const std::string& tenant = "") {
    std::string text;
    const auto corpus = directory_.Get("c", tenant);
    for (size_t i = 0; corpus.ok() && i < (*corpus)->chunks.size(); ++i) {
      if (!(*corpus)->chunks[i].leased().empty())
        text += (text.empty() ? "" : ",") + std::to_string(i);
    }
    return text;
  }
  // Lets the keeper's thread run until the directory lists `ordinals`. Real time bounds the wait,
  // so that a bug fails the test.
  void ExpectReportedSoon(const std::string& ordinals) {
    absl::Mutex mu;
    absl::MutexLock lock(&mu);
    const Instant deadline = test::Soon();
    while (Told() != ordinals && Clock::Real()->Now() < deadline) {
      clock_.Advance(options_.audit_period);
      static const bool never = false;
      Clock::Real()->Await(mu, absl::Condition(&never), Clock::Real()->Now() + milliseconds(1));
    }
    EXPECT_EQ(Told(), ordinals);
  }

  const test::TestCorpus corpus_ =
      test::MakeTestCorpus(test::WithIndex(test::TestGeometry()), {40, 30, 0, 50}, /*seed=*/1);
  const std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  TestFleet fleet_{{fabric_.get()}};
  ManualClock clock_;
  // No one renews leases here: the directory's clock does not advance.
  ManualClock directory_clock_;
  DirectoryState directory_{DirectoryOptions{.clock = &directory_clock_}};
  TableInfos infos_{&fleet_};
  CuttableRegistry registry_{&directory_};
  std::unique_ptr<Requester> requester_;
  std::shared_ptr<const Corpus> published_;
  ReplicaKeeperOptions options_;
  absl::Mutex mu_;
  std::optional<LeaseGrant> lease_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ReplicaKeeper> keeper_;
};

TEST_F(ReplicaKeeperTest, ACopyHasTheBytesOfItsSourceAndIsReported) {
  const auto report = Replicate(0, 4);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->fetched_count, 4u);
  EXPECT_EQ(report->fetched_bytes, 120 * corpus_.geometry.token_bytes());
  EXPECT_EQ(report->refused_count + report->evicted_count + report->present_count, 0u);
  EXPECT_EQ(Told(), "0,1,2,3");
  for (uint32_t i = 0; i < 4; ++i) {
    const auto pin = table().Pin(corpus_.chunks[i].info.id, corpus_.geometry);
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_EQ(pin->chunk().info().tensor_checksums, corpus_.chunks[i].info.tensor_checksums);
    for (uint32_t t = 0; t < corpus_.geometry.tensor_count(); ++t) {
      const auto rows = pin->chunk().tensor(t);
      const auto source = std::as_bytes(std::span(corpus_.chunks[i].layers[t]));
      ASSERT_EQ(rows.size(), source.size());
      EXPECT_TRUE(std::equal(rows.begin(), rows.end(), source.begin()));
    }
  }
  const auto again = Replicate(0, 4);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->fetched_count, 0u);
  EXPECT_EQ(again->present_count, 4u);
  const ReplicaStats stats = keeper_->stats();
  EXPECT_EQ(stats.chunk_count, 4u);
  EXPECT_EQ(stats.bytes, BytesOf(0) + BytesOf(1) + BytesOf(3));
  EXPECT_EQ(stats.fetched_count, 4u);

  const auto released = keeper_->Release({published_, {1, 2, 3}, kInstantMax});
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_EQ(*released, 3u);
  EXPECT_EQ(Told(), "0");
  EXPECT_TRUE(Has(0));
  EXPECT_FALSE(Has(1) || Has(2) || Has(3));
  EXPECT_EQ(keeper_->stats().bytes, BytesOf(0));
}

// Goal: a copy that does not match its checksums, or is not what its id says, is never stored or
// announced (I2, I3). Copies that were made before it are.
TEST_F(ReplicaKeeperTest, ACorruptSourceIsRefused) {
  const ChunkId second = corpus_.chunks[1].info.id;
  infos_.falsify = [&](ChunkInfo& info) {
    if (info.id == second) info.tensor_checksums[2] ^= 1;
  };
  absl::Status status = Replicate(0, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("chunk 1"));
  EXPECT_EQ(Told(), "0");
  EXPECT_FALSE(Has(1));

  infos_.falsify = [](ChunkInfo& info) { info.token_ids[3] ^= 1; };
  status = Replicate(1, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("describes another chunk"));
  EXPECT_FALSE(Has(1));

  // The corpus states another length than the chunk has, and room was made for the stated one.
  auto shorter = std::make_shared<Corpus>(*published_);
  shorter->chunks[1].token_count = 29;
  infos_.falsify = nullptr;
  status = keeper_->Replicate({shorter, {1}, kInstantMax}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;

  EXPECT_TRUE(Replicate(1, 2).ok());
  EXPECT_EQ(Told(), "0,1");
}

TEST_F(ReplicaKeeperTest, EvictsTheCopyUnusedForTheLongestFirst) {
  options_.replica_bytes_max = BytesOf(0) + BytesOf(3);
  Start();
  ASSERT_TRUE(Replicate(0, 1).ok());
  ASSERT_TRUE(Replicate(1, 2).ok());
  ASSERT_TRUE(Replicate(0, 1).ok());
  const auto report = Replicate(3, 4);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->evicted_count, 1u);
  EXPECT_EQ(Told(), "0,3");
  EXPECT_FALSE(Has(1));
  EXPECT_EQ(keeper_->stats().evicted_count, 1u);
  EXPECT_EQ(keeper_->stats().bytes, options_.replica_bytes_max);

  const absl::Status large = Replicate(0, 4).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Told(), "0,3") << "refused before anything is dropped";
}

TEST_F(ReplicaKeeperTest, NeverDropsWhatOthersPut) {
  // Before the call, and after it.
  ASSERT_TRUE(test::PutChunk(store(), corpus_.geometry, corpus_.chunks[0]).ok());
  auto report = Replicate(0, 2);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->present_count, 1u);
  EXPECT_EQ(report->fetched_count, 1u);
  EXPECT_EQ(Told(), "0,1");
  keeper_->Adopt(corpus_.chunks[1].info.id);
  EXPECT_EQ(keeper_->stats().bytes, 0u);
  ASSERT_TRUE(keeper_->Release({published_, {0, 1, 2, 3}, kInstantMax}).ok());
  EXPECT_EQ(Told(), "");
  EXPECT_TRUE(Has(0) && Has(1));

  // Nor what an operator marked.
  ASSERT_TRUE(Replicate(3, 4).ok());
  ASSERT_TRUE(store().Keep(corpus_.chunks[3].info.id, true).ok());
  ASSERT_TRUE(keeper_->Release({published_, {3}, kInstantMax}).ok());
  EXPECT_TRUE(Has(3));
}

TEST_F(ReplicaKeeperTest, ReportsCopiesAgainUnderANewLease) {
  ASSERT_TRUE(Replicate(0, 2).ok());
  Register();  // the earlier lease is dead, with what it announced
  EXPECT_EQ(Told(), "");
  ExpectReportedSoon("0,1");
  EXPECT_EQ(keeper_->stats().fetched_count, 2u) << "nothing was copied anew";
}

TEST_F(ReplicaKeeperTest, WithdrawsWhatOthersDrop) {
  ASSERT_TRUE(Replicate(0, 2).ok());
  ASSERT_TRUE(store().Drop(corpus_.chunks[0].info.id).ok());
  ExpectReportedSoon("1");
  EXPECT_EQ(keeper_->stats().bytes, BytesOf(1));
}

TEST_F(ReplicaKeeperTest, ADirectoryThatIsAway) {
  ASSERT_TRUE(Replicate(0, 1).ok());
  registry_.cut = true;
  EXPECT_EQ(Replicate(1, 2).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Has(1)) << "whole, and told later";
  EXPECT_EQ(keeper_->Release({published_, {0}, kInstantMax}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Has(0)) << "the directory still sends requests for it";
  registry_.cut = false;
  ExpectReportedSoon("0,1");

  LoseLease();
  EXPECT_EQ(Replicate(3, 4).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Has(3));
}

// If the corpus was dropped meanwhile, this holder keeps no copy: no requester would be sent to it.
TEST_F(ReplicaKeeperTest, DropsWhatTheDirectoryRefuses) {
  ASSERT_TRUE(directory_.Drop("c", "").ok());
  const auto report = Replicate(0, 2);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->refused_count, 2u);
  EXPECT_FALSE(Has(0) || Has(1));
  EXPECT_EQ(keeper_->stats().bytes, 0u);
}

// Goal: the directory drops its record of copies of chunks that no corpus places, although the
// lease continues. Requested again, they are announced again.
TEST_F(ReplicaKeeperTest, ReportsCopiesAgainForACorpusThatReturned) {
  ASSERT_TRUE(Replicate(0, 2).ok());
  ASSERT_TRUE(directory_.Drop("c", "").ok());
  ASSERT_TRUE(directory_.Publish(corpus_.Publish("c", "", {{TestFleet::Name(0)}}), false, 0).ok());
  EXPECT_EQ(Told(), "");
  const auto report = Replicate(0, 2);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->present_count, 2u);
  EXPECT_EQ(Told(), "0,1");
}

// Goal: a copy is announced to the tenants for which it was requested, and is dropped with the last
// of them (I6).
TEST_F(ReplicaKeeperTest, EachTenantHasItsOwnAnnouncements) {
  const Corpus red = corpus_.Publish("c", "red", {{TestFleet::Name(0)}});
  ASSERT_TRUE(directory_.Publish(red, false, 0).ok());
  const ReplicaCall of_red = {std::make_shared<const Corpus>(red), {0}, kInstantMax};
  auto report = keeper_->Replicate(of_red);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->fetched_count, 1u);
  EXPECT_EQ(Told("red"), "0");
  EXPECT_EQ(Told(), "");
  auto released = keeper_->Release({published_, {0}, kInstantMax});
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_EQ(*released, 0u) << "nor does it say that others have one";
  EXPECT_TRUE(Has(0));

  report = Replicate(0, 1);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->present_count, 1u);
  EXPECT_EQ(Told(), "0");
  ASSERT_EQ(*keeper_->Release(of_red), 1u);
  EXPECT_TRUE(Has(0));
  EXPECT_EQ(Told(), "0");
  ASSERT_EQ(*keeper_->Release({published_, {0}, kInstantMax}), 1u);
  EXPECT_FALSE(Has(0));
  EXPECT_EQ(keeper_->stats().bytes, 0u);
}

// A put calls Adopt before and after. A copy made in between still belongs to the put's client.
TEST_F(ReplicaKeeperTest, ACopyThatArrivesDuringAPutIsAdopted) {
  const ChunkId id = corpus_.chunks[0].info.id;
  keeper_->Adopt(id);
  ASSERT_TRUE(Replicate(0, 1).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(test::PutChunk(store(), corpus_.geometry, corpus_.chunks[0])));
  keeper_->Adopt(id);
  ASSERT_TRUE(keeper_->Release({published_, {0}, kInstantMax}).ok());
  EXPECT_TRUE(Has(0));
}

TEST_F(ReplicaKeeperTest, FetchesNothingThatHasMembersEnough) {
  auto full = std::make_shared<Corpus>(*published_);
  for (size_t i = 2; full->chunks[0].leased().size() < kReplicaCountMax - 1; ++i) {
    full->chunks[0].mutable_leased().push_back(TestFleet::Name(i));
  }
  const auto report = keeper_->Replicate({full, {0, 1}, kInstantMax});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->refused_count, 1u);
  EXPECT_EQ(report->fetched_count, 1u);
  EXPECT_EQ(Told(), "1");
}

TEST_F(ReplicaKeeperTest, KeepsNoneWhereItMayNot) {
  options_.replica_bytes_max = 0;
  Start();
  const absl::Status status = Replicate(0, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--replicas-percent"));
  EXPECT_EQ(Replicate(2, 2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Replicate(3, 5).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckv
