#include "store/corpus/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "proto/corpus.h"

namespace ckv {
namespace {

std::vector<HolderId> Holders(size_t count) {
  std::vector<HolderId> holders;
  for (size_t i = 0; i < count; ++i) holders.push_back({"h" + std::to_string(i)});
  return holders;
}

// Goal: what the header guarantees, for all small shapes.
TEST(PlaceChunks, IsBalancedAndDistinct) {
  for (size_t count = 1; count <= 9; ++count) {
    const std::vector<HolderId> holders = Holders(count);
    for (uint32_t replicas = 1; replicas <= std::min<size_t>(count, kReplicaCountMax); ++replicas) {
      for (size_t chunks = 0; chunks <= 100; ++chunks) {
        SCOPED_TRACE(testing::Message()
                     << chunks << " chunks, " << count << " holders, " << replicas << " replicas");
        const auto placement = PlaceChunks(chunks, holders, replicas);
        ASSERT_TRUE(placement.ok()) << placement.status();
        ASSERT_EQ(placement->size(), chunks);
        std::vector<std::map<HolderId, size_t>> by_rank(replicas);
        for (size_t i = 0; i < chunks; ++i) {
          const auto& chosen = (*placement)[i];
          ASSERT_EQ(chosen.size(), replicas);
          EXPECT_EQ(std::set<HolderId>(chosen.begin(), chosen.end()).size(), replicas);
          for (uint32_t rank = 0; rank < replicas; ++rank) by_rank[rank][chosen[rank]] += 1;
        }
        const size_t share = (chunks + count - 1) / count;
        for (const HolderId& holder : holders)
          EXPECT_LE(by_rank[0][holder], share + share / 8) << holder.name;
        for (auto& counts : by_rank) {
          size_t least = SIZE_MAX, most = 0;
          for (const HolderId& holder : holders) {
            least = std::min(least, counts[holder]);
            most = std::max(most, counts[holder]);
          }
          EXPECT_LE(most - least, share + share / 8);
        }
        const std::set<std::vector<HolderId>> lists(placement->begin(), placement->end());
        EXPECT_LE(lists.size(), count * kPlacementListsPerHolder);
      }
    }
  }
}

TEST(PlaceChunks, IsAFunctionOfItsArguments) {
  EXPECT_EQ(*PlaceChunks(100, Holders(7), 3), *PlaceChunks(100, Holders(7), 3));
}

TEST(PlaceChunks, KeepsAlignedRunsTogether) {
  // 64 chunks on 4 holders: a run of 16 each.
  const auto even = *PlaceChunks(64, Holders(4), 1);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(even[i], even[i / 16 * 16]) << i;
  // A long corpus: five runs of 512 each.
  const auto large = *PlaceChunks(10'000, Holders(4), 2);
  for (size_t i = 0; i < large.size(); ++i) ASSERT_EQ(large[i], large[i / 512 * 512]) << i;
  EXPECT_NE(large[511], large[512]);
  // One holder has one run.
  const auto alone = *PlaceChunks(1000, Holders(1), 1);
  EXPECT_EQ(alone[0], alone[999]);
  // A short one: no holder is without work.
  const auto few = *PlaceChunks(6, Holders(2), 1);
  EXPECT_EQ(std::count(few.begin(), few.end(), std::vector<HolderId>{{"h0"}}), 3);
}

// No holder has more runs than partials that a reply can carry well.
TEST(PlaceChunks, RunsAreFew) {
  for (size_t count = 1; count <= 9; ++count) {
    for (size_t chunks = 1; chunks <= 3000; chunks += 1 + chunks / 40) {
      const auto placement = *PlaceChunks(chunks, Holders(count), 1);
      std::map<HolderId, uint32_t> runs;
      for (size_t i = 0; i < chunks; ++i)
        runs[placement[i][0]] += i == 0 || placement[i] != placement[i - 1] ? 1 : 0;
      for (const auto& [holder, runs_there] : runs)
        EXPECT_LE(runs_there, 16u) << chunks << " chunks on " << count;
    }
  }
}

// With 5 holders and several rounds of runs, two others are second to holder 0.
TEST(PlaceChunks, ADeadHoldersChunksAreSharedByTwo) {
  const auto placement = *PlaceChunks(1000, Holders(5), 2);
  std::map<HolderId, uint32_t> second;
  for (const auto& chosen : placement) {
    if (chosen[0].name == "h0") second[chosen[1]] += 1;
  }
  EXPECT_EQ(second.size(), 2u);
}

// Six holders on hosts a, a, a, a, b, c: two copies are never on one host.
TEST(PlaceChunks, CopiesAreInDifferentDomains) {
  const std::vector<HolderId> holders = Holders(6);
  const std::vector<std::string> hosts = {"a", "a", "a", "a", "b", "c"};
  for (const int level : {0, 1, 2}) {
    std::vector<FailureDomain> domains;
    for (size_t i = 0; i < hosts.size(); ++i) {
      domains.push_back({.host = level == 0 ? hosts[i] : holders[i].name,
                         .rack = level == 1 ? hosts[i] : "",
                         .zone = level == 2 ? hosts[i] : ""});
    }
    for (const uint32_t replicas : {2u, 3u}) {
      const auto placement = *PlaceChunks(300, holders, replicas, domains);
      for (const std::vector<HolderId>& chosen : placement) {
        std::set<std::string> used;
        for (const HolderId& holder : chosen) used.insert(hosts[holder.name[1] - '0']);
        EXPECT_EQ(used.size(), replicas) << "level " << level;
      }
    }
    // A fourth copy has to share a host.
    EXPECT_EQ((*PlaceChunks(1, holders, 4, domains))[0].size(), 4u);
  }
  EXPECT_EQ(PlaceChunks(1, holders, 2, std::vector<FailureDomain>(5)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Domains that all differ change nothing.
TEST(PlaceChunks, DomainsThatDifferKeepTheRotation) {
  const std::vector<HolderId> holders = Holders(5);
  std::vector<FailureDomain> domains;
  for (const HolderId& holder : holders) domains.push_back({.host = holder.name});
  EXPECT_EQ(*PlaceChunks(1000, holders, 3, domains), *PlaceChunks(1000, holders, 3));
}

TEST(PlaceChunks, Refusals) {
  const auto code = [](size_t chunks, const std::vector<HolderId>& holders, uint32_t replicas) {
    return PlaceChunks(chunks, holders, replicas).status().code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code(1, Holders(2), 3), kInvalid);
  EXPECT_EQ(code(1, Holders(0), 1), kInvalid);
  EXPECT_EQ(code(1, Holders(2), 0), kInvalid);
  EXPECT_EQ(code(1, Holders(20), kReplicaCountMax + 1), kInvalid);
  EXPECT_EQ(code(1, {{"a"}, {"a"}}, 1), kInvalid);
  EXPECT_EQ(code(1, {{"a"}, {""}}, 1), kInvalid);
  EXPECT_EQ(code(kCorpusChunkCountMax + 1, Holders(2), 1), kInvalid);
}

}  // namespace
}  // namespace ckv
