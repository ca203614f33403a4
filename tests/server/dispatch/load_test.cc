// Goal: a holder under mixed load answers every session in turn, and every request exactly once.

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "server/dispatch/dispatcher.h"
#include "server/dispatch/push_server.h"
#include "server/dispatch/side_work.h"
#include "tests/server/holder/holder_fixture.h"
#include "transport/body_checksum.h"

namespace ckv {
namespace {

using test::RawAttend;
using test::RawClient;
using test::RawPartial;
using test::RawReply;

class LoadTest : public test::HolderTest {
 protected:
  static constexpr LaneShape kWide = {
      .slot_count = 4, .request_bytes_max = 8u << 20, .reply_bytes_max = 4u << 20};

  // A frame of `work` multiply-adds and hardly any time: indices that are all skipped, or of chunk
  // 1 (64 tokens) if `real`.
  RawAttend OfWork(uint64_t work, uint32_t handle, bool real) {
    const Geometry& geometry = corpus_.geometry;
    RawAttend attend = {.row_count = kQueryRowCountMax, .flags = kFlagPartialF32};
    attend.rows = test::RandomBf16(size_t{attend.row_count} * geometry.d_qk, rng_);
    const auto k =
        static_cast<uint32_t>(work / (uint64_t{attend.row_count} * (geometry.d_qk + geometry.d_v)));
    attend.pieces = {{.handle = handle, .k = k, .group_rows = attend.row_count}};
    attend.pieces[0].indices.emplace(k, -1);
    if (real) {
      for (int32_t& index : *attend.pieces[0].indices) index = static_cast<int32_t>(rng_() % 64);
    }
    return attend;
  }
};

INSTANTIATE_TEST_SUITE_P(Fabrics, LoadTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         test::FabricOf);

// Fabrics that pass descriptors, and the others.
class PassingLoadTest : public LoadTest {};
INSTANTIATE_TEST_SUITE_P(Fabrics, PassingLoadTest, testing::Values(FabricKind::kShm),
                         test::FabricOf);
class OtherLoadTest : public LoadTest {};
INSTANTIATE_TEST_SUITE_P(Fabrics, OtherLoadTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kTcp), test::FabricOf);

// Goal: a long request makes no other session wait, and ends with its own session.
// Method: one of the largest there may be, which takes seconds to minutes. A small one of another
// session is answered meanwhile. Then the large one's lane is closed, and its work with it.
TEST_P(LoadTest, ALongRequestDelaysNoOther) {
  Put();
  const auto slow = Open({.shape = kWide});
  const auto quick = Open();
  const std::vector<uint32_t> handles = slow->Resolve(corpus_);
  quick->Resolve(corpus_);
  slow->Post(OfWork(kRequestWorkMax, handles[1], /*real=*/true), slow->Header());
  ASSERT_TRUE(Eventually([](const HolderStats& stats) { return stats.long_count == 1; }));
  for (int i = 0; i < 3; ++i) ExpectRight(*quick, Dense({handles[0]}, 2));
  const HolderStats stats = holder_->stats();
  EXPECT_EQ(stats.batch_count, 3u) << "the long one is still being computed";
  slow->DropLanes();
  EXPECT_TRUE(Eventually([](const HolderStats& s) { return s.lane_count == 1; }));
  EXPECT_TRUE(NothingPinned());
}

// Goal: what the side thread computes has the bits of what the polling thread computes.
// Method: one long request, and its rows in small ones.
TEST_P(LoadTest, LongAnswersHaveTheBitsOfShortOnes) {
  Put();
  const auto client = Open({.shape = kWide});
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  const Geometry& geometry = corpus_.geometry;
  RawAttend attend = OfWork(kPollingWorkMax + (uint64_t{1} << 27), handles[1], /*real=*/true);
  attend.pieces[0].group_rows = 64;  // each group its own indices
  const uint32_t k = attend.pieces[0].k;
  const uint32_t groups = kQueryRowCountMax / 64;
  attend.pieces[0].indices->resize(size_t{groups} * k);
  for (int32_t& index : *attend.pieces[0].indices) index = static_cast<int32_t>(rng_() % 66) - 1;
  const auto whole = client->Call(attend);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE(whole->status().ok()) << whole->status();
  EXPECT_EQ(holder_->stats().long_count, 1u);
  const RawPartial expected = whole->Partials(geometry.d_v)[0];

  for (uint32_t begin = 0; begin < kQueryRowCountMax; begin += 1024) {
    RawAttend part = attend;
    part.row_count = 1024;
    const auto row = [&](uint32_t r) { return attend.rows.begin() + r * geometry.d_qk; };
    part.rows.assign(row(begin), row(begin + 1024));
    const auto list = attend.pieces[0].indices->data() + size_t{begin / 64} * k;
    part.pieces[0].indices->assign(list, list + 16 * k);
    const auto reply = client->Call(part);
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_TRUE(reply->status().ok()) << reply->status();
    const RawPartial partial = reply->Partials(geometry.d_v)[0];
    const auto same = [&](const std::vector<float>& whole_of, const std::vector<float>& part_of) {
      const size_t width = part_of.size() / 1024;
      return std::equal(part_of.begin(), part_of.end(), whole_of.data() + begin * width);
    };
    EXPECT_TRUE(same(expected.o, partial.o)) << "rows from " << begin;
    EXPECT_TRUE(same(expected.m, partial.m));
    EXPECT_TRUE(same(expected.l, partial.l));
  }
}

// Goal: a reply that the operating system does not accept at once is completed without further
// calls, though its lane was silent while it was computed.
// Method: 24 MB from the side thread, to a requester that looks only when the holder sleeps.
TEST_P(LoadTest, LargeRepliesReachSilentLanes) {
  corpus_ = test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(24, 130), 1);
  Put();
  const auto client = Open(
      {.shape = {.slot_count = 2, .request_bytes_max = 1u << 20, .reply_bytes_max = 32u << 20}});
  RawAttend attend = Dense(client->Resolve(corpus_), kQueryRowCountMax);
  attend.per_piece = true;
  client->Post(attend, client->Header());
  ASSERT_TRUE(Eventually([](const HolderStats& stats) { return stats.bytes_out > 0; }));
  const uint64_t sleeps = holder_->stats().sleep_count;
  ASSERT_TRUE(Eventually([&](const HolderStats& s) { return s.sleep_count > sleeps; }));
  const auto reply = client->Await();
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_TRUE(reply->status().ok()) << reply->status();
  EXPECT_EQ(holder_->stats().long_count, 1u);
  EXPECT_EQ(reply->Partials(corpus_.geometry.d_v).size(), 24u);
}

