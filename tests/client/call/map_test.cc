// Goal: a chunk of a holder on this host is read in place, and no memory that a holder passes can
// end or mislead this process. Method: a holder that passes what a test sets, over a fabric that
// passes descriptors and reports itself as shm.

#include "client/call/map.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_holder.h"
#include "tests/support/scripted_fabric.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::FakeHolder;
using test::MakeTestCorpus;
using test::ScriptedFabric;
using test::ShiftedClock;
using test::SmallShape;
using test::Soon;
using test::TestFleet;
using test::TestGeometry;
using testing::HasSubstr;

constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// `bytes` in memory with these seals.
UniqueFd Sealed(std::span<const std::byte> bytes, int seals) {
  UniqueFd fd(memfd_create("map_test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(write(fd.get(), bytes.data(), bytes.size()), ssize_t(bytes.size()));
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

struct MapTest : testing::Test {
  MapTest() {
    body.bytes = layout.total_bytes();
    memory.resize(layout.total_bytes());
    for (uint32_t l = 0; l < corpus.geometry.layers; ++l) {
      std::memcpy(memory.data() + layout.begin(l), corpus.chunks[0].layers[l].data(),
                  layout.bytes(l));
    }
  }
  void Connect(FabricKind kind) {
    fabric = std::make_unique<ScriptedFabric>(kind, &clock);
    holder = std::make_unique<FakeHolder>(
        fabric.get(), corpus.Publish("c", "", {{TestFleet::Name(0)}}),
        [this](const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
          Serve(header, lane, arrival);
        });
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    options.lane_shape = SmallShape();
    requester = *Requester::Create(options, holder.get(), holder.get());
    call.corpus = *requester->Resolve("c", "", Soon());
    call.deadline = Soon();
  }
  void Serve(const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
    const auto entry = DecodeMapRequest(header, lane.request(arrival.slot).first(arrival.bytes));
    handle = entry.ok() ? entry->handle : 0;
    const std::span<std::byte> slot = lane.reply(arrival.slot);
    if (!refusal.ok()) {
      lane.Post(arrival.slot, EncodeErrorReply(header, refusal, 0, slot)).IgnoreError();
      return;
    }
    ReplyHeader reply;
    reply.kind = header.kind;
    reply.request_id = header.request_id + (strange ? 1 : 0);
    reply.epoch = header.epoch;
    reply.body_bytes = sizeof(body);
    EncodeHeader(reply, slot);
    std::memcpy(slot.data() + sizeof(reply), &body, sizeof(body));
    const uint32_t bytes = sizeof(reply) + sizeof(body);
    if (passes) {
      const UniqueFd fd = Sealed(memory, seals);
      lane.PostWithDescriptor(arrival.slot, bytes, fd.get()).IgnoreError();
    } else {
      lane.Post(arrival.slot, bytes).IgnoreError();
    }
  }

  ShiftedClock clock;
  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5, 0, 3}, 1);
  const ChunkLayout layout{corpus.geometry, 5};
  // Written only between calls.
  MapReply body;
  std::vector<std::byte> memory;
  int seals = kSealed;
  bool passes = true, strange = false;
  absl::Status refusal;
  std::atomic<uint32_t> handle{0};
  std::unique_ptr<ScriptedFabric> fabric;
  std::unique_ptr<FakeHolder> holder;
  std::unique_ptr<Requester> requester;
  MapCall call;
};

TEST_F(MapTest, TheRowsAreThoseOfTheHolder) {
  Connect(FabricKind::kShm);
  auto mapped = requester->Map(call);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(handle, 1u);
  // The chunk owns its memory, wherever it is moved and whatever happens to the others.
  MappedChunk kept = *std::move(mapped);
  requester.reset();
  MappedChunk moved;
  moved = std::move(kept);
  EXPECT_EQ(moved.token_count(), 5u);
  for (uint32_t l = 0; l < corpus.geometry.layers; ++l) {
    ASSERT_EQ(moved.layer(l).size(), layout.bytes(l));
    EXPECT_EQ(
        std::memcmp(moved.layer(l).data(), corpus.chunks[0].layers[l].data(), layout.bytes(l)), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(moved.layer(l).data()) % 64, 0u);
  }
}

TEST_F(MapTest, OnlyOverShm) {
  Connect(FabricKind::kTcp);
  const absl::Status status = requester->Map(call).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("fetch its rows instead"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("over tcp"));
}

TEST_F(MapTest, RefusesMistakesOfTheCaller) {
  Connect(FabricKind::kShm);
  for (const uint32_t chunk : {1u, 3u}) {  // without tokens; beyond the corpus
    MapCall bad = call;
    bad.chunk = chunk;
    EXPECT_EQ(requester->Map(bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
  MapCall bad = call;
  bad.corpus = nullptr;
  EXPECT_EQ(requester->Map(bad).status().code(), absl::StatusCode::kInvalidArgument);
  bad = call;
  bad.deadline = Clock::Real()->Now();
  EXPECT_EQ(requester->Map(bad).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(MapTest, MemoryThatCouldChangeIsRefused) {
  Connect(FabricKind::kShm);
  for (const int bad : {0, F_SEAL_WRITE, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_WRITE,
                        F_SEAL_GROW | F_SEAL_WRITE}) {
    SCOPED_TRACE(bad);
    seals = bad;
    const absl::Status status = requester->Map(call).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("not sealed"));
    EXPECT_FALSE(requester->Holders()[0].connected);  // that lane is not used again
  }
  // Mapped writable by the holder before, and by no process since.
  seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
  EXPECT_TRUE(requester->Map(call).ok());
  // Not even memory.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  EXPECT_EQ(MapDescriptor(reading.get(), body.bytes, corpus.geometry, 5).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MapTest, AnotherSizeIsRefused) {
  Connect(FabricKind::kShm);
  const uint64_t good = body.bytes;
  for (const uint64_t bytes : {good - 64, good + 1, good + 64, UINT64_MAX}) {
    body.bytes = bytes;
    EXPECT_EQ(requester->Map(call).status().code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  body.bytes = good;
  EXPECT_TRUE(requester->Map(call).ok());
}

TEST_F(MapTest, ReportsTheHoldersRefusal) {
  Connect(FabricKind::kShm);
  refusal = absl::UnimplementedError("no maps here");
  EXPECT_EQ(requester->Map(call).status().code(), absl::StatusCode::kUnimplemented);
  refusal = absl::OkStatus();
  passes = false;
  EXPECT_THAT(requester->Map(call).status().ToString(), HasSubstr("no descriptor"));
  passes = strange = true;
  call.deadline = Soon(std::chrono::milliseconds(50));
  EXPECT_EQ(requester->Map(call).status().code(), absl::StatusCode::kDeadlineExceeded);
  strange = false;
  call.deadline = Soon();
  EXPECT_TRUE(requester->Map(call).ok());
  EXPECT_EQ(requester->Holders()[0].in_flight, 0u);
}

}  // namespace
}  // namespace ckv
