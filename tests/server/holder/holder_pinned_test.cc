// Goal: a backend that reaches no host memory computes in a holder's chunks and in the slots of its
// lanes, which are pinned for it. All that is pinned is released. Method: real holders over each
// fabric. One has a backend that ends the process when it is given a view of memory that is not
// pinned. Its answers are compared with those of this processor, bit for bit.

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/holder/holder.h"
#include "tests/server/holder/holder_fixture.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using test::DeferredBackend;
using test::RawAttend;
using test::RawClient;
using test::RawPiece;
using test::RawReply;
using testing::HasSubstr;

struct PinnedDevice {
  DeferredBackend device_{DeferredBackend::ReachPinned()};
};

// Rows of DeepSeek's width.
Geometry WideGeometry(uint32_t layers) {
  Geometry geometry = test::TestGeometry(layers);
  geometry.d_qk = 576;
  geometry.d_v = 512;
  geometry.d_rope = 64;
  return geometry;
}

// The device is a base, so that it outlives the holder and its lanes.
class HolderPinnedTest : public PinnedDevice, public test::HolderTest {
 protected:
  HolderPinnedTest() {
    // One that takes the side thread, too.
    corpus_ = test::MakeTestCorpus(test::TestGeometry(), {5, 64, 0, 130, 71, 1000}, 1);
    options_.backend = &device_;
    here_options_ = options_;
    here_options_.backend = Backend::Cpu();
    here_options_.fabrics = {here_fabric_.get()};
  }
  void SetUp() override {}
  size_t Pins() const { return device_.pin_count(); }

  void Start() {
    StartHolder();
    here_ = *Holder::Start(here_options_);
    here_->lease().Grant(test::kEpoch, kInstantMax);
  }
  void PutBoth() {
    ASSERT_TRUE(test::PutCorpus(holder_->store(), corpus_).ok());
    ASSERT_TRUE(test::PutCorpus(here_->store(), corpus_).ok());
  }
  struct Clients {
    std::unique_ptr<RawClient> device, here;
    std::vector<uint32_t> handles, here_handles;
  };
  Clients OpenBoth() {
    Clients clients;
    clients.device = Open();
    auto here = RawClient::Open(*here_, *here_fabric_, corpus_.geometry, {});
    CKV_CHECK(here.ok());
    clients.here = *std::move(here);
    clients.handles = clients.device->Resolve(corpus_);
    clients.here_handles = clients.here->Resolve(corpus_);
    return clients;
  }
  // Sends the request to both holders. Its handles are ordinals of chunks.
  void ExpectSameBits(Clients& clients, const RawAttend& attend) {
    RawAttend there = attend, here = attend;
    for (size_t i = 0; i < attend.pieces.size(); ++i) {
      there.pieces[i].handle = clients.handles[attend.pieces[i].handle];
      here.pieces[i].handle = clients.here_handles[attend.pieces[i].handle];
    }
    const absl::StatusOr<RawReply> got = clients.device->Call(there);
    const absl::StatusOr<RawReply> want = clients.here->Call(here);
    ASSERT_TRUE(got.ok() && want.ok()) << got.status() << want.status();
    ASSERT_TRUE(got->status().ok()) << got->status();
    ASSERT_TRUE(want->status().ok()) << want->status();
    EXPECT_EQ(got->body, want->body);
    EXPECT_EQ(got->header.kernel_target, want->header.kernel_target);
  }
  RawPiece Selected(uint32_t ordinal, uint32_t row_count) {
    RawPiece piece = {.handle = ordinal, .k = 6, .group_rows = row_count};
    piece.indices.emplace();
    for (int i = 0; i < 6; ++i) piece.indices->push_back(static_cast<int32_t>(rng_() % 70) - 3);
    return piece;
  }

  const std::unique_ptr<Fabric> here_fabric_ = NewLoopbackFabric(Clock::Real());
  HolderOptions here_options_;
  std::unique_ptr<Holder> here_;
};

INSTANTIATE_TEST_SUITE_P(Fabrics, HolderPinnedTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         test::FabricOf);