// Goal: half a computation is not an answer.
// Method: the lane of a request in progress is broken by a malformed frame, so that the work ends
// early; what the requester gets is no reply.
TEST_P(LoadTest, ABrokenLaneGetsNoHalfAnswer) {
  Put();
  const auto client = Open({.shape = kWide});
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  client->Post(OfWork(kRequestWorkMax, handles[1], /*real=*/true), client->Header());
  ASSERT_TRUE(Eventually([](const HolderStats& stats) { return stats.long_count == 1; }));
  client->PostBytes(std::vector<std::byte>(64, std::byte{0x5a}));
  EXPECT_FALSE(client->Await().ok());
  EXPECT_TRUE(Eventually([](const HolderStats& stats) { return stats.lane_count == 0; }));
}

// Goal: a selection of nothing is the empty partial, whichever thread answers it.
// Method: after a long request the session's next one is taken for long, and is not.
TEST_P(LoadTest, AnEmptySelectionAfterALongRequestIsEmpty) {
  Put();
  const auto client = Open({.shape = kWide});
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  RawAttend attend = OfWork(kPollingWorkMax + (uint64_t{1} << 27), handles[1], /*real=*/true);
  ASSERT_TRUE(client->Call(attend).ok());
  attend.pieces[0].k = 0;
  attend.pieces[0].indices->clear();
  const auto reply = client->Call(attend);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_TRUE(reply->status().ok()) << reply->status();
  const RawPartial partial = reply->Partials(corpus_.geometry.d_v)[0];
  for (uint32_t row = 0; row < attend.row_count; row += 97) {
    EXPECT_EQ(partial.m[row], kEmptyM);
    EXPECT_EQ(partial.l[row], 0.0f);
    EXPECT_EQ(partial.o[size_t{row} * corpus_.geometry.d_v], 0.0f);
  }
}

