// Keeps copies of chunks in sealed memory files, which requesters on this host map into their
// memory.

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

// A chunk's own rows are in an arena together with other chunks' rows, so no peer may map them. A
// peer gets a copy that contains this chunk only. The copy is made for the first request and kept,
// so later hand-overs copy nothing. deploy/adr/0012 explains why the store itself does not consist
// of memory files.
//
// Used by the dispatcher's thread only, except Make, which any thread may call.
class ChunkExports {
 public:
  // The maximum number of copies. Each takes a file descriptor, and a process may have 1024 by
  // default.
  static constexpr size_t kExportCountMax = 256;

  // `bytes_max` bounds all copies together; the least recently used are dropped first. If zero, no
  // chunk is handed over.
  explicit ChunkExports(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Returns the descriptor of the chunk's copy, or -1 if there is none. The caller must hold a pin
  // of the chunk. The descriptor is valid until the next Insert.
  int Find(ChunkLocator chunk);

  // Checks whether a copy of the chunk may be made.
  //   ResourceExhausted   the chunk is larger than bytes_max.
  absl::Status CheckRoom(const Chunk& chunk) const;

  // Makes a sealed copy and checks it against the chunk's checksums. Takes tens of milliseconds.
  //   ResourceExhausted   there is no memory or no descriptor.
  //   DataLoss            a tensor's rows do not match their checksum.
  //   Cancelled           `stop` was set.
  static absl::StatusOr<UniqueFd> Make(const Chunk& chunk, const std::atomic<bool>& stop);

  // Keeps the copy `fd` and returns its descriptor, valid until the next Insert. Drops copies of
  // chunks that are no longer in `table`. Then drops the least recently used copies until the new
  // one fits.
  int Insert(ChunkLocator chunk, uint64_t bytes, UniqueFd fd, const ChunkTable& table);

  // Returns the size of all copies.
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
