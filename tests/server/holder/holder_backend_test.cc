// Goal: a holder serves with a backend that reaches no memory but what was pinned for it, and pins
// exactly its chunks and the slots of its lanes, as long as they are there.
// Method: a holder over each fabric, and a backend that ends the process if an operation touches
// other memory of the host, or if anything is unpinned that was not pinned.

#include "gmock/gmock.h"
#include "server/holder/backend_memory.h"
#include "tests/server/holder/holder_fixture.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::DeferredBackend;
using test::RawAttend;
using testing::AllOf;
using testing::HasSubstr;

struct Device {
  DeferredBackend device_{DeferredBackend::ReachPinned(), "CUDA_SM90"};
};

// The device is a base, so that it outlives the holder and its lanes.
class HolderBackendTest : public Device, public test::HolderTest {
 protected:
  HolderBackendTest() { options_.backend = &device_; }

  bool EventuallyPins(size_t bytes) {
    return Eventually([&](const HolderStats&) { return device_.pinned_bytes() == bytes; });
  }
};

TEST_P(HolderBackendTest, AnswersAreRightFromPinnedMemory) {
  Put();
  const auto client = Open();
  const std::vector<uint32_t> handles = client->Resolve(corpus_);
  for (const uint8_t flags : {0, 1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "flags " << int{flags});
    ExpectRight(*client, Dense(handles, 9, flags % 3, flags));
    RawAttend selected = Dense({}, 6, 1, flags);
    for (const uint32_t handle : handles) {
      selected.pieces.push_back(
          {.handle = handle, .indices = std::vector<int32_t>{0, 3}, .k = 2, .group_rows = 6});
    }
    ExpectRight(*client, selected);
  }
  const absl::StatusOr<test::RawReply> reply = client->Call(Dense(handles, 1));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->header.kernel_target, KernelTargetId::kCudaSm90);
  EXPECT_GT(device_.attend_count(), 0u);
  EXPECT_GT(device_.merge_count(), 0u);
}

TEST_P(HolderBackendTest, PinsWhatThereIsAndNoLonger) {
  Put();
  const size_t chunks = holder_->store().memory().size();
  EXPECT_EQ(device_.pinned_bytes(), chunks);
  auto client = Open();
  const LaneShape shape = test::RawClient::Options().shape;
  const uint64_t slots =
      uint64_t{shape.slot_count} * (shape.request_bytes_max + shape.reply_bytes_max);
  EXPECT_GE(device_.pinned_bytes(), chunks + slots);
  client.reset();
  EXPECT_TRUE(EventuallyPins(chunks));
  holder_.reset();
  EXPECT_EQ(device_.pinned_bytes(), 0u);
}

TEST_P(HolderBackendTest, ALaneThatCannotBePinnedIsNotOpened) {
  Put();
  const size_t chunks = device_.pinned_bytes();
  device_.FailPins(true);
  const absl::Status refused =
      test::RawClient::Open(*holder_, *fabric_, corpus_.geometry, {}).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("open fewer or smaller lanes"),
                                        HasSubstr("no more pages are locked")));
  device_.FailPins(false);
  EXPECT_TRUE(EventuallyPins(chunks));
  const auto client = Open();
  ExpectRight(*client, Dense(client->Resolve(corpus_), 3));
}

TEST_P(HolderBackendTest, AStoreThatCannotBePinnedIsRefused) {
  holder_.reset();
  const auto refused_at = [&](int pins) {
    device_.OnPin([this, pins, count = 0]() mutable { device_.FailPins(count++ == pins); });
    return Holder::Start(options_).status();
  };
  absl::Status refused = refused_at(0);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr("pinning store.capacity, 64 MiB, for kernels of CUDA_SM90"),
                    HasSubstr("lower store.capacity, or let the process lock more memory"),
                    HasSubstr("no more pages are locked")));
  EXPECT_EQ(device_.pinned_bytes(), 0u);
  options_.store_path = test::TempPath("pinned_store");
  refused = refused_at(1);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.ToString(), HasSubstr("pinning the room for rows from disk, 4 MiB"));
  EXPECT_EQ(device_.pinned_bytes(), 0u);
}

// Memory is pinned by pages, whatever the capacity.
TEST_P(HolderBackendTest, ACapacityThatIsNotWholePagesIsPinned) {
  holder_.reset();
  options_.capacity_bytes = (size_t{3} << 20) + 64;
  StartHolder();
  EXPECT_EQ(device_.pinned_bytes(), (size_t{3} << 20) + 4096);
}

// Only what a holder does counts: it rotates and scatters nothing.
TEST(HolderMemoryTest, IsTheFirstThatAllItsOperationsReach) {
  const MemoryKinds device = {MemoryKind::kDevice};
  const MemoryKinds pinned = {MemoryKind::kPinned, MemoryKind::kDevice};
  EXPECT_EQ(HolderMemory(Backend::Cpu()->reach()), MemoryKind::kHost);
  EXPECT_EQ(HolderMemory(DeferredBackend::ReachPinned()), MemoryKind::kPinned);
  BackendReach some = DeferredBackend::ReachAll();
  some.parts = some.rotated_from = some.rotated_to = some.scattered_from = some.scattered_to =
      device;
  EXPECT_EQ(HolderMemory(some), MemoryKind::kHost);
  for (MemoryKinds BackendReach::*operand : {&BackendReach::queries, &BackendReach::rows,
                                             &BackendReach::partials, &BackendReach::merged}) {
    BackendReach reach = DeferredBackend::ReachAll();
    reach.*operand = pinned;
    EXPECT_EQ(HolderMemory(reach), MemoryKind::kPinned);
    reach.*operand = device;
    EXPECT_EQ(HolderMemory(reach), std::nullopt);
  }
}

INSTANTIATE_TEST_SUITE_P(Fabrics, HolderBackendTest,
                         testing::Values(FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp),
                         test::FabricOf);

}  // namespace
}  // namespace ckv