// Goal: past its limit the queue refuses at once, with a hint, and every request is answered once.
// Method: a queue of one request, and two sessions that post 8 at a time until one was refused.
TEST_P(LoadTest, AFullQueueRefusesWithAHint) {
  options_.queue_request_count_max = 1;
  StartHolder();
  Put();
  const auto a = Open();
  const auto b = Open();
  const std::vector<uint32_t> handles = a->Resolve(corpus_);
  b->Resolve(corpus_);
  const RawAttend attend = Dense({handles[1]}, 1);
  uint64_t refused = 0;
  uint64_t answered = 0;
  for (const Instant give_up = test::Soon(); refused == 0;) {
    ASSERT_LT(Clock::Real()->Now(), give_up);
    std::map<uint64_t, int> awaited[2];
    RawClient* const clients[2] = {a.get(), b.get()};
    for (int i = 0; i < 8; ++i) {
      for (int c = 0; c < 2; ++c) ++awaited[c][clients[c]->Post(attend, clients[c]->Header())];
    }
    for (int c = 0; c < 2; ++c) {
      for (int i = 0; i < 8; ++i) {
        const auto reply = clients[c]->Await();
        ASSERT_TRUE(reply.ok()) << reply.status();
        EXPECT_EQ(awaited[c][reply->header.request_id]--, 1);
        if (reply->status().ok()) {
          ++answered;
          continue;
        }
        EXPECT_TRUE(absl::IsResourceExhausted(reply->status())) << reply->status();
        EXPECT_GE(reply->header.retry_after_us, Admission::kRetryAfterUsMin);
        ++refused;
      }
    }
  }
  EXPECT_GT(answered, 0u);
  EXPECT_EQ(holder_->stats().refused_count, refused);
}

// Goal: silent lanes are left to their events, and are answered nevertheless.
TEST_P(LoadTest, SilentLanesAreAnswered) {
  Put();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(Open({.lane_count = 2}));
  const std::vector<uint32_t> handles = clients[0]->Resolve(corpus_);
  for (auto& client : clients) client->Resolve(corpus_);
  for (int round = 0; round < 3; ++round) {
    for (auto& client : clients) {
      const uint64_t sleeps = holder_->stats().sleep_count;
      client->Post(Dense({handles[0]}, 1), client->Header(), /*lane=*/1);
      const auto reply = client->Await(1);
      ASSERT_TRUE(reply.ok()) << reply.status();
      EXPECT_TRUE(reply->status().ok()) << reply->status();
      // Lanes that had nothing to send are armed now.
      ASSERT_TRUE(Eventually([&](const HolderStats& s) { return s.sleep_count > sleeps; }));
    }
  }
}

// Goal: a drain waits for what the side thread computes.
TEST_P(LoadTest, DrainWaitsForLongRequests) {
  Put();
  const auto client = Open({.shape = kWide});
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  client->Post(OfWork(kPollingWorkMax + (uint64_t{1} << 27), handles[1], /*real=*/true),
               client->Header());
  ASSERT_TRUE(Eventually([](const HolderStats& stats) { return stats.long_count == 1; }));
  holder_->Drain(test::Soon());
  const auto reply = client->Await();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(reply->status().ok()) << reply->status();
}

