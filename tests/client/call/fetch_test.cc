// Goal: a fetch delivers the store's bytes, in order, rotated once and only if requested, and never
// shows rows whose checksum does not match.

#include "client/call/fetch.h"

#include <algorithm>

#include "attention/rope.h"
#include "gtest/gtest.h"
#include "tests/attention/rotate_bf16.h"
#include "tests/support/fault_fabric.h"
#include "tests/support/hook_fabric.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::Cluster;
using test::MakeTestCorpus;
using test::SmallShape;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;

// The fetched rows as one [chunk][layer][token] array. Checks that they arrive in that order.
struct Gathered {
  std::vector<std::byte> bytes;
  uint64_t last = 0;
  bool in_order = true;
  absl::Status operator()(const FetchedRows& run) {
    const uint64_t place =
        (uint64_t{run.chunk} << 40) + (uint64_t{run.tensor} << 20) + run.token_begin + 1;
    in_order &= place > last;
    last = place;
    bytes.insert(bytes.end(), run.rows.begin(), run.rows.end());
    return absl::OkStatus();
  }
};

std::vector<std::byte> StoredBytes(const test::TestCorpus& corpus, const FetchCall& call,
                                   int64_t delta) {
  std::vector<std::byte> bytes;
  const Geometry& geometry = corpus.geometry;
  const RopeRotation rotation(geometry.rope, geometry.d_rope, delta);
  for (uint32_t chunk = call.chunk_begin; chunk < call.chunk_end; ++chunk) {
    for (uint32_t layer = call.tensor_begin; layer < call.tensor_end; ++layer) {
      std::vector<uint16_t> rows = corpus.chunks[chunk].layers[layer];
      if (delta != 0)
        test::RotateBandsBf16(rotation, rows.data(), uint32_t(rows.size() / geometry.d_qk),
                              geometry.d_qk, geometry.d_qk);
      const auto raw = std::as_bytes(std::span(rows));
      bytes.insert(bytes.end(), raw.begin(), raw.end());
    }
  }
  return bytes;
}

// The place of a range of rows in that array.
auto PlacesIn(std::vector<std::byte>& bytes, const FetchCall& call) {
  return [&bytes, &call](const RowRun& run) {
    const uint64_t row_bytes = call.corpus->geometry.row_bytes();
    uint64_t row = 0;
    for (uint32_t chunk = call.chunk_begin; chunk < run.chunk; ++chunk) {
      row +=
          uint64_t{call.corpus->chunks[chunk].token_count} * (call.tensor_end - call.tensor_begin);
    }
    row += uint64_t{call.corpus->chunks[run.chunk].token_count} * (run.tensor - call.tensor_begin);
    return std::span(bytes).subspan((row + run.token_begin) * row_bytes,
                                    run.token_count * row_bytes);
  };
}

TEST(Fetch, ReturnsTheBytesOfTheStore) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {5, 0, 64, 1, 100, 21}, 1);
  for (const FabricKind kind : {FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp}) {
    const auto fabric = kind == FabricKind::kShm   ? NewShmFabric(Clock::Real())
                        : kind == FabricKind::kTcp ? NewTcpFabric(Clock::Real())
                                                   : NewLoopbackFabric(Clock::Real());
    // 21 rows of 192 B fit a small slot, so chunks are cut by tokens; large ones carry all layers.
    for (const LaneShape& shape : {SmallShape(2), SmallShape(8), LaneShape{.slot_count = 4}}) {
      SCOPED_TRACE(testing::Message() << FabricName(kind) << ", " << shape.slot_count << " slots");
      Cluster cluster(fabric.get(), 2, shape);
      cluster.fleet.Load("c", corpus, {0, 1, 1, 0, 1, 0});
      for (const bool rotated : {false, true}) {
        FetchCall call;
        call.corpus = *cluster.requester->Resolve("c", "", Soon());
        call.chunk_begin = rotated ? 2 : 0;
        call.chunk_end = 6;
        call.tensor_begin = rotated ? 1 : 0;
        call.tensor_end = 3;
        call.deadline = Soon();
        // The canonical position of the first of the chunks is 5.
        if (rotated) call.position = 777;
        Gathered got;
        const absl::Status status = cluster.requester->Fetch(call, std::ref(got));
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(got.in_order);
        const std::vector<std::byte> stored = StoredBytes(corpus, call, rotated ? 777 - 5 : 0);
        EXPECT_TRUE(got.bytes == stored);
        // The same into the caller's memory: the same rows, shown at their places.
        std::vector<std::byte> places(stored.size());
        const auto place = PlacesIn(places, call);
        Gathered shown;
        const auto show = [&](const FetchedRows& run) {
          EXPECT_EQ(run.rows.data(), places.data() + shown.bytes.size());
          return shown(run);
        };
        const absl::Status again = cluster.requester->Fetch(call, place, show);
        ASSERT_TRUE(again.ok()) << again;
        EXPECT_TRUE(shown.in_order);
        EXPECT_TRUE(shown.bytes == stored);
        EXPECT_TRUE(places == stored);
      }
      EXPECT_EQ(cluster.requester->Holders()[0].in_flight, 0u);
    }
  }
}

