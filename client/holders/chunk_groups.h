// The chunks of a corpus, grouped by the members that hold them.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/holders/holder_peer.h"
#include "proto/corpus.h"

namespace ckv {

// Immutable. It takes 4 bytes a chunk.
class ChunkGroups {
 public:
  static constexpr uint32_t kNoGroup = 0xffffffff;

  // `peers` must outlive the result.
  //   ResourceExhausted   as PeerTable::Find.
  static absl::StatusOr<std::shared_ptr<const ChunkGroups>> Make(
      const std::shared_ptr<const Corpus>& corpus, PeerTable& peers);

  // The group of a chunk; kNoGroup if it has no tokens.
  uint32_t Of(uint32_t chunk) const { return group_of_chunk_[chunk]; }
  uint32_t group_count() const { return static_cast<uint32_t>(peers_of_group_.size()); }
  // Its holders, then its leased members.
  std::span<HolderPeer* const> PeersOf(uint32_t group) const { return peers_of_group_[group]; }

 private:
  ChunkGroups() = default;

  std::vector<uint32_t> group_of_chunk_;
  std::vector<std::vector<HolderPeer*>> peers_of_group_;
};

}  // namespace ckv