// Goal: a fetch carries at most its limit, whatever the slot holds; layers too many to gather are
// copied, and are the same rows.
TEST_P(LoadTest, PushesAreBoundedAndRight) {
  corpus_ = test::MakeTestCorpus(test::TestGeometry(/*layers=*/40), {9, 2900}, 3);
  Put();
  const auto client = Open({.shape = kWide});
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  const auto fetch = [&](const FetchEntry& entry) {
    RequestHeader header = client->Header();
    header.kind = WireKind::kFetch;
    return client->CallBytes(header, std::as_bytes(std::span(&entry, 1)));
  };
  for (const uint32_t layers : {1u, 16u, 17u, 40u}) {
    const FetchEntry entry = {.handle = handles[0], .tensor_count = layers, .token_count = 9};
    const auto reply = fetch(entry);
    ASSERT_TRUE(reply.ok()) << reply.status();
    ASSERT_TRUE(reply->status().ok()) << reply->status();
    std::vector<std::byte> rows;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const auto bytes = std::as_bytes(std::span(corpus_.chunks[0].layers[layer]));
      rows.insert(rows.end(), bytes.begin(), bytes.end());
    }
    EXPECT_EQ(reply->body, rows);
    EXPECT_EQ(
        reply->header.body_checksum,
        SharesMemory(GetParam()) ? 0 : BodyChecksum(entry, corpus_.geometry.row_bytes(), rows));
  }
  constexpr uint32_t kTokensMax = kFetchBodyBytesMax / 192;
  ASSERT_LT(kTokensMax, 2900u);
  auto reply = fetch({.handle = handles[1], .tensor_count = 1, .token_count = kTokensMax});
  ASSERT_TRUE(reply.ok() && reply->status().ok());
  reply = fetch({.handle = handles[1], .tensor_count = 1, .token_count = kTokensMax + 1});
  ASSERT_TRUE(reply.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(reply->status())) << reply->status();
  EXPECT_TRUE(NothingPinned());
}

// Goal: a requester of this host gets the chunk itself: its rows, and no others.
// Method: each chunk twice, the first time copied and the second time not. The contents of the
// descriptor are compared with the rows that were put.
TEST_P(PassingLoadTest, MapsHandTheChunkOver) {
  Put();
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  for (const size_t i : {0, 1, 3, 1, 0}) {
    RequestHeader header = client->Header();
    header.kind = WireKind::kMap;
    header.body_bytes = sizeof(MapEntry);
    const MapEntry entry = {.handle = handles[i]};
    RequestLane& lane = client->lane();
    const uint32_t slot = *lane.Acquire();
    EncodeHeader(header, lane.request(slot));
    std::memcpy(lane.request(slot).data() + sizeof(header), &entry, sizeof(entry));
    ASSERT_TRUE(lane.Post(slot, sizeof(header) + sizeof(entry)).ok());
    Completion done;
    for (const Instant give_up = test::Soon(); lane.Poll({&done, 1}) == 0;) {
      ASSERT_LT(Clock::Real()->Now(), give_up);
    }
    const auto reply = lane.reply(done.slot).first(done.bytes);
    const auto body = DecodeMapReply(reply);
    ASSERT_TRUE(body.ok()) << body.status();
    auto fd = lane.TakeDescriptor(done.slot);
    ASSERT_TRUE(fd.ok()) << fd.status();
    lane.Release(done.slot);
    void* const base = mmap(nullptr, body->bytes, PROT_READ, MAP_SHARED, fd->get(), 0);
    ASSERT_NE(base, MAP_FAILED);
    for (uint32_t layer = 0; layer < corpus_.geometry.layers; ++layer) {
      const ChunkLayout layout(corpus_.geometry, corpus_.chunks[i].info.token_count());
      EXPECT_EQ(body->bytes, layout.total_bytes());
      EXPECT_EQ(std::memcmp(static_cast<std::byte*>(base) + layout.begin(layer),
                            corpus_.chunks[i].layers[layer].data(), layout.bytes(layer)),
                0);
    }
    munmap(base, body->bytes);
  }
  EXPECT_EQ(holder_->stats().map_count, 5u);
  EXPECT_TRUE(NothingPinned());
}

// Goal: only shm hands chunks over; elsewhere a map is refused, and a malformed one ends the lane.
TEST_P(OtherLoadTest, MapsAreRefusedWhereNoDescriptorPasses) {
  Put();
  const auto client = Open();
  MapEntry entry = {.handle = client->Resolve(corpus_)[0]};
  RequestHeader header = client->Header();
  header.kind = WireKind::kMap;
  auto reply = client->CallBytes(header, std::as_bytes(std::span(&entry, 1)));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_TRUE(absl::IsUnimplemented(reply->status())) << reply->status();
  entry.reserved[6] = 1;
  header.request_id = client->Header().request_id;
  EXPECT_FALSE(client->CallBytes(header, std::as_bytes(std::span(&entry, 1))).ok());
}

}  // namespace
}  // namespace ckv
