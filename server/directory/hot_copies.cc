#include "server/directory/hot_copies.h"

#include <algorithm>
#include <set>
#include <utility>

#include "proto/base/log.h"
#include "server/directory/replication/target_choice.h"

namespace ckv {
namespace {

bool IsPastElbow(const Lease& lease) {
  return lease.member.role == MemberRole::kHolder && lease.health && lease.health->is_past_elbow;
}

bool HasHotHolder(const DirectoryTables& tables, const ChunkId& id)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(tables.mu) {
  for (const ChunkPlace& place : tables.corpora.PlacesOf(id)) {
    for (const HolderId& holder : place.corpus->chunks[place.ordinal].holders()) {
      const auto lease = tables.leases.all().find(holder);
      if (lease != tables.leases.all().end() && IsPastElbow(lease->second)) return true;
    }
  }
  return false;
}

}  // namespace

bool HotCopies::IsWaiting(const DirectoryTables& tables) const {
  if (!copies_.empty()) return true;
  const auto& leases = tables.leases.all();
  return std::any_of(leases.begin(), leases.end(),
                     [](const auto& one) { return IsPastElbow(one.second); });
}

HotPlanView HotCopies::View(const DirectoryTables& tables, const CopyPlanView& view) const {
  HotPlanView hot = {.live = view.live, .past_elbow = {}, .lacking = view.lacking, .chunks = {}};
  std::set<std::pair<const Corpus*, uint32_t>> seen;  // runs
  for (const auto& [holder, lease] : tables.leases.all()) {
    if (!IsPastElbow(lease)) continue;
    hot.past_elbow.insert(holder);
    for (const ChunkId& id : lease.health->hot) {
      for (const ChunkPlace& place : tables.corpora.PlacesOf(id)) {
        const Corpus& corpus = *place.corpus;
        const uint32_t run_chunks = CopyRunChunks(corpus.chunks.size());
        const uint32_t run = place.ordinal / run_chunks;
        if (!seen.emplace(&corpus, run).second) continue;
        const size_t end = std::min<size_t>(corpus.chunks.size(), size_t{run + 1} * run_chunks);
        for (uint32_t i = run * run_chunks; i < end && hot.chunks.size() < kChunkCountMax; ++i) {
          hot.chunks.push_back(
              {place.corpus, i, tables.corpora.replicas().LeasedOf(corpus, corpus.chunks[i])});
        }
      }
    }
  }
  return hot;
}

void HotCopies::Announce(DirectoryTables& tables, const HolderId& holder, uint64_t lease_id,
                         const std::string& tenant, const ChunkId& id, Instant now) {
  const Lease* const lease = tables.leases.FindMember(holder);
  if (lease == nullptr || lease->id != lease_id || tables.draining.contains(holder)) return;
  CorporaByKey changed;
  const auto outcome = tables.corpora.Announce(lease_id, holder, tenant, id, changed);
  // If it is kept, it is the holder's own copy already, or one that it announced itself.
  if (outcome != ReplicaTable::Outcome::kAdded) return;
  copies_.emplace(Key(lease_id, tenant, id), now);
  tables.watches.ReportReplicasChanged(changed);
}

void HotCopies::WithdrawCool(DirectoryTables& tables, Instant now) {
  size_t count = 0;
  for (auto it = copies_.begin(); it != copies_.end();) {
    const auto& [lease_id, tenant, id] = it->first;
    if (tables.leases.Find(lease_id) == nullptr) {
      it = copies_.erase(it);  // withdrawn with the lease
      continue;
    }
    if (HasHotHolder(tables, id)) it->second = now;
    if (now < it->second + kHold) {
      ++it;
      continue;
    }
    tables.watches.ReportReplicasChanged(
        tables.corpora.Withdraw(lease_id, tenant, std::span(&id, 1)));
    it = copies_.erase(it);
    ++count;
  }
  if (count > 0) Log().info("{} leased copies of chunks that were hot are withdrawn", count);
}

}  // namespace ckv