// Keys of 20 bytes behind rows of 192. Small slots cut tensors by tokens; large ones carry several
// tensors, but never rows and keys together.
TEST(Fetch, IndexKeysAreBehindTheRows) {
  const auto corpus = MakeTestCorpus(test::WithIndex(TestGeometry()), {5, 0, 64, 100}, 1);
  for (const FabricKind kind : {FabricKind::kShm, FabricKind::kTcp}) {
    const auto fabric =
        kind == FabricKind::kShm ? NewShmFabric(Clock::Real()) : NewTcpFabric(Clock::Real());
    for (const LaneShape& shape : {SmallShape(2), LaneShape{.slot_count = 4}}) {
      Cluster cluster(fabric.get(), 2, shape);
      cluster.fleet.Load("c", corpus, {0, 1, 1, 0});
      FetchCall call;
      call.corpus = *cluster.requester->Resolve("c", "", Soon());
      call.chunk_end = 4;
      call.deadline = Soon();
      for (const auto& [begin, end] : {std::pair{0u, 6u}, {2u, 4u}, {3u, 6u}, {5u, 6u}}) {
        call.tensor_begin = begin;
        call.tensor_end = end;
        Gathered got;
        const absl::Status status = cluster.requester->Fetch(call, std::ref(got));
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(got.in_order);
        EXPECT_TRUE(got.bytes == StoredBytes(corpus, call, 0)) << begin << " to " << end;
      }
      const auto refused = [&](const FetchCall& bad) {
        Gathered got;
        EXPECT_EQ(cluster.requester->Fetch(bad, std::ref(got)).code(),
                  absl::StatusCode::kInvalidArgument);
      };
      call.tensor_end = 7;
      refused(call);
      call.tensor_end = 6;
      call.position = 0;
      refused(call);
      call.position.reset();
      call.columns = {0, 4};
      refused(call);
      const std::vector<int32_t> rows = {0};
      const std::vector<std::span<const int32_t>> layers(4, rows);
      SelectionCall selection = {
          .corpus = call.corpus, .chunk_end = 4, .indices = layers, .columns = {}};
      selection.deadline = Soon();
      EXPECT_EQ(
          cluster.requester
              ->FetchSelection(selection, [](const SelectedRows&) { return absl::OkStatus(); })
              .code(),
          absl::StatusCode::kInvalidArgument)
          << "the fourth tensor has keys";
    }
  }
}

TEST(Fetch, AtItsOwnPositionNothingIsRotated) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {5, 64}, 1);
  const auto fabric = NewLoopbackFabric(Clock::Real());
  Cluster cluster(fabric.get(), 1, SmallShape());
  cluster.fleet.Load("c", corpus, {0, 0});
  FetchCall call;
  call.corpus = *cluster.requester->Resolve("c", "", Soon());
  call.chunk_begin = 1;
  call.chunk_end = 2;
  call.tensor_end = 3;
  call.position = 5;
  call.deadline = Soon();
  Gathered got;
  ASSERT_TRUE(cluster.requester->Fetch(call, std::ref(got)).ok());
  EXPECT_TRUE(got.bytes == StoredBytes(corpus, call, 0));
}

