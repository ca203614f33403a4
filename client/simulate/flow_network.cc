// A change marks the flows and links that it can reach, brings their bytes up to now, and fills the
// links again. Rates that changed get a new entry in ends_. Old entries have an old stamp, and are
// dropped when they come up.

#include "client/simulate/flow_network.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "proto/base/status.h"

namespace ckv {
namespace {

// Shares that differ by less are equal: they come from sums of the same numbers in another order.
constexpr double kSameShare = 1e-12;

}  // namespace

FlowNetwork::LinkId FlowNetwork::AddLink(double bytes_per_s) {
  CKV_CHECK(bytes_per_s > 0);
  links_.emplace_back().capacity = bytes_per_s;
  return static_cast<LinkId>(links_.size() - 1);
}

void FlowNetwork::SetCapacities(double now_s, std::span<const LinkCapacity> capacities) {
  std::vector<LinkId> changed;
  for (const LinkCapacity& one : capacities) {
    CKV_CHECK(one.bytes_per_s > 0);
    links_[one.link].capacity = one.bytes_per_s;
    if (!links_[one.link].flows.empty()) changed.push_back(one.link);
  }
  Share(now_s, changed);
}

FlowNetwork::FlowId FlowNetwork::Start(double now_s, double bytes, std::span<const LinkId> path) {
  CKV_CHECK(!path.empty() && path.size() <= kPathLinksMax && bytes >= 0);
  if (free_flows_.empty()) {
    free_flows_.push_back(static_cast<FlowId>(flows_.size()));
    flows_.emplace_back();
  }
  const FlowId id = free_flows_.back();
  free_flows_.pop_back();
  Flow& flow = flows_[id];
  flow.path.assign(path.begin(), path.end());
  flow.bytes = flow.left_bytes = bytes;
  flow.left_s = now_s;
  flow.bytes_per_s = 0;
  for (const LinkId link : path) links_[link].flows.push_back(id);
  ++flow_count_;
  Share(now_s, path);
  return id;
}

void FlowNetwork::End(double now_s, FlowId id) {
  Flow& flow = flows_[id];
  flow.stamp = ++stamp_;
  for (const LinkId link : flow.path) {
    std::vector<FlowId>& flows = links_[link].flows;
    flows.erase(std::find(flows.begin(), flows.end(), id));
    links_[link].ended_bytes += flow.bytes;
  }
  seeds_.assign(flow.path.begin(), flow.path.end());
  free_flows_.push_back(id);
  --flow_count_;
  Share(now_s, seeds_);
}

std::optional<FlowNetwork::FlowEnd> FlowNetwork::NextEnd() {
  while (!ends_.empty()) {
    const EndEntry& next = ends_.top();
    if (flows_[next.flow].stamp == next.stamp) return FlowEnd{next.at_s, next.flow};
    ends_.pop();
  }
  return std::nullopt;
}

void FlowNetwork::Share(double now_s, std::span<const LinkId> seeds) {
  Collect(seeds);
  for (const FlowId id : shared_flows_) {
    Flow& flow = flows_[id];
    flow.left_bytes = std::max(0.0, flow.left_bytes - flow.bytes_per_s * (now_s - flow.left_s));
    flow.left_s = now_s;
    flow.next_bytes_per_s = -1;
  }
  Fill();
  for (const FlowId id : shared_flows_) {
    Flow& flow = flows_[id];
    if (std::abs(flow.next_bytes_per_s - flow.bytes_per_s) <= kSameShare * flow.bytes_per_s)
      continue;
    flow.bytes_per_s = flow.next_bytes_per_s;
    flow.stamp = ++stamp_;
    ends_.push({now_s + flow.left_bytes / flow.bytes_per_s, id, flow.stamp});
  }
}

void FlowNetwork::Collect(std::span<const LinkId> seeds) {
  ++mark_;
  shared_links_.clear();
  shared_flows_.clear();
  const auto add = [&](LinkId link) {
    if (links_[link].mark == mark_) return;
    links_[link].mark = mark_;
    shared_links_.push_back(link);
  };
  for (const LinkId link : seeds) add(link);
  for (size_t i = 0; i < shared_links_.size(); ++i) {
    for (const FlowId id : links_[shared_links_[i]].flows) {
      Flow& flow = flows_[id];
      if (flow.mark == mark_) continue;
      flow.mark = mark_;
      shared_flows_.push_back(id);
      for (const LinkId link : flow.path) add(link);
    }
  }
}

void FlowNetwork::Fill() {
  shares_.clear();
  for (const LinkId id : shared_links_) {
    Link& link = links_[id];
    link.left = link.capacity;
    link.unfixed = link.flows.size();
    if (link.unfixed > 0) shares_.push_back({link.left / static_cast<double>(link.unfixed), id});
  }
  std::make_heap(shares_.begin(), shares_.end(), std::greater<>());
  while (!shares_.empty()) {
    std::pop_heap(shares_.begin(), shares_.end(), std::greater<>());
    const LinkShare least = shares_.back();
    shares_.pop_back();
    Link& link = links_[least.link];
    if (link.unfixed == 0) continue;
    // Fixing flows at a smaller share only raises the share of the rest.
    const double share = std::max(link.left, 0.0) / static_cast<double>(link.unfixed);
    if (share > least.bytes_per_s * (1 + kSameShare)) {
      shares_.push_back({share, least.link});
      std::push_heap(shares_.begin(), shares_.end(), std::greater<>());
      continue;
    }
    for (const FlowId flow : link.flows) {
      if (flows_[flow].next_bytes_per_s < 0) Fix(flow, least.bytes_per_s);
    }
  }
}

void FlowNetwork::Fix(FlowId id, double bytes_per_s) {
  Flow& flow = flows_[id];
  flow.next_bytes_per_s = bytes_per_s;
  for (const LinkId link : flow.path) {
    links_[link].left -= bytes_per_s;
    --links_[link].unfixed;
  }
}

}  // namespace ckv
