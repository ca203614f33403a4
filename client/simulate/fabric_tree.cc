// FabricBuilder makes the nodes of a tree from named links, and refuses what is no tree. The links
// of a node get consecutive ids: all up, then all down.

#include "client/simulate/fabric_tree.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

bool IsCapacity(double bytes_per_s) { return std::isfinite(bytes_per_s) && bytes_per_s > 0; }

absl::Status RefuseItem(const char* list, size_t index, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s[%d]: %s", list, index, why));
}

}  // namespace

class FabricBuilder {
 public:
  absl::StatusOr<FabricTree> Build(const FabricSpec& spec) {
    CKV_RETURN_IF_ERROR(AddServers(spec));
    for (size_t i = 0; i < spec.links.size(); ++i) CKV_RETURN_IF_ERROR(AddLink(spec.links[i], i));
    CKV_RETURN_IF_ERROR(CheckConnected());
    CKV_RETURN_IF_ERROR(CheckTiers(spec));
    tree_.server_bytes_per_s_ = spec.server_bytes_per_s;
    tree_.tier_latency_us_ = spec.tier_latency_us;
    FlowNetwork::LinkId next = 0;
    for (FabricTree::Node& node : tree_.nodes_) {
      node.up = next;
      node.down = next + node.count;
      next += 2 * node.count;
    }
    for (size_t i = 0; i < tree_.server_count_; ++i) tree_.nodes_[i].inside = next++;
    return std::move(tree_);
  }

 private:
  absl::Status AddServers(const FabricSpec& spec) {
    if (spec.servers.empty() || spec.servers.size() > FabricTree::kServersMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "servers: %d, need 1 to %d", spec.servers.size(), FabricTree::kServersMax));
    }
    if (!IsCapacity(spec.server_bytes_per_s))
      return absl::InvalidArgumentError("server_GBps: not above 0");
    for (size_t i = 0; i < spec.servers.size(); ++i) {
      if (ids_.contains(spec.servers[i]))
        return RefuseItem("servers", i, spec.servers[i] + " occurs twice");
      NodeOf(spec.servers[i]);
    }
    tree_.server_count_ = spec.servers.size();
    return absl::OkStatus();
  }

  uint32_t NodeOf(const std::string& name) {
    const auto [at, fresh] = ids_.try_emplace(name, static_cast<uint32_t>(tree_.nodes_.size()));
    if (fresh) tree_.nodes_.emplace_back().name = name;
    return at->second;
  }

  absl::Status AddLink(const FabricLink& link, size_t index) {
    if (link.from.empty() || link.to.empty() || link.from == link.to)
      return RefuseItem("links", index, "needs two different names, from and to");
    if (!IsCapacity(link.bytes_per_s)) return RefuseItem("links", index, "Gbps: not above 0");
    physical_ += link.count;
    if (link.count == 0 || physical_ > FabricTree::kLinksMax) {
      return RefuseItem("links", index,
                        absl::StrFormat("count: must be 1 or more, and at most %d in all",
                                        FabricTree::kLinksMax));
    }
    const uint32_t from = NodeOf(link.from), to = NodeOf(link.to);
    if (to < tree_.server_count_)
      return RefuseItem("links", index, link.to + " is a server; links lead up from servers");
    FabricTree::Node& node = tree_.nodes_[from];
    if (node.parent != FabricTree::kNone) {
      return RefuseItem("links", index,
                        absl::StrFormat("%s already has a link up, to %s; give its count instead",
                                        link.from, tree_.nodes_[node.parent].name));
    }
    for (uint32_t above = to; above != FabricTree::kNone; above = tree_.nodes_[above].parent) {
      if (above == from) return RefuseItem("links", index, "closes a circle");
    }
    node.parent = to;
    node.bytes_per_s = link.bytes_per_s;
    node.count = link.count;
    return absl::OkStatus();
  }

  // Sets the depths of groups, and checks that there is one top and that servers have one depth.
  absl::Status CheckConnected() {
    std::vector<FabricTree::Node>& nodes = tree_.nodes_;
    uint32_t top = FabricTree::kNone, depth = 0;
    for (uint32_t server = 0; server < tree_.server_count_; ++server) {
      uint32_t at = server, levels = 0;
      for (; nodes[at].parent != FabricTree::kNone; at = nodes[at].parent)
        nodes[nodes[at].parent].depth = ++levels;
      if (server == 0) {
        top = at;
        depth = levels;
      }
      if (at != top) {
        return RefuseItem(
            "servers", server,
            absl::StrFormat("%s is not connected to %s: its links end at %s, not %s",
                            nodes[server].name, nodes[0].name, nodes[at].name, nodes[top].name));
      }
      if (levels != depth) {
        return RefuseItem("servers", server,
                          absl::StrFormat("%s has %d links up to %s, %s has %d", nodes[server].name,
                                          levels, nodes[top].name, nodes[0].name, depth));
      }
    }
    for (size_t i = tree_.server_count_; i < nodes.size(); ++i) {
      if (nodes[i].depth == 0)
        return absl::InvalidArgumentError("links: " + nodes[i].name + " has no server below it");
    }
    tiers_ = depth + 1;
    return absl::OkStatus();
  }

  absl::Status CheckTiers(const FabricSpec& spec) const {
    if (tiers_ > FabricTree::kTiersMax || spec.tier_latency_us.size() != tiers_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tier_latency_us: %d values, need one for each of %d tiers (at most %d)",
                          spec.tier_latency_us.size(), tiers_, FabricTree::kTiersMax));
    }
    for (const double us : spec.tier_latency_us) {
      if (!(us >= 0 && std::isfinite(us)))
        return absl::InvalidArgumentError("tier_latency_us: not 0 or above");
    }
    return absl::OkStatus();
  }

  FabricTree tree_;
  absl::flat_hash_map<std::string, uint32_t> ids_;
  uint64_t physical_ = 0;
  uint32_t tiers_ = 0;
};

