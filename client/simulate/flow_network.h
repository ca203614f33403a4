// A network at the level of flows: links with capacities, and flows that share them fairly.
//
// The rates are max-min fair: no flow can get more, unless one that has no more than it gets less.
// They are found by filling. The link with the least share per flow fixes the rate of its flows.
// Their rates are taken off their other links, and so on (Bertsekas and Gallager, "Data Networks",
// section 6.5.2). Congestion control of RDMA approaches these rates. When a flow begins or ends,
// only flows that share links with it, directly or through others, get new rates.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <span>
#include <vector>

namespace ckv {

// Times are seconds since the start of the simulation, and never go back from call to call. Not
// thread-safe.
class FlowNetwork {
 public:
  using LinkId = uint32_t;
  using FlowId = uint32_t;

  // Links of a path at most.
  static constexpr size_t kPathLinksMax = 16;

  // Adds a link. The capacity is above 0.
  LinkId AddLink(double bytes_per_s);
  size_t link_count() const { return links_.size(); }
  // Changes the capacities of links that flows may be using.
  struct LinkCapacity {
    LinkId link = 0;
    double bytes_per_s = 0;  // above 0
  };
  void SetCapacities(double now_s, std::span<const LinkCapacity> capacities);

  // Starts a flow of `bytes` over the links of `path`, each once. There is at least one. The id is
  // free again after End.
  FlowId Start(double now_s, double bytes, std::span<const LinkId> path);
  // Ends a flow: its last byte has arrived, or its sender gave up.
  void End(double now_s, FlowId flow);

  struct FlowEnd {
    double at_s = 0;
    FlowId flow = 0;
  };
  // Returns the flow whose last byte arrives next, if no flow begins or ends before. The caller
  // ends it then.
  std::optional<FlowEnd> NextEnd();

  double RateOf(FlowId flow) const { return flows_[flow].bytes_per_s; }
  size_t flow_count() const { return flow_count_; }
  // Flows that use the link now.
  size_t FlowsOn(LinkId link) const { return links_[link].flows.size(); }
  // Bytes that the link has carried, of flows that ended.
  double BytesOf(LinkId link) const { return links_[link].ended_bytes; }

 private:
  struct Link {
    double capacity = 0;
    double ended_bytes = 0;
    std::vector<FlowId> flows;
    uint64_t mark = 0;
    double left = 0;     // while rates are computed: capacity without fixed flows
    size_t unfixed = 0;  // while rates are computed: flows without a new rate
  };
  struct Flow {
    std::vector<LinkId> path;
    double bytes = 0, left_bytes = 0;  // left at left_s
    double left_s = 0;
    double bytes_per_s = 0, next_bytes_per_s = 0;
    uint64_t mark = 0;
    uint64_t stamp = 0;  // the valid entry in ends_ has the same
  };
  struct EndEntry {
    double at_s = 0;
    FlowId flow = 0;
    uint64_t stamp = 0;

    bool operator>(const EndEntry& other) const {
      return at_s != other.at_s ? at_s > other.at_s : stamp > other.stamp;
    }
  };

  // Gives new rates to all flows that share links with those of `seeds`.
  void Share(double now_s, std::span<const LinkId> seeds);
  void Collect(std::span<const LinkId> seeds);
  void Fill();
  void Fix(FlowId flow, double bytes_per_s);

  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<FlowId> free_flows_;
  size_t flow_count_ = 0;
  uint64_t mark_ = 0, stamp_ = 0;
  std::priority_queue<EndEntry, std::vector<EndEntry>, std::greater<EndEntry>> ends_;
  // Memory of Share.
  std::vector<LinkId> shared_links_, seeds_;
  std::vector<FlowId> shared_flows_;
  struct LinkShare {
    double bytes_per_s = 0;
    LinkId link = 0;
    bool operator>(const LinkShare& other) const {
      return bytes_per_s != other.bytes_per_s ? bytes_per_s > other.bytes_per_s : link > other.link;
    }
  };
  std::vector<LinkShare> shares_;
};

}  // namespace ckv
