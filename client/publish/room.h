// Places chunks by the room that holders have, before a row is read or sent.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/publish/chunk_source.h"
#include "client/publish/extension.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// The room that one holder has. If it does not tell, there is no limit.
struct HolderRoom {
  uint64_t room_bytes = UINT64_MAX;
  uint64_t capacity_bytes = 0;
  // Chunks that it has already: they take no room. Asked for only if room is short.
  absl::flat_hash_set<ChunkId> present = {};
  bool tells_present = true;  // false if it did not list all that it has in time
};
using Rooms = std::map<std::string, HolderRoom>;  // by name

// Asks holders for their room, one after another, for kRoomTimeout together. Who does not answer is
// told by the puts.
inline constexpr Duration kRoomTimeout = std::chrono::seconds(2);
class RoomAsker {
 public:
  RoomAsker(std::span<const Member> holders, Clock* clock, Instant deadline)
      : holders_(holders), clock_(*clock), deadline_(deadline) {}
  // Adds the room of those that are not there yet.
  void Ask(std::span<const HolderId> ids, Rooms& rooms) const;
  // Adds which chunks each of `rooms` has.
  void AskPresent(Rooms& rooms) const;

 private:
  const std::span<const Member> holders_;
  Clock& clock_;
  const Instant deadline_;
};

// The bytes that a chunk takes in a holder's store.
uint64_t StoreBytesOf(const Geometry& geometry, uint32_t token_count);

// Places chunks `fresh` of the source, as PlaceNewChunks does if there is room. Otherwise deals
// aligned runs of chunks to the holders with most room, those that have them first. Then a holder
// may have more lists of holders than kPlacementListsPerHolder. If somebody does not tell which
// chunks it has, they may be there, so PlaceNewChunks' placement is returned, not an error.
//   ResourceExhausted   there is not room for all; names the room of each holder, and what to do.
//   InvalidArgument     as PlaceNewChunks.
absl::StatusOr<SourcePlacement> PlaceByRoom(const ChunkSource& chunks,
                                            std::span<const uint32_t> fresh, size_t corpus_size,
                                            std::span<const Member> holders, uint32_t replicas,
                                            Clock& clock, Instant deadline);
// The same, over rooms that are known.
absl::StatusOr<SourcePlacement> PlaceInRooms(const ChunkSource& chunks,
                                             std::span<const uint32_t> fresh, size_t corpus_size,
                                             std::span<const HolderId> holders, uint32_t replicas,
                                             Rooms rooms);

// Whether each of them has listed all chunks that it has, as far as it was asked.
bool AllTellPresent(const Rooms& rooms);

// Whether each holder has room for the chunks that `placement` sends it.
bool FitsIn(const ChunkSource& chunks, const SourcePlacement& placement, const Rooms& rooms);

// Says that `need_bytes` do not fit, which holders have room, and what makes some.
absl::Status NoRoomError(uint64_t need_bytes, uint32_t replicas, const Rooms& rooms);

}  // namespace ckv