FabricSpec SpecOf(const FatTree& tree) {
  FabricSpec spec;
  spec.server_bytes_per_s = tree.server_bytes_per_s;
  spec.tier_latency_us = {1, 3, 8, 15};
  for (uint32_t pod = 0; pod < tree.pods; ++pod) {
    const std::string pod_name = absl::StrFormat("pod%d", pod);
    spec.links.push_back({pod_name, "core", tree.pod_bytes_per_s, tree.pod_uplinks});
    for (uint32_t rack = 0; rack < tree.racks_per_pod; ++rack) {
      const std::string rack_name = absl::StrFormat("%s.rack%d", pod_name, rack);
      spec.links.push_back({rack_name, pod_name, tree.rack_bytes_per_s, tree.rack_uplinks});
      for (uint32_t server = 0; server < tree.servers_per_rack; ++server) {
        spec.servers.push_back(absl::StrFormat("%s.server%d", rack_name, server));
        spec.links.push_back({spec.servers.back(), rack_name, tree.nic_bytes_per_s, tree.nics});
      }
    }
  }
  return spec;
}

absl::StatusOr<FabricTree> FabricTree::Create(const FabricSpec& spec) {
  return FabricBuilder().Build(spec);
}

uint32_t FabricTree::Tier(uint32_t a, uint32_t b) const {
  uint32_t tier = 0;
  for (; a != b; ++tier) {
    a = nodes_[a].parent;
    b = nodes_[b].parent;
  }
  return tier;
}

uint32_t FabricTree::GroupOf(uint32_t server, uint32_t level) const {
  for (; level > 0; --level) server = nodes_[server].parent;
  return server;
}

double FabricTree::Bandwidth(uint32_t a, uint32_t b) const {
  if (a == b) return server_bytes_per_s_;
  double narrowest = std::min(nodes_[a].bytes_per_s, nodes_[b].bytes_per_s);
  for (; a != b; a = nodes_[a].parent, b = nodes_[b].parent)
    narrowest = std::min({narrowest, nodes_[a].bytes_per_s, nodes_[b].bytes_per_s});
  return narrowest;
}

void FabricTree::AddTo(FlowNetwork& network) const {
  for (const Node& node : nodes_) {
    for (uint32_t i = 0; i < 2 * node.count; ++i) network.AddLink(node.bytes_per_s);
  }
  for (size_t i = 0; i < server_count_; ++i) network.AddLink(server_bytes_per_s_);
}

size_t FabricTree::Path(uint32_t a, uint32_t a_nic, uint32_t b, uint32_t b_nic, SimRandom& random,
                        std::span<FlowNetwork::LinkId, FlowNetwork::kPathLinksMax> path) const {
  if (a == b) {
    path[0] = nodes_[a].inside;
    return 1;
  }
  size_t count = 0;
  const auto lane = [&](const Node& node, bool own, uint32_t nic) {
    return own ? nic % node.count : random.Below(node.count);
  };
  for (bool own = true; a != b; own = false) {
    const Node& from = nodes_[a];
    const Node& to = nodes_[b];
    path[count++] = from.up + lane(from, own, a_nic);
    path[count++] = to.down + lane(to, own, b_nic);
    a = from.parent;
    b = to.parent;
  }
  return count;
}

void FabricTree::AppendCapacities(uint32_t level, double share,
                                  std::vector<FlowNetwork::LinkCapacity>& capacities) const {
  if (level == 0) {
    for (size_t i = 0; i < server_count_; ++i)
      capacities.push_back({nodes_[i].inside, server_bytes_per_s_ * share});
    return;
  }
  for (const Node& node : nodes_) {
    if (node.depth + 1 != level) continue;
    for (uint32_t i = 0; i < 2 * node.count; ++i)
      capacities.push_back({node.up + i, node.bytes_per_s * share});
  }
}

}  // namespace ckv
