// Goal: a push sends only what the other holder lacks, reports each chunk in order, and stops at a
// failure or on request. Method: one store pushes to another through a target that counts, and
// fails on demand.

#include "server/upkeep/chunk_push.h"

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/status.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using test::PutChunk;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<ChunkStore> OpenStore(const std::string& folder = "") {
  ChunkStoreOptions options;
  options.capacity_bytes = 1 << 22;
  if (!folder.empty()) options.path = test::TempPath(folder);
  auto store = ChunkStore::Open(options);
  CKV_CHECK(store.ok());
  return *std::move(store);
}

// A store behind the interface of a peer.
class StoreTarget final : public PushTarget {
 public:
  explicit StoreTarget(ChunkStore* store) : store_(*store) {}

  absl::StatusOr<std::vector<uint64_t>> Query(const ChunkId& id, const Geometry& geometry,
                                              const std::string& tenant, Instant) override {
    CKV_ASSIGN_OR_RETURN(const ChunkInfo info, store_.InfoOf(id, geometry, tenant));
    return info.tensor_checksums;
  }
  absl::Status Put(const ChunkInfo& info, const Geometry& geometry, const std::string& tenant,
                   const ChunkRows* rows, Instant, uint64_t& bytes_sent) override {
    if (before_put) CKV_RETURN_IF_ERROR(before_put(info.id));
    auto begun = store_.Begin(info, geometry, tenant);
    if (absl::IsAlreadyExists(begun.status()))
      CKV_RETURN_IF_ERROR(store_.PutAgain(info.id, Duration(0)));
    CKV_ASSIGN_OR_RETURN(ChunkPut put, std::move(begun));
    for (uint32_t t = 0; rows != nullptr && t < geometry.tensor_count(); ++t) {
      std::vector<std::byte> bytes(rows->layout().bytes(t));
      CKV_RETURN_IF_ERROR(rows->Read(t, 0, info.token_count(), bytes));
      CKV_RETURN_IF_ERROR(put.Write(t, 0, bytes));
      bytes_sent += bytes.size();
    }
    return std::move(put).Finish();
  }
  void Cancel() override {
    cancelled = true;
    if (!cancel.HasBeenNotified()) cancel.Notify();
  }

  std::function<absl::Status(const ChunkId&)> before_put;
  std::atomic<bool> cancelled{false};
  absl::Notification cancel;

 private:
  ChunkStore& store_;
};

class ChunkPushTest : public testing::Test {
 protected:
  ChunkPushTest() {
    for (const test::TestChunk& chunk : corpus_.chunks) {
      CKV_CHECK(PutChunk(*from_, corpus_.geometry, chunk).ok());
      ids_.push_back(chunk.info.id);
    }
  }
  struct Outcome {
    absl::Status status;
    std::vector<PushedChunk> reported;
    uint64_t bytes_sent = 0;
  };
  Outcome Push(StoreTarget& target, const std::vector<ChunkId>& ids, const std::string& tenant = "",
               size_t told_max = SIZE_MAX) {
    Outcome outcome;
    ChunkPush push(from_.get(), &target, Clock::Real(),
                   {.ids = ids, .geometry = corpus_.geometry, .tenant = tenant});
    outcome.status = push.Run(
        [&](const PushedChunk& chunk) {
          outcome.reported.push_back(chunk);
          outcome.bytes_sent += chunk.bytes_sent;
          return outcome.reported.size() < told_max;
        },
        [] { return false; });
    return outcome;
  }
  absl::Status PutAs(ChunkStore& store, const test::TestChunk& chunk, const std::string& tenant,
                     Duration ttl) {
    CKV_ASSIGN_OR_RETURN(ChunkPut put, store.Begin(chunk.info, corpus_.geometry, tenant));
    put.set_ttl(ttl);
    for (uint32_t t = 0; t < corpus_.geometry.tensor_count(); ++t)
      CKV_RETURN_IF_ERROR(put.Write(t, 0, std::as_bytes(std::span(chunk.layers[t]))));
    return std::move(put).Finish();
  }
  static std::vector<bool> Reused(const Outcome& outcome) {
    std::vector<bool> reused;
    for (const PushedChunk& chunk : outcome.reported) reused.push_back(chunk.reused);
    return reused;
  }
  uint64_t RowBytes() const {
    return from_->table().stats().token_count * corpus_.geometry.token_bytes();
  }

  const test::TestCorpus corpus_ =
      test::MakeTestCorpus(test::WithIndex(test::TestGeometry()), {40, 0, 7, 100, 33}, /*seed=*/1);
  const std::unique_ptr<ChunkStore> from_ = OpenStore();
  std::vector<ChunkId> ids_;
};

