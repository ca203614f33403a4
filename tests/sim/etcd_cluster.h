// An etcd cluster of a simulated fleet: one node that has etcd's state, and never loses it. While
// the node is down, a majority of the cluster is away.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/clock.h"
#include "server/directory/etcd/etcd_client.h"
#include "tests/sim/network.h"
#include "tests/sim/node.h"

namespace ckv::sim {

// Used by the thread that has the turn. Functions that take a request are called on the node.
class EtcdCluster {
 public:
  // Called before a transaction that writes anything but the leader's key. `from` is the process
  // that sent it.
  using OnWrite = std::function<void(const EtcdCluster&, const Process& from)>;

  // All must outlive it.
  EtcdCluster(Network* network, Node* node, OnWrite on_write)
      : network_(*network), node_(*node), on_write_(std::move(on_write)) {}

  Network& network() { return network_; }
  Node& node() { return node_; }

  struct Page {
    int64_t revision = 0;
    std::vector<EtcdPair> pairs;
  };
  absl::StatusOr<Page> Read(const EtcdKeys& keys, int64_t revision) const;
  //   NotFound    the lease of a write has ended.
  absl::StatusOr<EtcdOutcome> Commit(const EtcdTransaction& transaction, const Process& from);
  absl::Status Compact(int64_t revision);
  int64_t GrantLease(Duration ttl);
  absl::StatusOr<Duration> RenewLease(int64_t lease);
  absl::Status RevokeLease(int64_t lease);
  struct Events {
    int64_t revision = 0;  // all up to it are here
    std::vector<EtcdEvent> events;
  };
  // Waits up to `wait` for events of `keys` from `revision` on.
  absl::StatusOr<Events> Watch(const EtcdKeys& keys, int64_t revision, int64_t wait) const;
  // The value of the key that ends with this, or "".
  std::string ValueOf(std::string_view end) const;
  // Call when the node is there again: as in etcd, its leases begin anew.
  void Return();

 private:
  struct Lease {
    int64_t ttl = 0, ends = 0;  // ns
    std::set<std::string> keys;
  };
  static bool Has(const EtcdKeys& keys, const std::string& key);
  bool Holds(const EtcdCondition& condition) const;
  void Apply(const EtcdWrite& write);
  void Delete(const std::string& key);
  void EndLease(int64_t lease);
  // Ends the lease once its time is over, unless it is renewed.
  void Await(int64_t lease);

  Network& network_;
  Node& node_;
  const OnWrite on_write_;
  int64_t revision_ = 1, compacted_ = 0, last_lease_ = 0;
  std::map<std::string, EtcdPair> pairs_;
  std::vector<EtcdEvent> events_;  // all of them, in their order
  std::map<int64_t, Lease> leases_;
};

// The cluster of this run, which every EtcdClient uses. Null without one.
EtcdCluster*& TheEtcd();

}  // namespace ckv::sim