TEST_P(HolderPinnedTest, AnswersHaveTheBitsOfThisProcessor) {
  Start();
  PutBoth();
  Clients clients = OpenBoth();
  EXPECT_EQ(Pins(), 2u) << "the store, and a lane";
  for (const uint8_t flags : {0, 1, 2, 3}) {
    for (uint32_t chunks = 1; chunks <= 5; ++chunks) {
      SCOPED_TRACE(testing::Message() << "flags " << int{flags} << ", " << chunks << " chunks");
      std::vector<uint32_t> ordinals;
      for (uint32_t i = 0; i < chunks; ++i) ordinals.push_back(i);
      RawAttend attend = Dense(ordinals, 1 + chunks * 4, chunks % 3, flags);
      ExpectSameBits(clients, attend);
      attend.pieces.back() = Selected(ordinals.back(), attend.row_count);
      ExpectSameBits(clients, attend);
    }
  }
  // Computed by the side thread.
  ExpectSameBits(clients, Dense({5}, 4096, 0, /*flags=*/0));
  EXPECT_EQ(holder_->stats().long_count, 1u);
  EXPECT_EQ(holder_->stats().error_count, 0u);
  EXPECT_GT(device_.attend_count(), 40u);
  EXPECT_GT(device_.merge_count(), 0u);
}

// Rows are read by this processor, as usual.
TEST_P(HolderPinnedTest, FetchesAreUnchanged) {
  Start();
  PutBoth();
  Clients clients = OpenBoth();
  for (const uint32_t chunk : {1u, 3u}) {
    const auto fetch = [&](RawClient& client, uint32_t handle) {
      FetchEntry entry = {.handle = handle, .tensor_begin = 0, .tensor_count = 3};
      entry.token_count = 60;
      RequestHeader header = client.Header();
      header.kind = WireKind::kFetch;
      return client.CallBytes(header, std::as_bytes(std::span(&entry, 1)));
    };
    const auto got = fetch(*clients.device, clients.handles[chunk]);
    const auto want = fetch(*clients.here, clients.here_handles[chunk]);
    ASSERT_TRUE(got.ok() && want.ok()) << got.status() << want.status();
    ASSERT_TRUE(got->status().ok()) << got->status();
    EXPECT_GT(got->body.size(), 60u * 3);
    EXPECT_EQ(got->body, want->body);
  }
}

// Chunks on disk of which rows are selected, and more than fit in memory together.
TEST_P(HolderPinnedTest, RowsReadFromDiskArePinned) {
  static int count = 0;
  corpus_ = test::MakeTestCorpus(test::TestGeometry(), {400, 400, 400}, 3);
  options_.capacity_bytes = here_options_.capacity_bytes =
      2 * ChunkLayout(corpus_.geometry, 400).total_bytes();
  options_.store_path = test::TempPath(absl::StrCat("pinned", count));
  here_options_.store_path = test::TempPath(absl::StrCat("pinned_here", count++));
  std::atomic<int> pins{0};
  device_.OnPin([&] { ++pins; });
  Start();
  PutBoth();
  holder_.reset();
  here_.reset();
  EXPECT_EQ(Pins(), 0u);
  Start();  // all chunks are cold
  Clients clients = OpenBoth();
  EXPECT_EQ(Pins(), 3u) << "the store, the room for rows from disk, a lane";
  const int before = pins;
  RawAttend attend = Dense({}, 16);
  for (uint32_t round = 0; round < 3; ++round) {
    attend.pieces = {Selected(round, 16), Selected((round + 1) % 3, 16)};
    ExpectSameBits(clients, attend);
  }
  EXPECT_EQ(holder_->stats().stripe_bytes, 0u) << "no stripe is kept";
  EXPECT_EQ(holder_->stats().load_count, 0u);
  EXPECT_GT(holder_->stats().cold_count, 0u);
  ExpectSameBits(clients, Dense({0, 1, 2}, 16));
  EXPECT_LE(holder_->stats().load_count, 2u) << "the third has its layer read";
  EXPECT_EQ(pins, before) << "nothing is pinned for a request";
  EXPECT_EQ(Pins(), 3u);
}

