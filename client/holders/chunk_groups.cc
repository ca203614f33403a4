#include "client/holders/chunk_groups.h"

#include "absl/container/flat_hash_map.h"
#include "proto/base/status.h"

namespace ckv {

absl::StatusOr<std::shared_ptr<const ChunkGroups>> ChunkGroups::Make(
    const std::shared_ptr<const Corpus>& corpus, PeerTable& peers) {
  const std::shared_ptr<ChunkGroups> groups(new ChunkGroups);
  absl::flat_hash_map<std::vector<HolderPeer*>, uint32_t> known;
  groups->group_of_chunk_.reserve(corpus->chunks.size());
  const ChunkPlacement* last = nullptr;
  std::vector<HolderPeer*> members;
  for (const ChunkPlacement& chunk : corpus->chunks) {
    if (chunk.token_count == 0) {
      groups->group_of_chunk_.push_back(kNoGroup);
      continue;
    }
    // Neighbours mostly have the same holders.
    if (last != nullptr && last->HasMembersOf(chunk)) {
      groups->group_of_chunk_.push_back(known[members]);
      continue;
    }
    last = &chunk;
    members.clear();
    for (const std::vector<HolderId>* const ids : {&chunk.holders(), &chunk.leased()}) {
      for (const HolderId& id : *ids) {
        CKV_ASSIGN_OR_RETURN(HolderPeer * peer, peers.Find(id));
        members.push_back(peer);
      }
    }
    const auto [group, is_new] = known.emplace(members, groups->group_count());
    if (is_new) groups->peers_of_group_.push_back(members);
    groups->group_of_chunk_.push_back(group->second);
  }
  return groups;
}

}  // namespace ckv
