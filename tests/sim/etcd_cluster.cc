#include "tests/sim/etcd_cluster.h"

#include <algorithm>
#include <utility>

namespace ckv::sim {

EtcdCluster*& TheEtcd() {
  static EtcdCluster* cluster = nullptr;
  return cluster;
}

bool EtcdCluster::Has(const EtcdKeys& keys, const std::string& key) {
  if (keys.end.empty()) return key == keys.begin;
  return key >= keys.begin && key < keys.end;
}

absl::StatusOr<EtcdCluster::Page> EtcdCluster::Read(const EtcdKeys& keys, int64_t revision) const {
  if (revision != 0 && revision < compacted_) return absl::OutOfRangeError("compacted");
  Page page;
  page.revision = revision == 0 ? revision_ : revision;
  std::map<std::string, EtcdPair> then;
  if (revision != 0 && revision < revision_) {
    for (const EtcdEvent& event : events_) {
      if (event.pair.mod_revision > revision) break;
      if (event.is_delete) {
        then.erase(event.pair.key);
      } else {
        then[event.pair.key] = event.pair;
      }
    }
  }
  for (const auto& [key, pair] : revision != 0 && revision < revision_ ? then : pairs_) {
    if (Has(keys, key)) page.pairs.push_back(pair);
  }
  return page;
}

bool EtcdCluster::Holds(const EtcdCondition& condition) const {
  const auto found = pairs_.find(condition.key);
  const EtcdPair pair = found == pairs_.end() ? EtcdPair() : found->second;
  switch (condition.of) {
    case EtcdCondition::Of::kCreateRevision:
      return pair.create_revision == condition.revision;
    case EtcdCondition::Of::kModRevision:
      return pair.mod_revision == condition.revision;
    case EtcdCondition::Of::kValue:
      return found != pairs_.end() && pair.value == condition.value;
  }
  return false;
}

absl::StatusOr<EtcdOutcome> EtcdCluster::Commit(const EtcdTransaction& transaction,
                                                const Process& from) {
  EtcdOutcome outcome;
  outcome.applied = std::all_of(transaction.conditions.begin(), transaction.conditions.end(),
                                [this](const EtcdCondition& one) { return Holds(one); });
  if (outcome.applied) {
    for (const EtcdWrite& write : transaction.writes) {
      if (write.lease != 0 && !leases_.contains(write.lease))
        return absl::NotFoundError("requested lease not found");
    }
    const bool claims = transaction.writes.size() == 1 && transaction.writes[0].lease != 0;
    if (!claims) on_write_(*this, from);
    if (!transaction.writes.empty()) ++revision_;
    for (const EtcdWrite& write : transaction.writes) Apply(write);
  } else {
    for (const EtcdKeys& keys : transaction.reads_if_refused) {
      for (const auto& [key, pair] : pairs_) {
        if (Has(keys, key)) outcome.read.push_back(pair);
      }
    }
  }
  outcome.revision = revision_;
  return outcome;
}

void EtcdCluster::Apply(const EtcdWrite& write) {
  if (write.kind == EtcdWrite::Kind::kDelete) {
    std::vector<std::string> gone;
    for (const auto& [key, pair] : pairs_) {
      if (Has(write.keys, key)) gone.push_back(key);
    }
    for (const std::string& key : gone) Delete(key);
    return;
  }
  EtcdPair& pair = pairs_[write.keys.begin];
  pair.key = write.keys.begin;
  pair.value = write.value;
  if (pair.create_revision == 0) pair.create_revision = revision_;
  pair.mod_revision = revision_;
  pair.lease = write.lease;
  if (write.lease != 0) leases_.at(write.lease).keys.insert(pair.key);
  events_.push_back({/*is_delete=*/false, pair});
}

void EtcdCluster::Delete(const std::string& key) {
  if (pairs_.erase(key) == 0) return;
  EtcdEvent event;
  event.is_delete = true;
  event.pair.key = key;
  event.pair.mod_revision = revision_;
  events_.push_back(event);
}

absl::Status EtcdCluster::Compact(int64_t revision) {
  compacted_ = std::max(compacted_, revision);
  return absl::OkStatus();
}

int64_t EtcdCluster::GrantLease(Duration ttl) {
  const int64_t id = ++last_lease_;
  leases_[id] = {.ttl = ttl.count(), .ends = Sim().now() + ttl.count(), .keys = {}};
  Await(id);
  return id;
}

void EtcdCluster::Await(int64_t lease) {
  // etcd looks each half second.
  Sim().At(leases_.at(lease).ends + 500 * kMs, [this, lease] {
    const auto found = leases_.find(lease);
    if (found == leases_.end() || !node_.up()) return;  // Return waits again
    if (found->second.ends > Sim().now()) return;       // renewed
    EndLease(lease);
  });
}

absl::StatusOr<Duration> EtcdCluster::RenewLease(int64_t lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return absl::NotFoundError("etcd has ended the lease");
  found->second.ends = Sim().now() + found->second.ttl;
  Await(lease);
  return Duration(found->second.ttl);
}

absl::Status EtcdCluster::RevokeLease(int64_t lease) {
  if (!leases_.contains(lease)) return absl::NotFoundError("no such lease");
  EndLease(lease);
  return absl::OkStatus();
}

void EtcdCluster::EndLease(int64_t lease) {
  ++revision_;
  for (const std::string& key : leases_.at(lease).keys) {
    const auto found = pairs_.find(key);
    if (found != pairs_.end() && found->second.lease == lease) Delete(key);
  }
  leases_.erase(lease);
}

void EtcdCluster::Return() {
  for (auto& [id, lease] : leases_) {
    lease.ends = Sim().now() + lease.ttl;
    Await(id);
  }
}

absl::StatusOr<EtcdCluster::Events> EtcdCluster::Watch(const EtcdKeys& keys, int64_t revision,
                                                       int64_t wait) const {
  if (revision <= compacted_) return absl::OutOfRangeError("compacted");
  Events found;
  const auto look = [&] {
    found.revision = revision_;
    found.events.clear();
    for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
      if (event->pair.mod_revision < revision) break;
      if (Has(keys, event->pair.key)) found.events.push_back(*event);
    }
    return !found.events.empty();
  };
  Sim().Block(Sim().now() + wait, look);
  look();
  std::reverse(found.events.begin(), found.events.end());
  return found;
}

std::string EtcdCluster::ValueOf(std::string_view end) const {
  for (const auto& [key, pair] : pairs_) {
    if (key.ends_with(end)) return pair.value;
  }
  return "";
}

}  // namespace ckv::sim
