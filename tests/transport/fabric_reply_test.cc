// Goal: a gathered reply is the head and the runs, byte for byte, whatever the fabric does with
// them, and none of the runs is read once gathering() is false.
// Method: the conformance suite's fabrics; runs of every number and of sizes around the boundaries,
// overwritten as soon as the fabric has released them. The reader starts late, so that on tcp a
// reply larger than the kernel's buffers is under way for a while. Then descriptors with replies,
// counted in /proc/self/fd.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/fabric_cases.h"
#include "tests/transport/files.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"

namespace ckv {
namespace {

using test::AllFabrics;
using test::AwaitDown;
using test::AwaitReply;
using test::AwaitRequest;
using test::CaseName;
using test::FillPattern;
using test::HasPattern;
using test::LanePair;
using test::Soon;

using Bytes = std::span<const std::byte>;

// Larger than what the kernel takes for a reader that does not read (4.2 MB over loopback).
constexpr uint32_t kOverfullReplyBytes = 8u << 20;

class FabricReplies : public test::FabricTest {
 protected:
  // Posts one request of a byte, and returns its arrival's slot.
  std::optional<uint32_t> Ask(LanePair& pair) {
    const std::optional<uint32_t> slot = pair.request->Acquire();
    if (!slot || !pair.request->Post(*slot, 1).ok()) return std::nullopt;
    const std::optional<Arrival> arrival = AwaitRequest(*pair.serve);
    if (!arrival) return std::nullopt;
    return arrival->slot;
  }
};

// Polls until the fabric has released the slot's runs.
void AwaitGathered(ServeLane& lane, uint32_t slot) {
  const Instant deadline = Soon();
  Arrival arrival;
  while (lane.gathering(slot)) {
    ASSERT_LT(Clock::Real()->Now(), deadline) << "the runs are never let go of";
    EXPECT_EQ(lane.Poll({&arrival, 1}), 0u);
  }
}

// `bytes` in pieces of random sizes, as many as `run_count`; some may be empty.
std::vector<size_t> Cut(size_t bytes, size_t run_count, std::mt19937& rng) {
  std::vector<size_t> at = {0, bytes};
  for (size_t i = 1; i < run_count; ++i) at.push_back(rng() % (bytes + 1));
  std::sort(at.begin(), at.end());
  std::vector<size_t> sizes;
  for (size_t i = 0; i + 1 < at.size(); ++i) sizes.push_back(at[i + 1] - at[i]);
  return sizes;
}

TEST_P(FabricReplies, GatherHeadAndRuns) {
  const LaneShape shape = {3, 64, 300'001};
  LanePair pair = Make(shape);
  ASSERT_TRUE(pair.request && pair.serve);
  std::mt19937 rng(3);
  uint64_t id = 0;
  for (size_t run_count = 0; run_count <= kGatherRunCountMax; ++run_count) {
    for (const uint32_t total : {0u, 1u, 64u, 4087u, 4088u, 4089u, 65'536u, 300'000u, 300'001u}) {
      SCOPED_TRACE(testing::Message() << run_count << " runs, " << total << " bytes");
      std::vector<std::byte> expected(total);
      FillPattern(++id, expected);
      const uint32_t head = run_count == 0 ? total : static_cast<uint32_t>(rng() % (total + 1));
      const std::optional<uint32_t> slot = Ask(pair);
      ASSERT_TRUE(slot.has_value());
      if (head > 0) std::memcpy(pair.serve->reply(*slot).data(), expected.data(), head);
      std::vector<std::vector<std::byte>> memory;
      std::vector<Bytes> runs;
      size_t at = head;
      for (const size_t size : Cut(total - head, run_count, rng)) {
        if (run_count == 0) break;
        const std::byte* from = expected.data() + at;
        memory.emplace_back(from, from + size);
        at += size;
      }
      for (const std::vector<std::byte>& run : memory) runs.emplace_back(run);
      ASSERT_TRUE(pair.serve->PostGather(*slot, head, runs, RegionType::kHost).ok());
      AwaitGathered(*pair.serve, *slot);
      for (std::vector<std::byte>& run : memory) std::fill(run.begin(), run.end(), std::byte{0xee});
      const std::optional<Completion> done = AwaitReply(*pair.request);
      ASSERT_TRUE(done.has_value()) << pair.request->status();
      ASSERT_EQ(done->bytes, total);
      EXPECT_TRUE(HasPattern(id, pair.request->reply(done->slot).first(total)));
      pair.request->Release(done->slot);
    }
  }
}

// Every slot's reply is larger than its share of the kernel's buffers. All are posted at once, in
// runs of one memory that is overwritten slot by slot as it is released.
TEST_P(FabricReplies, GatheredMemoryIsFreeAfterwards) {
  const LaneShape shape = {4, 64, kOverfullReplyBytes};
  LanePair pair = Make(shape);
  ASSERT_TRUE(pair.request && pair.serve);
  std::vector<std::vector<std::byte>> memory(shape.slot_count);
  for (uint32_t i = 0; i < shape.slot_count; ++i) {
    ASSERT_TRUE(Ask(pair).has_value());
    memory[i].resize(kOverfullReplyBytes - 64);
    // Filled before the first post: with a sanitizer that takes longer than the lane tolerates a
    // reader that does not read.
    FillPattern(i + 1, memory[i]);
    FillPattern(i, pair.serve->reply(i).first(64));
  }
  std::atomic<bool> posted{false};
  std::thread reader([&] {
    posted.wait(false);
    for (uint32_t i = 0; i < shape.slot_count; ++i) {
      const std::optional<Completion> done = AwaitReply(*pair.request);
      ASSERT_TRUE(done.has_value()) << pair.request->status();
      ASSERT_EQ(done->bytes, kOverfullReplyBytes);
      const auto reply = pair.request->reply(done->slot);
      EXPECT_TRUE(HasPattern(done->slot, reply.first(64)));
      EXPECT_TRUE(HasPattern(done->slot + 1, reply.subspan(64)));
    }
  });
  for (uint32_t slot = 0; slot < shape.slot_count; ++slot) {
    std::vector<Bytes> runs;
    for (size_t at = 0; at < memory[slot].size(); at += 2'000'003) {
      runs.push_back(Bytes(memory[slot])
                         .subspan(at)
                         .first(std::min<size_t>(2'000'003, memory[slot].size() - at)));
    }
    EXPECT_TRUE(pair.serve->PostGather(slot, 64, runs, RegionType::kHost).ok());
  }
  posted = true;
  posted.notify_one();
  for (uint32_t slot = 0; slot < shape.slot_count; ++slot) {
    AwaitGathered(*pair.serve, slot);
    std::fill(memory[slot].begin(), memory[slot].end(), std::byte{0xee});
  }
  reader.join();
}

// No fabric here reads a device's memory. The lane reports that before it touches the memory, and
// the slot can still be answered from a copy.
TEST_P(FabricReplies, MemoryOfADeviceIsRefused) {
  LanePair pair = Make({2, 64, 4096});
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = Ask(pair);
  ASSERT_TRUE(slot.has_value());
  // NOLINTNEXTLINE(performance-no-int-to-ptr): not mapped
  const Bytes run(reinterpret_cast<const std::byte*>(uintptr_t{4096}), 1000);
  const absl::Status refused = pair.serve->PostGather(*slot, 64, {&run, 1}, RegionType::kDmabuf);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented) << refused;
  EXPECT_FALSE(pair.serve->gathering(*slot));
  FillPattern(3, pair.serve->reply(*slot).first(1064));
  ASSERT_TRUE(pair.serve->Post(*slot, 1064).ok());
  const std::optional<Completion> completion = AwaitReply(*pair.request);
  ASSERT_TRUE(completion.has_value()) << pair.request->status();
  EXPECT_EQ(completion->bytes, 1064u);
  EXPECT_TRUE(HasPattern(3, pair.request->reply(completion->slot).first(1064)));
}

// Page-locked memory is memory of this process.
TEST_P(FabricReplies, PinnedMemoryIsSent) {
  LanePair pair = Make({2, 64, 4096});
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = Ask(pair);
  ASSERT_TRUE(slot.has_value());
  std::vector<std::byte> memory(1000);
  FillPattern(9, memory);
  const Bytes run = memory;
  ASSERT_TRUE(pair.serve->PostGather(*slot, 0, {&run, 1}, RegionType::kPinned).ok());
  const std::optional<Completion> completion = AwaitReply(*pair.request);
  ASSERT_TRUE(completion.has_value()) << pair.request->status();
  EXPECT_TRUE(HasPattern(9, pair.request->reply(completion->slot).first(completion->bytes)));
}

// The lane dies with a reply half sent; the runs die right after it.
TEST_P(FabricReplies, LaneDestroyedWhileGathering) {
  LanePair pair = Make({1, 64, kOverfullReplyBytes});
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = Ask(pair);
  ASSERT_TRUE(slot.has_value());
  {
    std::vector<std::byte> memory(kOverfullReplyBytes);
    const Bytes run = memory;
    ASSERT_TRUE(pair.serve->PostGather(*slot, 0, {&run, 1}, RegionType::kHost).ok());
    pair.serve.reset();
  }
  EXPECT_EQ(AwaitDown(*pair.request).code(), absl::StatusCode::kUnavailable);
}

// The peer dies with a reply half received: the runs are the caller's again.
TEST_P(FabricReplies, PeerGoneWhileGathering) {
  LanePair pair = Make({2, 64, kOverfullReplyBytes});
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = Ask(pair);
  const std::optional<uint32_t> other = Ask(pair);
  ASSERT_TRUE(slot && other);
  std::vector<std::byte> memory(kOverfullReplyBytes);
  const Bytes run = memory;
  ASSERT_TRUE(pair.serve->PostGather(*slot, 0, {&run, 1}, RegionType::kHost).ok());
  pair.request.reset();
  EXPECT_EQ(AwaitDown(*pair.serve).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(pair.serve->gathering(*slot));
  EXPECT_EQ(pair.serve->PostGather(*other, 0, {&run, 1}, RegionType::kHost).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(pair.serve->gathering(*other));
}

// Replies of both sorts in turn, several slots under way, random sizes.
TEST_P(FabricReplies, GatheredAndPlainInTurn) {
  constexpr int kMessageCount = 3000;
  const LaneShape shape = {8, 64, 40'000};
  LanePair pair = Make(shape);
  ASSERT_TRUE(pair.request && pair.serve);
  std::vector<std::byte> memory(shape.reply_bytes_max);
  FillPattern(1, memory);
  std::thread holder([&] {
    std::mt19937 rng(17);
    while (const std::optional<Arrival> arrival = AwaitRequest(*pair.serve)) {
      const size_t bytes = rng() % (memory.size() + 1);
      const size_t head = rng() % 3 == 0 ? bytes : rng() % (bytes + 1);
      std::memcpy(pair.serve->reply(arrival->slot).data(), memory.data(), head);
      std::vector<Bytes> runs;
      size_t at = head;
      for (const size_t size : Cut(bytes - head, 1 + rng() % kGatherRunCountMax, rng)) {
        runs.push_back(Bytes(memory).subspan(at, size));
        at += size;
      }
      const absl::Status posted =
          head == bytes ? pair.serve->Post(arrival->slot, static_cast<uint32_t>(bytes))
                        : pair.serve->PostGather(arrival->slot, static_cast<uint32_t>(head), runs,
                                                 RegionType::kHost);
      EXPECT_TRUE(posted.ok()) << posted;
    }
  });
  int posted = 0;
  for (int done = 0; done < kMessageCount; ++done) {
    while (posted < kMessageCount) {
      const std::optional<uint32_t> slot = pair.request->Acquire();
      if (!slot) break;
      ASSERT_TRUE(pair.request->Post(*slot, 1).ok());
      ++posted;
    }
    const std::optional<Completion> reply = AwaitReply(*pair.request);
    ASSERT_TRUE(reply.has_value()) << pair.request->status();
    EXPECT_EQ(std::memcmp(pair.request->reply(reply->slot).data(), memory.data(), reply->bytes), 0);
    pair.request->Release(reply->slot);
  }
  pair.request.reset();
  holder.join();
}

class FabricReplyDeathTest : public FabricReplies {};

TEST_P(FabricReplyDeathTest, MisuseEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  const std::optional<uint32_t> slot = Ask(pair);
  ASSERT_TRUE(slot.has_value());
  const std::vector<std::byte> memory(test::kSmallShape.reply_bytes_max);
  const std::vector<Bytes> many(kGatherRunCountMax + 1, Bytes(memory).first(1));
  const Bytes all = memory;
  EXPECT_DEATH((void)pair.serve->PostGather(*slot, 0, many, RegionType::kHost), "CKV_CHECK");
  EXPECT_DEATH((void)pair.serve->PostGather(*slot, 1, {&all, 1}, RegionType::kHost),
               "CKV_CHECK");  // one too many
  EXPECT_DEATH((void)pair.serve->PostGather(*slot ^ 1, 0, {&all, 1}, RegionType::kHost),
               "CKV_CHECK");  // not arrived
}

class FabricDescriptors : public FabricReplies {
 protected:
  bool passes() const { return GetParam().kind != FabricKind::kTcp; }

  // Answers the slot with a file of `text`; the holder's own descriptor is closed at once.
  absl::Status PostFile(LanePair& pair, uint32_t slot, const std::string& text) {
    const UniqueFd file = test::FileOf(text);
    return pair.serve->PostWithDescriptor(slot, 1, file.get());
  }
};

TEST_P(FabricDescriptors, ArriveWithTheReply) {
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  const size_t open_before = test::OpenFdCount();
  for (const char* text : {"one", "two"}) {
    const std::optional<uint32_t> slot = Ask(pair);
    ASSERT_TRUE(slot.has_value());
    const absl::Status posted = PostFile(pair, *slot, text);
    if (!passes()) {
      EXPECT_EQ(posted.code(), absl::StatusCode::kUnimplemented);
      ASSERT_TRUE(pair.serve->Post(*slot, 1).ok());  // it is still the holder's
    } else {
      ASSERT_TRUE(posted.ok()) << posted;
    }
    const std::optional<Completion> done = AwaitReply(*pair.request);
    ASSERT_TRUE(done.has_value()) << pair.request->status();
    EXPECT_EQ(done->bytes, 1u);
    const absl::StatusOr<UniqueFd> file = pair.request->TakeDescriptor(done->slot);
    if (passes()) {
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_EQ(test::TextOf(file->get()), text);
      EXPECT_EQ(pair.request->TakeDescriptor(done->slot).status().code(),
                absl::StatusCode::kNotFound);  // taken already
    } else {
      EXPECT_EQ(file.status().code(), absl::StatusCode::kUnimplemented);
    }
    pair.request->Release(done->slot);
  }
  EXPECT_EQ(test::OpenFdCount(), open_before);
}

// All slots under way, answered in another order, every second reply with a descriptor, half of
// them not taken: each belongs to its own reply, and none leaks.
TEST_P(FabricDescriptors, BelongToTheirOwnReply) {
  if (!passes()) return;
  const LaneShape shape = {kSlotCountMax, 64, 64};
  LanePair pair = Make(shape);
  ASSERT_TRUE(pair.request && pair.serve);
  const size_t open_before = test::OpenFdCount();
  std::mt19937 rng(23);
  for (int round = 0; round < 4; ++round) {
    std::vector<uint32_t> slots;
    for (uint32_t i = 0; i < shape.slot_count; ++i) {
      const std::optional<uint32_t> slot = Ask(pair);
      ASSERT_TRUE(slot.has_value());
      slots.push_back(*slot);
    }
    std::shuffle(slots.begin(), slots.end(), rng);
    for (const uint32_t slot : slots) {
      const absl::Status posted = slot % 2 == 0 ? PostFile(pair, slot, std::to_string(slot + round))
                                                : pair.serve->Post(slot, 1);
      ASSERT_TRUE(posted.ok()) << posted;
    }
    for (uint32_t i = 0; i < shape.slot_count; ++i) {
      const std::optional<Completion> done = AwaitReply(*pair.request);
      ASSERT_TRUE(done.has_value()) << pair.request->status();
      if (done->slot % 4 != 0) {
        const absl::StatusOr<UniqueFd> file = pair.request->TakeDescriptor(done->slot);
        ASSERT_EQ(file.ok(), done->slot % 2 == 0) << file.status();
        if (file.ok()) {
          EXPECT_EQ(test::TextOf(file->get()), std::to_string(done->slot + round));
        }
      }
      pair.request->Release(done->slot);
    }
    EXPECT_EQ(test::OpenFdCount(), open_before);
  }
}

TEST_P(FabricDescriptors, CloseWithAbandonedReplies) {
  if (!passes()) return;
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  const size_t open_before = test::OpenFdCount();
  const std::optional<uint32_t> lost = Ask(pair);
  const std::optional<uint32_t> kept = Ask(pair);
  ASSERT_TRUE(lost && kept);
  pair.request->Abandon(*lost);
  ASSERT_TRUE(PostFile(pair, *lost, "lost").ok());
  ASSERT_TRUE(PostFile(pair, *kept, "kept").ok());
  const std::optional<Completion> done = AwaitReply(*pair.request);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->slot, *kept);
  {
    const absl::StatusOr<UniqueFd> file = pair.request->TakeDescriptor(*kept);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(test::TextOf(file->get()), "kept");
  }
  EXPECT_EQ(test::OpenFdCount(), open_before);
}

// Descriptors that are completed and not taken, seen and not completed, or still in the socket: all
// are closed with the lane.
TEST_P(FabricDescriptors, CloseWithTheLane) {
  if (!passes()) return;
  const size_t open_before = test::OpenFdCount();
  LanePair pair = Make();
  ASSERT_TRUE(pair.request && pair.serve);
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < test::kSmallShape.slot_count; ++i) slots.push_back(*Ask(pair));
  ASSERT_TRUE(PostFile(pair, slots[0], "done").ok());
  ASSERT_TRUE(AwaitReply(*pair.request).has_value());
  ASSERT_TRUE(PostFile(pair, slots[1], "drained").ok());
  pair.request->Disarm();  // looks at the socket
  ASSERT_TRUE(PostFile(pair, slots[2], "in the socket").ok());
  pair.request.reset();
  EXPECT_EQ(PostFile(pair, slots[3], "late").code(), absl::StatusCode::kUnavailable);
  pair.serve.reset();
  EXPECT_EQ(test::OpenFdCount(), open_before);
}

INSTANTIATE_TEST_SUITE_P(All, FabricDescriptors, AllFabrics(), CaseName);
INSTANTIATE_TEST_SUITE_P(All, FabricReplies, AllFabrics(), CaseName);
INSTANTIATE_TEST_SUITE_P(All, FabricReplyDeathTest, AllFabrics(), CaseName);

}  // namespace
}  // namespace ckv