TEST(Fetch, TheSinksErrorEndsTheCall) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 64}, 1);
  const auto fabric = NewLoopbackFabric(Clock::Real());
  Cluster cluster(fabric.get(), 1, SmallShape());
  cluster.fleet.Load("c", corpus, {0, 0});
  FetchCall call;
  call.corpus = *cluster.requester->Resolve("c", "", Soon());
  call.chunk_end = 2;
  call.tensor_end = 3;
  call.deadline = Soon();
  int calls = 0;
  const absl::Status status = cluster.requester->Fetch(call, [&](const FetchedRows&) {
    return ++calls == 3 ? absl::AbortedError("enough") : absl::OkStatus();
  });
  EXPECT_EQ(status, absl::AbortedError("enough"));
  EXPECT_EQ(calls, 3);
  // Replies in flight are abandoned, and disturb no later call.
  Gathered got;
  ASSERT_TRUE(cluster.requester->Fetch(call, std::ref(got)).ok());
  EXPECT_TRUE(got.bytes == StoredBytes(corpus, call, 0));
}

TEST(Fetch, RefusesMissingChunks) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 64}, 1);
  const auto fabric = NewLoopbackFabric(Clock::Real());
  Cluster cluster(fabric.get(), 1, SmallShape());
  cluster.fleet.Load("c", corpus, {0, 0});
  FetchCall good;
  good.corpus = *cluster.requester->Resolve("c", "", Soon());
  good.chunk_end = 2;
  good.tensor_end = 3;
  good.deadline = Soon();
  int calls = 0;
  const auto code = [&](const FetchCall& call) {
    return cluster.requester
        ->Fetch(call,
                [&](const FetchedRows&) {
                  ++calls;
                  return absl::OkStatus();
                })
        .code();
  };
  FetchCall call = good;
  call.chunk_end = 3;
  EXPECT_EQ(code(call), absl::StatusCode::kInvalidArgument);
  call = good;
  call.tensor_end = 4;
  EXPECT_EQ(code(call), absl::StatusCode::kInvalidArgument);
  call = good;
  call.tensor_begin = 3;
  EXPECT_EQ(code(call), absl::StatusCode::kInvalidArgument);
  call = good;
  call.position = UINT64_MAX;
  EXPECT_EQ(code(call), absl::StatusCode::kInvalidArgument);
  call = good;
  call.corpus = nullptr;
  EXPECT_EQ(code(call), absl::StatusCode::kInvalidArgument);
  call = good;
  call.deadline = Clock::Real()->Now();
  EXPECT_EQ(code(call), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(calls, 0);
  std::vector<std::byte> buffer(7);
  const absl::Status small = cluster.requester->Fetch(
      good, [&](const RowRun&) { return std::span(buffer); },
      [&](const FetchedRows&) {
        ++calls;
        return absl::OkStatus();
      });
  EXPECT_EQ(small.code(), absl::StatusCode::kInvalidArgument);
  // An empty span is not a valid place either, also for a reply that carries several layers.
  RequesterOptions wide;
  wide.fabrics = {fabric.get()};
  const auto nowhere = (*Requester::Create(wide, &cluster.fleet, &cluster.fleet))
                           ->Fetch(
                               good, [](const RowRun&) { return std::span<std::byte>(); },
                               [&](const FetchedRows&) {
                                 ++calls;
                                 return absl::OkStatus();
                               });
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(calls, 0);
  ASSERT_TRUE(cluster.fleet.holder(0).store().Drop(corpus.chunks[1].info.id).ok());
  EXPECT_EQ(code(good), absl::StatusCode::kNotFound);
}

// Flips one bit in the body of the n-th reply.
auto FlipAt(uint32_t n) {
  return [n](uint32_t reply, std::span<std::byte> body) {
    if (reply == n) body.last(3)[0] ^= std::byte{0x10};
  };
}

