// Copies of chunks as sealed memory files, which requesters on this host map into their memory.

#pragma once

#include <atomic>
#include <cstdint>
#include <list>

#include "absl/status/statusor.h"
#include "store/memory/chunk.h"
#include "store/memory/chunk_table.h"
#include "transport/socket.h"
#include "transport/wire.h"

namespace ckv {

// A chunk's own rows lie in an arena beside other chunks' rows, so no peer may map them. A peer
// gets a copy that holds this chunk only. The copy is made when it is first asked for and kept, so
// later hand-overs move no byte. deploy/adr/0012 says why the store itself is not made of memory
// files.
//
// Belongs to the dispatcher's thread, except Make, which any thread may call.
class ChunkExports {
 public:
  // The limit of copies. Each is a descriptor, and a process has 1024 unless it is given more.
  static constexpr size_t kExportCountMax = 256;

  // `bytes_max` bounds all copies together; the least recently used are dropped first. Zero means
  // that nothing is handed over.
  explicit ChunkExports(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // The descriptor of the chunk's copy, or -1 if there is none. The caller must hold a pin of the
  // chunk. The descriptor is valid until the next Insert.
  int Find(ChunkLocator chunk);

  // Whether a copy of the chunk may be made.
  //   ResourceExhausted   the chunk is larger than bytes_max.
  absl::Status CheckRoom(const Chunk& chunk) const;

  // Makes a sealed copy and checks it against the chunk's checksums. Takes tens of milliseconds.
  //   ResourceExhausted   no memory or no descriptor.
  //   DataLoss            a layer's rows do not match their checksum.
  //   Cancelled           `stop` was set.
  static absl::StatusOr<UniqueFd> Make(const Chunk& chunk, const std::atomic<bool>& stop);

  // Keeps the copy `fd` and returns its descriptor, valid until the next Insert. To make room it
  // drops copies of chunks that are not in `table` any more, then the least recently used.
  int Insert(ChunkLocator chunk, uint64_t bytes, UniqueFd fd, const ChunkTable& table);

  // How a copy of the chunk is laid out, for the peer.
  static MappedLayout LayoutOf(const Chunk& chunk);
  // The size of all copies.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Export {
    ChunkLocator chunk;
    uint64_t bytes = 0;
    UniqueFd fd;
  };

  const uint64_t bytes_max_;
  std::list<Export> exports_;  // the most recently used first
  uint64_t bytes_ = 0;
};

}  // namespace ckv