TEST_F(ChunkPushTest, SendsWhatIsNotThere) {
  const auto to = OpenStore("sends");
  StoreTarget target(to.get());
  ASSERT_TRUE(PutChunk(*to, corpus_.geometry, corpus_.chunks[3]).ok());
  const Outcome first = Push(target, ids_);
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_THAT(Reused(first), ElementsAre(false, false, false, true, false));
  for (size_t i = 0; i < ids_.size(); ++i) EXPECT_EQ(first.reported[i].id, ids_[i]);
  EXPECT_EQ(first.bytes_sent, RowBytes() - 100 * corpus_.geometry.token_bytes());
  for (const test::TestChunk& chunk : corpus_.chunks)
    EXPECT_EQ(to->InfoOf(chunk.info.id, corpus_.geometry, "")->tensor_checksums,
              chunk.info.tensor_checksums);
  const Outcome second = Push(target, ids_);
  ASSERT_TRUE(second.status.ok()) << second.status;
  EXPECT_THAT(Reused(second), ElementsAre(true, true, true, true, true));
  EXPECT_EQ(second.bytes_sent, 0u);
  EXPECT_FALSE(target.cancelled);
}

// Goal: a copy that is only in memory becomes durable if there is a device, and is reused if not.
TEST_F(ChunkPushTest, ReusedMeansAsDurableAsItGets) {
  const auto to = OpenStore("durable");
  StoreTarget target(to.get());
  ASSERT_TRUE(test::PutCopy(*to, corpus_.geometry, corpus_.chunks[0]).ok());
  ASSERT_FALSE(to->table().IsDurable(ids_[0]));
  EXPECT_THAT(Reused(Push(target, {ids_[0]})), ElementsAre(true));
  EXPECT_TRUE(to->table().IsDurable(ids_[0]));

  const auto memory = OpenStore();
  StoreTarget without_device(memory.get());
  EXPECT_THAT(Reused(Push(without_device, {ids_[0]})), ElementsAre(false));
  const Outcome again = Push(without_device, {ids_[0]});
  EXPECT_THAT(Reused(again), ElementsAre(true));
  EXPECT_EQ(again.bytes_sent, 0u);
}

// Goal: a copy that its holder was to drop after a time stays, once a corpus was moved onto it.
TEST_F(ChunkPushTest, AReusedCopyStays) {
  ManualClock clock;
  ChunkStoreOptions options;
  options.capacity_bytes = 1 << 22;
  options.clock = &clock;
  options.path = test::TempPath("stays");
  const auto to = *ChunkStore::Open(options);
  ASSERT_TRUE(PutChunk(*to, corpus_.geometry, corpus_.chunks[0]).ok());
  ASSERT_TRUE(PutAs(*to, corpus_.chunks[2], "", std::chrono::seconds(5)).ok());
  ASSERT_TRUE(PutAs(*to, corpus_.chunks[3], "", std::chrono::seconds(5)).ok());
  StoreTarget target(to.get());
  EXPECT_THAT(Reused(Push(target, {ids_[2]})), ElementsAre(true));
  clock.Advance(std::chrono::seconds(6));
  EXPECT_EQ(to->Expire(/*count_max=*/10), 1u);
  EXPECT_FALSE(to->table().Contains(ids_[3]));
  EXPECT_TRUE(to->table().Contains(ids_[2]));
}

// Goal: if the target is too busy to accept the put over its copy, the push fails. It neither
// counts the copy nor sends rows.
TEST_F(ChunkPushTest, ABusyTargetIsAnError) {
  const auto to = OpenStore();
  ASSERT_TRUE(PutChunk(*to, corpus_.geometry, corpus_.chunks[0]).ok());
  StoreTarget target(to.get());
  int count = 0;
  target.before_put = [&](const ChunkId&) {
    ++count;
    return absl::ResourceExhaustedError("16 puts");
  };
  EXPECT_TRUE(absl::IsResourceExhausted(Push(target, {ids_[0]}).status));
  EXPECT_EQ(count, 1);
}