// A lane that damages an answer is replaced once. Each lane here damages its reply number
// `flip_at`: of the second one, 23 is beyond the ranges that are left.
TEST(Fetch, AFlippedBitIsNotShown) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 64}, 1);
  const auto tcp = NewTcpFabric(Clock::Real());
  // 24 ranges of at most 21 rows: 4 per layer of a chunk, 3 layers, 2 chunks.
  for (const uint32_t flip_at : {0u, 5u, 23u}) {
    SCOPED_TRACE(flip_at);
    const auto expected = flip_at == 23 ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss;
    test::HookFabric fabric(tcp.get(), FlipAt(flip_at));
    Cluster cluster(&fabric, 1, SmallShape());
    cluster.fleet.Load("c", corpus, {0, 0});
    FetchCall call;
    call.corpus = *cluster.requester->Resolve("c", "", Soon());
    call.chunk_end = 2;
    call.tensor_end = 3;
    call.deadline = Soon();
    Gathered got;
    EXPECT_EQ(cluster.requester->Fetch(call, std::ref(got)).code(), expected);
    const auto stored = StoredBytes(corpus, call, 0);
    ASSERT_EQ(got.bytes.size() == stored.size(), expected == absl::StatusCode::kOk);
    EXPECT_TRUE(std::equal(got.bytes.begin(), got.bytes.end(), stored.begin()));
    // The same if the rows land in the caller's memory: the rows shown before are right.
    test::HookFabric again(tcp.get(), FlipAt(flip_at));
    RequesterOptions options;
    options.fabrics = {&again};
    options.lane_shape = SmallShape();
    const auto requester = *Requester::Create(options, &cluster.fleet, &cluster.fleet);
    std::vector<std::byte> places(stored.size());
    const auto place = PlacesIn(places, call);
    Gathered shown;
    EXPECT_EQ(requester->Fetch(call, place, std::ref(shown)).code(), expected);
    ASSERT_EQ(shown.bytes.size() == stored.size(), expected == absl::StatusCode::kOk);
    EXPECT_TRUE(std::equal(shown.bytes.begin(), shown.bytes.end(), stored.begin()));
  }
}

// Goal: a caller that waits in vain gets the names of the holders, each once.
TEST(Fetch, AtTheDeadlineTheHoldersAreNamed) {
  const auto corpus = MakeTestCorpus(TestGeometry(), {64, 64, 64}, 4);
  const auto inner = NewLoopbackFabric(Clock::Real());
  FaultPlan plan;
  plan.drop_request = 1;
  const auto lossy = NewFaultFabric(inner.get(), Clock::Real(), plan);
  Cluster cluster(inner.get(), 3, SmallShape());
  cluster.fleet.Load("c", corpus, {1, 0, 2});
  RequesterOptions options;
  options.fabrics = {lossy.get()};
  options.lane_shape = SmallShape();
  cluster.requester = *Requester::Create(options, &cluster.fleet, &cluster.fleet);
  FetchCall call;
  call.corpus = *cluster.requester->Resolve("c", "", Soon());
  call.chunk_end = 2;
  call.tensor_end = 1;
  call.deadline = Soon(std::chrono::milliseconds(100));
  const absl::Status status =
      cluster.requester->Fetch(call, [](const FetchedRows&) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  const std::string text(status.message());
  EXPECT_EQ(text.find("holder h1 (inproc:1)"), 0u) << text;
  EXPECT_EQ(text.rfind("holder h1"), 0u) << text;
  EXPECT_EQ(text.find("h2"), std::string::npos) << text;
}

TEST(DescribePeers, EachOnceAndTheRestCounted) {
  std::vector<std::unique_ptr<HolderPeer>> owned;
  std::vector<const HolderPeer*> peers;
  for (size_t i = 0; i < 10; ++i) {
    owned.push_back(std::make_unique<HolderPeer>(TestFleet::Name(i)));
    peers.push_back(owned.back().get());
    peers.push_back(owned.back().get());
  }
  const std::string text = DescribePeers(peers);
  EXPECT_EQ(text.find("holder h0 (address not known), holder h1 (address not known), "), 0u);
  EXPECT_NE(text.find("holder h7 (address not known) and 2 more"), std::string::npos) << text;
  EXPECT_EQ(DescribePeers({}), "");
}

}  // namespace
}  // namespace ckv
