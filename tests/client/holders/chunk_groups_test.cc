// Goal: chunks are grouped by all of their members, holders and leased ones; chunks without tokens
// are in no group. Method: a corpus made by hand.

#include "client/holders/chunk_groups.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

ChunkPlacement Chunk(uint8_t id, uint32_t tokens, std::vector<HolderId> holders,
                     std::vector<HolderId> leased = {}) {
  ChunkPlacement chunk;
  chunk.id.bytes[0] = id;
  chunk.token_count = tokens;
  chunk.set_holders(std::move(holders));
  chunk.set_leased(std::move(leased));
  return chunk;
}

TEST(ChunkGroups, HaveTheSameMembers) {
  const auto corpus = std::make_shared<Corpus>();
  corpus->chunks = {Chunk(1, 10, {{"a"}}),          Chunk(2, 10, {{"a"}, {"b"}}),
                    Chunk(3, 0, {{"c"}}),           Chunk(4, 10, {{"a"}}),
                    Chunk(5, 10, {{"a"}}, {{"b"}}), Chunk(6, 10, {{"c"}}, {{"a"}})};
  test::TestFleet fleet({});
  DirectoryView view(&fleet);
  PeerTable peers(&view, &fleet);
  const auto groups = ChunkGroups::Make(corpus, peers);
  ASSERT_TRUE(groups.ok()) << groups.status();
  const ChunkGroups& of = **groups;
  ASSERT_EQ(of.group_count(), 3u);
  EXPECT_EQ(of.Of(0), of.Of(3));
  EXPECT_EQ(of.Of(1), of.Of(4)) << "a leased member answers like a holder";
  EXPECT_NE(of.Of(0), of.Of(1));
  EXPECT_EQ(of.Of(2), ChunkGroups::kNoGroup);
  ASSERT_EQ(of.PeersOf(of.Of(5)).size(), 2u);
  EXPECT_EQ(of.PeersOf(of.Of(5))[0]->id().name, "c");
  EXPECT_EQ(of.PeersOf(of.Of(5))[1]->id().name, "a");
}

}  // namespace
}  // namespace ckv
