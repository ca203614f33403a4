// Goal: flows get their max-min fair rates, at once after every change, and end when their bytes
// have arrived.

#include "client/simulate/flow_network.h"

#include <algorithm>
#include <vector>

#include "client/simulate/random.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using Path = std::vector<FlowNetwork::LinkId>;

TEST(FlowNetwork, OneFlowHasTheNarrowestLinkOfItsPath) {
  FlowNetwork network;
  const auto wide = network.AddLink(100), narrow = network.AddLink(25);
  const auto flow = network.Start(1, 50, Path{wide, narrow});
  EXPECT_EQ(network.RateOf(flow), 25);
  ASSERT_TRUE(network.NextEnd());
  EXPECT_DOUBLE_EQ(network.NextEnd()->at_s, 3);
}

TEST(FlowNetwork, FlowsOnOneLinkShareItAndTheRestGetsWhatEndedFlowsLeave) {
  FlowNetwork network;
  const auto link = network.AddLink(100);
  const auto a = network.Start(0, 100, Path{link}), b = network.Start(0, 300, Path{link});
  EXPECT_EQ(network.RateOf(a), 50);
  EXPECT_EQ(network.NextEnd()->flow, a);
  EXPECT_DOUBLE_EQ(network.NextEnd()->at_s, 2);
  network.End(2, a);
  EXPECT_EQ(network.RateOf(b), 100);
  EXPECT_DOUBLE_EQ(network.NextEnd()->at_s, 4);  // 200 bytes were left
  network.SetCapacities(3, std::vector<FlowNetwork::LinkCapacity>{{link, 10}});
  EXPECT_DOUBLE_EQ(network.NextEnd()->at_s, 13);
  network.End(13, b);
  EXPECT_FALSE(network.NextEnd());
  EXPECT_EQ(network.BytesOf(link), 400);
}

// The example of Bertsekas and Gallager: a long flow is limited on one link, and its share of the
// other link is left to the flow there.
TEST(FlowNetwork, TheRestOfALimitedFlowIsShared) {
  FlowNetwork network;
  const auto first = network.AddLink(10), second = network.AddLink(100);
  const auto both = network.Start(0, 1e3, Path{first, second});
  const auto one = network.Start(0, 1e3, Path{first});
  const auto other = network.Start(0, 1e3, Path{second});
  EXPECT_EQ(network.RateOf(both), 5);
  EXPECT_EQ(network.RateOf(one), 5);
  EXPECT_EQ(network.RateOf(other), 95);
}

// Max-min fairness itself: each flow has a link that is full, on which no flow has more.
TEST(FlowNetwork, EveryFlowHasABottleneck) {
  SimRandom random(7);
  FlowNetwork network;
  constexpr size_t kLinks = 20;
  std::vector<double> capacities;
  for (size_t i = 0; i < kLinks; ++i) {
    capacities.push_back(1 + 9 * random.Share());
    network.AddLink(capacities.back());
  }
  std::vector<FlowNetwork::FlowId> flows;
  std::vector<Path> paths;
  for (int step = 0; step < 400; ++step) {
    if (flows.size() > 30 && random.Share() < 0.5) {
      const size_t at = random.Below(static_cast<uint32_t>(flows.size()));
      network.End(step * 1e-6, flows[at]);
      flows.erase(flows.begin() + static_cast<ptrdiff_t>(at));
      paths.erase(paths.begin() + static_cast<ptrdiff_t>(at));
    } else {
      Path path;
      while (path.size() < 4) {
        const auto link = random.Below(kLinks);
        if (std::find(path.begin(), path.end(), link) == path.end()) path.push_back(link);
      }
      flows.push_back(network.Start(step * 1e-6, 1e6, path));
      paths.push_back(path);
    }
    std::vector<double> sum(kLinks), largest(kLinks);
    for (size_t i = 0; i < flows.size(); ++i) {
      for (const auto link : paths[i]) {
        sum[link] += network.RateOf(flows[i]);
        largest[link] = std::max(largest[link], network.RateOf(flows[i]));
      }
    }
    for (size_t i = 0; i < flows.size(); ++i) {
      const double rate = network.RateOf(flows[i]);
      EXPECT_TRUE(std::any_of(paths[i].begin(), paths[i].end(),
                              [&](auto link) {
                                return sum[link] > capacities[link] * (1 - 1e-9) &&
                                       rate > largest[link] * (1 - 1e-9);
                              }))
          << "step " << step << ", flow " << i;
    }
    for (size_t link = 0; link < kLinks; ++link)
      EXPECT_LT(sum[link], capacities[link] * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace ckv
