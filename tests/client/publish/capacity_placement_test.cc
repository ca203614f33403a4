// Goal: chunks are placed where there is space, as before if there is enough, and nowhere if not.
// Method: placements over made-up free capacities; then what a real holder reports.

#include "client/publish/capacity_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "client/publish/kept_parts.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Chunks of 64 tokens that are never read.
class PlannedSource final : public ChunkSource {
 public:
  explicit PlannedSource(uint32_t count) {
    geometry_ = test::TestGeometry();
    for (uint32_t i = 0; i < count; ++i) {
      PlannedChunk chunk;
      chunk.position = i * 64;
      chunk.token_count = 64;
      chunk.id.bytes[0] = static_cast<uint8_t>(i + 1);
      chunks_.push_back(chunk);
    }
  }
  std::span<const int32_t> TokensOf(uint32_t) const override { return {}; }
  absl::StatusOr<SourceChunk> Read(uint32_t) override { return absl::InternalError("not read"); }
  uint64_t chunk_bytes() const { return StoreBytesOf(geometry_, 64); }
};

std::vector<uint32_t> All(const ChunkSource& source) {
  std::vector<uint32_t> all(source.chunks().size());
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

TEST(PlaceInCapacity, KeepsThePlacementIfItFits) {
  const PlannedSource source(16);
  const std::vector<HolderId> holders = {{"h0"}, {"h1"}, {"h2"}};
  HolderCapacities capacities;
  for (const HolderId& holder : holders)
    capacities[holder.name] = {16 * source.chunk_bytes(), 0, {}};
  const auto placed = PlaceInCapacity(source, All(source), 0, holders, 2, capacities);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_EQ(*placed, *PlaceNewChunks(source, All(source), 0, holders, 2));
}

TEST(PlaceInCapacity, GivesNoHolderMoreThanItsFreeSpace) {
  std::mt19937 rng(7);
  int fitted = 0;
  for (int round = 0; round < 300; ++round) {
    const PlannedSource source(1 + rng() % 40);
    const size_t holder_count = 1 + rng() % 5;
    const auto replicas = static_cast<uint32_t>(1 + rng() % std::min<size_t>(holder_count, 3));
    std::vector<HolderId> holders;
    HolderCapacities capacities;
    for (size_t h = 0; h < holder_count; ++h) {
      holders.push_back({"h" + std::to_string(h)});
      HolderCapacity& capacity = capacities[holders.back().name];
      capacity.free_bytes = rng() % 30 * source.chunk_bytes() + rng() % 100;
      for (const PlannedChunk& chunk : source.chunks())
        if (rng() % 4 == 0) capacity.present.insert(chunk.id);
    }
    const size_t corpus_size = rng() % 9;
    const auto placed =
        PlaceInCapacity(source, All(source), corpus_size, holders, replicas, capacities);
    if (!placed.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(placed.status())) << placed.status();
      continue;
    }
    ++fitted;
    EXPECT_TRUE(FitsIn(source, *placed, capacities));
    for (const std::vector<HolderId>& on : *placed) {
      ASSERT_EQ(on.size(), replicas);
      for (size_t i = 1; i < on.size(); ++i) EXPECT_NE(on[i], on[0]);
    }
  }
  EXPECT_GT(fitted, 50);
}

// A holder that hangs reports no free space, and would stall a load.
TEST(PlaceInCapacity, PutsHoldersOfUnknownSpaceLast) {
  const PlannedSource source(8);
  const std::vector<HolderId> holders = {{"h0"}, {"h1"}, {"h2"}};
  HolderCapacities capacities;
  capacities["h0"] = {2 * source.chunk_bytes(), 24u << 20, {}};
  capacities["h1"] = {6 * source.chunk_bytes(), 24u << 20, {}};
  capacities["h2"];
  const auto placed = PlaceInCapacity(source, All(source), 0, holders, 1, capacities);
  ASSERT_TRUE(placed.ok()) << placed.status();
  for (const std::vector<HolderId>& on : *placed) EXPECT_NE(on[0], holders[2]);
  capacities["h1"].free_bytes = 5 * source.chunk_bytes();
  EXPECT_TRUE(PlaceInCapacity(source, All(source), 0, holders, 1, capacities).ok());
}

TEST(PlaceInCapacity, AnErrorNamesTheFreeSpaceOfEach) {
  const PlannedSource source(8);
  const std::vector<HolderId> holders = {{"h0"}, {"h1"}};
  HolderCapacities capacities;
  capacities["h0"] = {1u << 20, 24u << 20, {}};
  capacities["h1"] = {0, 24u << 20, {}};
  const absl::Status status =
      PlaceInCapacity(source, All(source), 0, holders, 2, capacities).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("h0 has room for 1.0 MiB of 24.0 MiB"),
                    HasSubstr("h1 has room for 0.0 MiB"), HasSubstr("--weights")));
}

// An interrupted load is not refused because of chunks that may be stored already.
TEST(PlaceInCapacity, ChunksThatMayBeThereAreNoError) {
  const PlannedSource source(8);
  const std::vector<HolderId> holders = {{"h0"}, {"h1"}};
  HolderCapacities capacities;
  capacities["h0"] = {0, 24u << 20, {}};
  capacities["h1"] = {0, 24u << 20, {}};
  EXPECT_FALSE(PlaceInCapacity(source, All(source), 0, holders, 1, capacities).ok());
  capacities["h1"].reports_present = false;
  const auto placed = PlaceInCapacity(source, All(source), 0, holders, 1, capacities);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_EQ(*placed, *PlaceNewChunks(source, All(source), 0, holders, 1));
}

class CapacityFleet : public test::ServicesTest {};

TEST_F(CapacityFleet, HoldersReportTheirFreeSpaceAndKeepWhatIsPlaced) {
  StartHolders(2);
  std::vector<Member> members;
  std::vector<HolderId> ids;
  for (size_t i = 0; i < 2; ++i) {
    Member member;
    member.id = {"h" + std::to_string(i)};
    member.control_address = holders_[i]->address();
    ids.push_back(member.id);
    members.push_back(member);
  }
  const test::TestCorpus corpus = test::MakeTestCorpus(test::TestGeometry(), {64, 64}, 3);
  const CapacityReader reader(members, Clock::Real(), test::Soon());
  HolderCapacities before, after;
  reader.Read(ids, before);
  ASSERT_EQ(before.size(), 2u);
  Load("docs", corpus);
  reader.Read(ids, after);
  reader.QueryPresent(after);
  for (size_t i = 0; i < 2; ++i) {
    const std::string name = ids[i].name;
    EXPECT_EQ(before[name].free_bytes - after[name].free_bytes, StoreBytesOf(corpus.geometry, 64));
    EXPECT_EQ(after[name].present.size(), 1u);
  }
  EXPECT_TRUE(AwaitKept(ids, members, *Clock::Real(), test::Soon()).ok());
  EXPECT_EQ(HoldersOf(corpus.Publish("docs", "", {{ids[0]}, {ids[1]}}).chunks), ids);
  members[1].control_address = "127.0.0.1:1";  // no one listens there
  const absl::Status late = AwaitKept(ids, members, *Clock::Real(), test::Soon());
  EXPECT_TRUE(absl::IsUnavailable(late));
  EXPECT_THAT(NotKeptWarning("docs", late), AllOf(HasSubstr("corpus docs"), HasSubstr("h1:")));
  // A holder that was not queried is not blamed.
  const absl::Status none = AwaitKept(ids, members, *Clock::Real(), Clock::Real()->Now());
  EXPECT_EQ(none.message(), "holders that were not queried in time: 2");
}

}  // namespace
}  // namespace ckv