// Goal: rows that are only in a file are sent from there, and stay cold.
TEST_F(ChunkPushTest, AColdChunkStaysCold) {
  ChunkStoreOptions options;
  options.capacity_bytes = 1 << 22;
  options.path = test::TempPath("cold");
  auto cold = *ChunkStore::Open(options);
  ASSERT_TRUE(PutChunk(*cold, corpus_.geometry, corpus_.chunks[3]).ok());
  cold.reset();
  cold = *ChunkStore::Open(options);
  const auto to = OpenStore();
  StoreTarget target(to.get());
  ChunkPush push(cold.get(), &target, Clock::Real(),
                 {.ids = {ids_[3]}, .geometry = corpus_.geometry});
  const absl::Status pushed =
      push.Run([](const PushedChunk&) { return true; }, [] { return false; });
  ASSERT_TRUE(pushed.ok()) << pushed;
  EXPECT_TRUE(to->table().Contains(ids_[3]));
  EXPECT_EQ(cold->stats().table.cold_count, 1u);
}

TEST_F(ChunkPushTest, TheFirstChunkThatFailsEndsItAndIsNamed) {
  const auto to = OpenStore();
  StoreTarget target(to.get());
  ChunkId unknown = ids_[0];
  unknown.bytes[0] ^= 1;
  const Outcome missing = Push(target, {ids_[0], unknown, ids_[2], ids_[3], ids_[4]});
  EXPECT_TRUE(absl::IsNotFound(missing.status)) << missing.status;
  EXPECT_THAT(std::string(missing.status.message()), HasSubstr(unknown.ShortHex()));
  EXPECT_EQ(missing.reported.size(), 1u);
  EXPECT_TRUE(to->table().Contains(ids_[0]));
  EXPECT_TRUE(target.cancelled);
}

TEST_F(ChunkPushTest, OtherRowsUnderTheIdAreRefused) {
  const auto to = OpenStore();
  StoreTarget target(to.get());
  test::TestChunk other = corpus_.chunks[0];
  other.layers[1][0] ^= 1;
  other.info.tensor_checksums[1] = ChecksumOf(std::as_bytes(std::span(other.layers[1])));
  ASSERT_TRUE(PutChunk(*to, corpus_.geometry, other).ok());
  EXPECT_TRUE(absl::IsDataLoss(Push(target, {ids_[0]}).status));
}

// Goal: a tenant that may not read a chunk cannot have it pushed either. A chunk is pushed for the
// tenant of the order (I6).
TEST_F(ChunkPushTest, ForATenantWhoMayReadIt) {
  test::TestChunk own = test::MakeTestCorpus(corpus_.geometry, {9}, /*seed=*/2).chunks[0];
  ASSERT_TRUE(PutAs(*from_, own, "red", Duration(0)).ok());
  const auto to = OpenStore();
  StoreTarget target(to.get());
  EXPECT_TRUE(absl::IsNotFound(Push(target, {own.info.id}, "blue").status));
  StoreTarget another(to.get());
  ASSERT_TRUE(Push(another, {own.info.id}, "red").status.ok());
  EXPECT_TRUE(to->table().Find(own.info.id, corpus_.geometry, "red").ok());
  EXPECT_TRUE(absl::IsNotFound(to->table().Find(own.info.id, corpus_.geometry).status()));
}

// Goal: a copy that was dropped while it was put is put once more, and only once.
TEST_F(ChunkPushTest, AbortedPutsAreTriedOnceMore) {
  const auto to = OpenStore();
  StoreTarget target(to.get());
  int count = 0;
  target.before_put = [&](const ChunkId&) {
    return ++count == 1 ? absl::AbortedError("dropped") : absl::OkStatus();
  };
  EXPECT_TRUE(Push(target, {ids_[0]}).status.ok());
  EXPECT_EQ(count, 2);
  target.before_put = [&](const ChunkId&) { return absl::AbortedError("dropped"); };
  EXPECT_TRUE(absl::IsAborted(Push(target, {ids_[2]}).status));
}

// Goal: a push ends when its callback returns false, and when it is stopped while the target hangs.
TEST_F(ChunkPushTest, Stops) {
  const auto to = OpenStore();
  StoreTarget unheard(to.get());
  const Outcome one = Push(unheard, ids_, "", /*told_max=*/1);
  EXPECT_TRUE(absl::IsCancelled(one.status));
  EXPECT_EQ(one.reported.size(), 1u);

  const auto other = OpenStore();
  StoreTarget hangs(other.get());
  std::atomic<bool> hanging{false};
  hangs.before_put = [&](const ChunkId&) {
    hanging = true;
    hangs.cancel.WaitForNotification();
    return absl::CancelledError("cancelled");
  };
  ChunkPush push(from_.get(), &hangs, Clock::Real(), {.ids = ids_, .geometry = corpus_.geometry});
  const absl::Status stopped =
      push.Run([](const PushedChunk&) { return true; }, [&] { return hanging.load(); });
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  EXPECT_EQ(other->stats().table.chunk_count, 0u);
}

}  // namespace
}  // namespace ckv
