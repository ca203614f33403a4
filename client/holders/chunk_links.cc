#include "client/holders/chunk_links.h"

#include <algorithm>

namespace ckv {

std::vector<ChunkId> ChunkLinks::IdsAt(uint32_t link, size_t count_max) const {
  std::vector<bool> has(groups.size());
  for (size_t i = 0; i < has.size(); ++i) {
    const std::vector<uint32_t>& of = groups[i].links;
    has[i] = std::find(of.begin(), of.end(), link) != of.end();
  }
  std::vector<ChunkId> ids;
  for (size_t i = 0; i < corpus->chunks.size() && ids.size() < count_max; ++i) {
    const uint32_t group = group_of_chunk[i];
    if (group != kNoLink && has[group]) ids.push_back(corpus->chunks[i].id);
  }
  return ids;
}

uint32_t ChunkLinks::PlaceOf(const ReplicaGroup& group, const HolderPeer& holder) const {
  for (uint32_t i = 0; i < group.links.size(); ++i) {
    if (&links[group.links[i]]->peer() == &holder) return i;
  }
  return kNoLink;
}

}  // namespace ckv
