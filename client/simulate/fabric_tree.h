// The network of a cluster as a tree: servers under racks, racks under pods, pods under a core.
//
// A link of the tree is a bundle of equal physical links, each with its capacity in both
// directions. A flow uses one of them at each level, chosen at random when it starts (ECMP). So two
// flows can collide on one link while others of the bundle are idle.
//
// The tier of two servers is the number of levels up to the group that has both. Tier 0 is the same
// server, 1 the same rack, 2 the same pod, 3 across pods. Source: arXiv:2606.03910 sections III-A
// and VI-B.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/simulate/flow_network.h"
#include "client/simulate/random.h"

namespace ckv {

// From a server or group to the group above it.
struct FabricLink {
  std::string from, to;
  double bytes_per_s = 0;  // each physical link has it, in each direction
  uint32_t count = 1;      // physical links
};

struct FabricSpec {
  std::vector<std::string> servers;
  double server_bytes_per_s = 0;  // within a server
  std::vector<FabricLink> links;
  // One way, by tier. There are as many as tiers.
  std::vector<double> tier_latency_us;
};

// A fat tree of equal parts: `pods` x `racks` x `servers`. NetKV's cluster by default.
struct FatTree {
  uint32_t pods = 2, racks_per_pod = 2, servers_per_rack = 2;
  double server_bytes_per_s = 450e9;
  double nic_bytes_per_s = 12.5e9, rack_bytes_per_s = 6.25e9, pod_bytes_per_s = 3.125e9;
  // Physical links of a server, a rack and a pod.
  uint32_t nics = 2, rack_uplinks = 64, pod_uplinks = 128;
};
FabricSpec SpecOf(const FatTree& tree);

// Immutable after Create.
class FabricTree {
 public:
  static constexpr size_t kServersMax = 4096;
  static constexpr size_t kLinksMax = 65536;  // physical ones
  static constexpr uint32_t kTiersMax = 8;

  // Checks that the links are a tree that has all servers at the same depth.
  //   InvalidArgument     "servers[2]: ..." or "links[3]: ..." and what is wrong. A name occurs
  //                       twice, or a capacity or count is not above 0. A server or group has two
  //                       links up, or a server is not connected to the first one.
  static absl::StatusOr<FabricTree> Create(const FabricSpec& spec);

  size_t server_count() const { return server_count_; }
  uint32_t tier_count() const { return static_cast<uint32_t>(tier_latency_us_.size()); }
  const std::string& NameOf(uint32_t server) const { return nodes_[server].name; }

  uint32_t Tier(uint32_t a, uint32_t b) const;
  double LatencyUs(uint32_t tier) const { return tier_latency_us_[tier]; }
  // Returns the capacity of the narrowest physical link between two servers.
  double Bandwidth(uint32_t a, uint32_t b) const;
  // Returns the index of a server's group at `level`: 1 is its rack. Equal indices are one group.
  uint32_t GroupOf(uint32_t server, uint32_t level) const;

  // Adds all links to an empty network.
  void AddTo(FlowNetwork& network) const;
  // Writes the links from `a` to `b` to `path`, and returns how many. `a_nic` and `b_nic` choose
  // the physical links of the servers themselves; ECMP chooses the others.
  size_t Path(uint32_t a, uint32_t a_nic, uint32_t b, uint32_t b_nic, SimRandom& random,
              std::span<FlowNetwork::LinkId, FlowNetwork::kPathLinksMax> path) const;
  // Appends the capacities of all links at `level`, times `share`. Level 0 is within the servers, 1
  // the servers' own links, 2 those of racks.
  void AppendCapacities(uint32_t level, double share,
                        std::vector<FlowNetwork::LinkCapacity>& capacities) const;

 private:
  struct Node {
    std::string name;
    uint32_t parent = kNone;
    uint32_t depth = 0;  // 0 for a server
    double bytes_per_s = 0;
    uint32_t count = 0;
    FlowNetwork::LinkId up = 0, down = 0;  // the first physical link in each direction
    FlowNetwork::LinkId inside = 0;        // within a server
  };
  static constexpr uint32_t kNone = 0xffffffff;
  friend class FabricBuilder;
  FabricTree() = default;

  size_t server_count_ = 0;
  double server_bytes_per_s_ = 0;
  std::vector<double> tier_latency_us_;
  std::vector<Node> nodes_;  // servers first
};

}  // namespace ckv
