#include "server/directory/tables/replica_table.h"

#include <algorithm>
#include <utility>

namespace ckv {
namespace {

bool IsHolder(const HolderId& member, const ChunkPlacement& chunk) {
  return std::find(chunk.holders().begin(), chunk.holders().end(), member) != chunk.holders().end();
}

const ChunkPlacement& PlacementAt(const ChunkPlace& place) {
  return place.corpus->chunks[place.ordinal];
}

}  // namespace

// Returns true if some corpus would list the member as a replica: the member is not one of the
// chunk's holders, and there is room.
bool ReplicaTable::HasRoom(const HolderId& member, std::string_view tenant, Places places) const {
  return std::any_of(places.begin(), places.end(), [&](const ChunkPlace& place) {
    const ChunkPlacement& chunk = PlacementAt(place);
    return IsReported(*place.corpus, tenant) && !IsHolder(member, chunk) &&
           chunk.holders().size() + LeasedOf(*place.corpus, chunk).size() < kReplicaCountMax;
  });
}

ReplicaTable::Outcome ReplicaTable::Announce(uint64_t lease_id, const HolderId& member,
                                             std::string_view tenant, const ChunkId& id,
                                             Places places) {
  if (std::none_of(places.begin(), places.end(),
                   [&](const ChunkPlace& place) { return IsReported(*place.corpus, tenant); })) {
    return Outcome::kRefused;
  }
  if (const auto found = replicas_.find(id); found != replicas_.end()) {
    for (const Replica& replica : found->second) {
      if (replica.lease_id == lease_id && replica.tenant == tenant) return Outcome::kKept;
    }
  }
  if (std::all_of(places.begin(), places.end(), [&](const ChunkPlace& place) {
        return !IsReported(*place.corpus, tenant) || IsHolder(member, PlacementAt(place));
      })) {
    return Outcome::kKept;
  }
  if (replica_count_ >= replica_count_max_ || !HasRoom(member, tenant, places)) {
    return Outcome::kRefused;
  }
  replicas_[id].push_back({lease_id, member, std::string(tenant)});
  by_lease_[lease_id].insert(id);
  for (const ChunkPlace& place : places) ordinals_[place.corpus.get()].insert(place.ordinal);
  ++replica_count_;
  return Outcome::kAdded;
}

std::vector<std::string> ReplicaTable::Withdraw(uint64_t lease_id,
                                                std::optional<std::string_view> tenant,
                                                const ChunkId& id, Places places) {
  std::vector<std::string> tenants;
  const auto found = replicas_.find(id);
  if (found == replicas_.end()) return tenants;
  bool others = false;  // some replicas of the same lease stay
  std::erase_if(found->second, [&](const Replica& replica) {
    if (replica.lease_id != lease_id) return false;
    const bool goes = !tenant || replica.tenant == *tenant;
    if (goes) tenants.push_back(replica.tenant);
    others |= !goes;
    return goes;
  });
  if (tenants.empty()) return tenants;
  replica_count_ -= tenants.size();
  if (!others) Unindex(lease_id, id);
  if (!found->second.empty()) return tenants;
  replicas_.erase(found);
  for (const ChunkPlace& place : places) {
    const auto ordinals = ordinals_.find(place.corpus.get());
    if (ordinals == ordinals_.end()) continue;
    ordinals->second.erase(place.ordinal);
    if (ordinals->second.empty()) ordinals_.erase(ordinals);
  }
  return tenants;
}

void ReplicaTable::Unindex(uint64_t lease_id, const ChunkId& id) {
  const auto chunks = by_lease_.find(lease_id);
  if (chunks == by_lease_.end()) return;
  chunks->second.erase(id);
  if (chunks->second.empty()) by_lease_.erase(chunks);
}

std::vector<ChunkId> ReplicaTable::ChunksOf(uint64_t lease_id) const {
  const auto chunks = by_lease_.find(lease_id);
  if (chunks == by_lease_.end()) return {};
  return {chunks->second.begin(), chunks->second.end()};
}

std::vector<HolderId> ReplicaTable::LeasedOf(const Corpus& corpus,
                                             const ChunkPlacement& chunk) const {
  std::vector<HolderId> members;
  const auto found = replicas_.find(chunk.id);
  if (found == replicas_.end()) return members;
  for (const Replica& replica : found->second) {
    // A corpus published since may have more holders than there were at the announcement.
    if (chunk.holders().size() + members.size() >= kReplicaCountMax) break;
    if (!IsReported(corpus, replica.tenant) || IsHolder(replica.member, chunk)) continue;
    // The member may have announced it for the tenant and for everyone.
    if (std::find(members.begin(), members.end(), replica.member) == members.end())
      members.push_back(replica.member);
  }
  return members;
}

std::vector<ReplicaTable::Leased> ReplicaTable::LeasedOf(const Corpus& corpus) const {
  std::vector<Leased> leased;
  const auto ordinals = ordinals_.find(&corpus);
  if (ordinals == ordinals_.end()) return leased;
  for (const uint32_t ordinal : ordinals->second) {
    std::vector<HolderId> members = LeasedOf(corpus, corpus.chunks[ordinal]);
    if (!members.empty()) leased.push_back({ordinal, std::move(members)});
  }
  return leased;
}

void ReplicaTable::AddCorpus(const Corpus& corpus) {
  if (replicas_.empty()) return;
  for (uint32_t i = 0; i < corpus.chunks.size(); ++i) {
    if (replicas_.contains(corpus.chunks[i].id)) ordinals_[&corpus].insert(i);
  }
}

void ReplicaTable::RemoveCorpus(const Corpus& corpus) { ordinals_.erase(&corpus); }

void ReplicaTable::RemoveChunk(const ChunkId& id) {
  const auto found = replicas_.find(id);
  if (found == replicas_.end()) return;
  for (const Replica& replica : found->second) Unindex(replica.lease_id, id);
  replica_count_ -= found->second.size();
  replicas_.erase(found);
}

}  // namespace ckv
