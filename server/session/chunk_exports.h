// Chunks as sealed memory files, to be handed to requesters of this host.

#pragma once

#include <atomic>
#include <cstdint>
#include <list>

#include "absl/status/statusor.h"
#include "store/chunk.h"
#include "store/chunk_table.h"
#include "transport/socket.h"
#include "transport/wire.h"

namespace ckv {

// A chunk's own rows lie in an arena beside others', which no peer may map. What is handed over is
// a copy that holds this chunk only, made when it is first asked for and kept: every later
// hand-over moves no byte. deploy/adr/0012 has why the store itself is not made of such files.
//
// Belongs to the dispatcher's thread, but for Make.
class ChunkExports {
 public:
  // Each is a descriptor, of which a process has 1024 unless it is given more.
  static constexpr size_t kExportCountMax = 256;

  // All copies together; the least recently used go first. Zero: nothing is handed over.
  explicit ChunkExports(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // The copy's descriptor, or -1. The caller holds a pin of the chunk.
  int Find(ChunkLocator chunk);

  // Whether a copy of this chunk may be made.
  //   ResourceExhausted   it is larger than all copies together may be.
  absl::Status CheckRoom(const Chunk& chunk) const;

  // Copies and seals, and holds the copy against the chunk's checksums. Any thread.
  //   ResourceExhausted   no memory or no descriptor.
  //   DataLoss            a layer's rows are not what was put.
  //   Cancelled           `stop` was set.
  static absl::StatusOr<UniqueFd> Make(const Chunk& chunk, const std::atomic<bool>& stop);

  // Keeps it, and returns its descriptor. Copies of chunks that `table` dropped go first.
  int Insert(ChunkLocator chunk, uint64_t bytes, UniqueFd fd, ChunkTable& table);

  static MappedLayout LayoutOf(const Chunk& chunk);
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