// The room has 4 MiB, and the layer 4.4.
TEST_P(HolderPinnedTest, AChunkWhoseLayerIsTooLongForTheRoomIsLoaded) {
  static int count = 0;
  const Geometry geometry = WideGeometry(/*layers=*/1);
  corpus_ = test::MakeTestCorpus(geometry, {4000}, 7);
  for (HolderOptions* options : {&options_, &here_options_})
    options->store_path = test::TempPath(absl::StrCat("pinned_long", count++));
  Start();
  PutBoth();
  holder_.reset();
  here_.reset();
  Start();
  Clients clients = OpenBoth();
  RawAttend attend = Dense({}, 16);
  attend.pieces = {Selected(0, 16)};
  ExpectSameBits(clients, attend);
  EXPECT_EQ(holder_->stats().load_count, 1u);
  EXPECT_EQ(here_->stats().load_count, 0u);
}

// Packed rows are in the store's memory. Both holders evict alike.
TEST_P(HolderPinnedTest, ShadowsArePinnedWithTheStore) {
  static int count = 0;
  const Geometry geometry = WideGeometry(/*layers=*/2);
  corpus_ = test::MakeTestCorpus(geometry, std::vector<uint32_t>(8, 100), 5);
  const uint64_t capacity = 4 * ChunkLayout(geometry, 100).total_bytes();
  for (HolderOptions* options : {&options_, &here_options_}) {
    options->capacity_bytes = capacity;
    options->shadow_bytes_max = capacity / 2;
    options->store_path = test::TempPath(absl::StrCat("pinned_shadow", count++));
  }
  Start();
  PutBoth();
  Clients clients = OpenBoth();
  // The last ones are hot, and those before them have shadows.
  for (uint32_t chunk = 8; chunk-- > 0;) {
    SCOPED_TRACE(chunk);
    ExpectSameBits(clients, Dense({chunk}, 16, 1, kFlagPartialF32 | kFlagApproximate));
  }
  EXPECT_GT(holder_->stats().approximate_count, 0u);
  EXPECT_EQ(holder_->stats().approximate_count, here_->stats().approximate_count);
}

// A fabric that does not heed the pinner.
class PlainFabric final : public Fabric {
 public:
  explicit PlainFabric(Fabric* inner) : inner_(inner) {}
  FabricKind kind() const noexcept override { return inner_->kind(); }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    ListenOptions plain = options;
    plain.slot_pinner = nullptr;
    return inner_->Listen(plain);
  }
  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    return inner_->Dial(shape);
  }

 private:
  Fabric* const inner_;
};

TEST_P(HolderPinnedTest, LanesOfHostMemoryAreDropped) {
  PlainFabric plain(fabric_.get());
  options_.fabrics = {&plain};
  StartHolder();
  auto client = RawClient::Open(*holder_, plain, corpus_.geometry, {});
  if (client.ok()) {
    const Instant deadline = test::Soon();
    std::array<Completion, 1> none;
    while ((*client)->lane().status().ok() && Clock::Real()->Now() < deadline)
      EXPECT_EQ((*client)->lane().Poll(none), 0u);
    EXPECT_EQ((*client)->lane().status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_TRUE(Eventually([](const HolderStats& stats) { return stats.session_count == 0; }));
  EXPECT_EQ(holder_->stats().lane_count, 0u);
  // A backend that reaches host memory takes them, and pins nothing.
  DeferredBackend all;
  options_.backend = &all;
  StartHolder();
  ASSERT_TRUE(test::PutCorpus(holder_->store(), corpus_).ok());
  const auto taken = Open({}, &plain);
  ASSERT_TRUE(taken->Call(Dense({taken->Resolve(corpus_)[0]}, 1))->status().ok());
  EXPECT_EQ(all.pin_count(), 0u);
  holder_.reset();
}

}  // namespace
}  // namespace ckv
