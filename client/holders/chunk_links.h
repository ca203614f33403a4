// The links of a call context to the holders of one corpus, by chunk.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/holders/holder_link.h"
#include "client/holders/replica_choice.h"
#include "proto/corpus.h"

namespace ckv {

// The chunks of a corpus and the links that can serve each. Part of a LinkTable.
struct ChunkLinks {
  static constexpr uint32_t kNoLink = 0xffffffff;

  std::shared_ptr<const Corpus> corpus;  // kept, so that no other gets its address
  std::vector<HolderLink*> links;        // distinct
  std::vector<ReplicaGroup> groups;
  std::vector<uint32_t> group_of_chunk;  // kNoLink if the chunk has no tokens
  std::vector<uint32_t> handles;         // the handle of each chunk
  // HolderLink::generation when each handle was resolved. 0 means that it was not.
  std::vector<uint64_t> generations;
  uint64_t last_use = 0;
  bool replicated = false;  // a group has a choice of links
  // When the choices for routes and for fetches were made; the index is a Primitive.
  std::array<ReplicaRanking, kPrimitiveCount> rankings;
  // The primitive of the call in progress: kRoute or kFetch.
  Primitive primitive = Primitive::kRoute;

  // Returns the link chosen for a chunk in the call in progress, as an ordinal in `links`. Returns
  // kNoLink if the chunk has no tokens, so no holder is queried.
  uint32_t LinkOf(uint32_t chunk) const {
    const uint32_t group = group_of_chunk[chunk];
    return group == kNoLink ? kNoLink : groups[group].Chosen(primitive);
  }
  // Returns the ids of chunks that the holder of a link has, `count_max` at most.
  std::vector<ChunkId> IdsAt(uint32_t link, size_t count_max) const;
  // Returns the place of a holder in ReplicaGroup::links, or kNoLink.
  uint32_t PlaceOf(const ReplicaGroup& group, const HolderPeer& holder) const;
};

}  // namespace ckv
