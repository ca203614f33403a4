// Goal: tiers, bandwidths and paths of NetKV's fat tree; an error names what is no tree.

#include "client/simulate/fabric_tree.h"

#include <array>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ckv {
namespace {

FabricTree NetkvTree() { return FabricTree::Create(SpecOf(FatTree())).value(); }

std::string ErrorOf(const FabricSpec& spec) {
  return std::string(FabricTree::Create(spec).status().message());
}

TEST(FabricTree, HasTheTiersOfTheSource) {
  const FabricTree tree = NetkvTree();
  ASSERT_EQ(tree.server_count(), 8u);
  const struct {
    uint32_t server, tier;
    double gbps;
  } expected[] = {{0, 0, 3600}, {1, 1, 100}, {2, 2, 50}, {3, 2, 50}, {4, 3, 25}, {7, 3, 25}};
  for (const auto& one : expected) {
    EXPECT_EQ(tree.Tier(0, one.server), one.tier) << one.server;
    EXPECT_DOUBLE_EQ(tree.Bandwidth(0, one.server), one.gbps * 1e9 / 8) << one.server;
  }
  EXPECT_EQ(tree.LatencyUs(3), 15);
  EXPECT_EQ(tree.GroupOf(0, 1), tree.GroupOf(1, 1));
  EXPECT_NE(tree.GroupOf(1, 1), tree.GroupOf(2, 1));
}

// A single flow on an idle path has its tier's bandwidth, and N on one link a share of 1/N
// (section VI-B).
TEST(FabricTree, AFlowHasTheBandwidthOfItsTier) {
  const FabricTree tree = NetkvTree();
  SimRandom random(1);
  std::array<FlowNetwork::LinkId, FlowNetwork::kPathLinksMax> path{};
  for (uint32_t to = 0; to < tree.server_count(); ++to) {
    FlowNetwork network;
    tree.AddTo(network);
    const size_t count = tree.Path(0, 0, to, 1, random, path);
    EXPECT_EQ(count, tree.Tier(0, to) == 0 ? 1 : 2 * tree.Tier(0, to));
    const auto links = std::span(path).first(count);
    const auto flow = network.Start(0, 1e9, links);
    EXPECT_DOUBLE_EQ(network.RateOf(flow), tree.Bandwidth(0, to)) << to;
    network.Start(0, 1e9, links);
    EXPECT_DOUBLE_EQ(network.RateOf(flow), tree.Bandwidth(0, to) / 2) << to;
  }
}

TEST(FabricTree, EcmpUsesAllUplinksAndNicsAreFixed) {
  const FabricTree tree = NetkvTree();
  SimRandom random(2);
  std::array<FlowNetwork::LinkId, FlowNetwork::kPathLinksMax> path{};
  std::set<FlowNetwork::LinkId> nics, uplinks;
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(tree.Path(0, 1, 7, 0, random, path), 6u);
    nics.insert(path[0]);
    uplinks.insert(path[2]);
  }
  EXPECT_EQ(nics.size(), 1u);
  EXPECT_EQ(uplinks.size(), 64u);
}

TEST(FabricTree, BackgroundTakesItsShareOfALevel) {
  const FabricTree tree = NetkvTree();
  FlowNetwork network;
  tree.AddTo(network);
  std::vector<FlowNetwork::LinkCapacity> capacities;
  tree.AppendCapacities(3, 0.6, capacities);
  EXPECT_EQ(capacities.size(), 2u * 2 * 128);
  network.SetCapacities(0, capacities);
  SimRandom random(3);
  std::array<FlowNetwork::LinkId, FlowNetwork::kPathLinksMax> path{};
  const size_t count = tree.Path(0, 0, 7, 0, random, path);
  const auto flow = network.Start(0, 1, std::span(path).first(count));
  EXPECT_DOUBLE_EQ(network.RateOf(flow), 0.6 * 3.125e9);
}

TEST(FabricTree, RefusesWhatIsNoTree) {
  const FabricSpec good = SpecOf(FatTree());
  FabricSpec bad = good;
  bad.links.erase(bad.links.begin() + 7);  // that of the second pod
  ASSERT_EQ(good.links[7].from, "pod1");
  EXPECT_EQ(ErrorOf(bad),
            "servers[4]: pod1.rack0.server0 is not connected to pod0.rack0.server0: its links end "
            "at pod1, not core");
  bad = good;
  bad.links[1].to = "core";
  EXPECT_NE(ErrorOf(bad).find("servers[2]: pod0.rack1.server0 has 3 links up"), std::string::npos)
      << ErrorOf(bad);
  bad = good;
  bad.links.push_back({"core", "pod0.rack0", 1, 1});
  EXPECT_EQ(ErrorOf(bad), "links[14]: closes a circle");
  bad = good;
  bad.links.push_back({"pod0", "other", 1, 1});
  EXPECT_EQ(ErrorOf(bad), "links[14]: pod0 already has a link up, to core; give its count instead");
  bad = good;
  bad.links[3].bytes_per_s = 0;
  EXPECT_EQ(ErrorOf(bad), "links[3]: Gbps: not above 0");
  bad = good;
  bad.links[3].count = 0;
  EXPECT_NE(ErrorOf(bad).find("links[3]: count"), std::string::npos);
  bad = good;
  bad.servers[5] = bad.servers[0];
  EXPECT_NE(ErrorOf(bad).find("servers[5]"), std::string::npos);
  bad = good;
  bad.tier_latency_us.pop_back();
  EXPECT_NE(ErrorOf(bad).find("tier_latency_us: 3 values"), std::string::npos);
}

}  // namespace
}  // namespace ckv
