// The local row cache: memory for rows that a requester fetched, up to a limit.
//
//   LocalRowFill fill;                 space for a chunk, reserved before the first byte arrives
//   ... rows arrive in fill.tensor(t) ...
//   store.Commit(std::move(fill))  from now on Find returns the chunk
//
// Rows that are elsewhere on this host are adopted instead, without a copy.
//
// A chunk is stored once, even if several chunk ranges hold it. After its last Release, its rows
// stay and count as used until no call uses them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/context/local_rows.h"
#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

class CachedRows;   // local_row_cache.cc
struct LocalUsage;  // local_row_cache.cc

// Memory of one chunk that is being filled. One thread. Frees its space unless it is committed.
class LocalRowFill {
 public:
  LocalRowFill() = default;
  // For LocalRowCache.
  LocalRowFill(const ChunkId& id, std::shared_ptr<CachedRows> memory)
      : id_(id), memory_(std::move(memory)) {}
  LocalRowFill(LocalRowFill&&) noexcept = default;
  LocalRowFill& operator=(LocalRowFill&&) noexcept = default;

  // Returns tensor t: [token_count][tensor_row_bytes(t)], 64-byte aligned.
  std::span<std::byte> tensor(uint32_t t) const;
  const ChunkId& id() const { return id_; }
  uint64_t bytes() const;
  // Returns the filled memory, for LocalRowCache.
  std::shared_ptr<CachedRows> TakeMemory() && { return std::move(memory_); }

 private:
  ChunkId id_;
  std::shared_ptr<CachedRows> memory_;
};

// Thread-safe. Rows and fills may outlive it.
class LocalRowCache {
 public:
  // The most chunks at once. Each takes two memory mappings, of which Linux allows a process
  // 65,530.
  static constexpr uint32_t kChunkCountMax = 8192;

  explicit LocalRowCache(uint64_t capacity_bytes);
  ~LocalRowCache();

  // Bytes that a chunk takes.
  static uint64_t BytesOf(const Geometry& geometry, uint32_t token_count);

  // Returns the rows of a chunk with this geometry, or null.
  std::shared_ptr<const LocalRows> Find(const ChunkId& id, const Geometry& geometry) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Reserves space for a chunk.
  //   ResourceExhausted   there is not enough until something is evicted and no longer in use; or
  //                       the system has no memory.
  absl::StatusOr<LocalRowFill> Begin(const ChunkId& id, const Geometry& geometry,
                                     uint32_t token_count);
  // Publishes a chunk whose rows have all arrived, and holds it. If the chunk is already published,
  // its existing rows stay.
  void Commit(LocalRowFill fill) ABSL_LOCKS_EXCLUDED(mu_);
  // Publishes rows that are elsewhere on this host, and holds the chunk. They count as `bytes`
  // until the last Release and the end of their last use.
  //   ResourceExhausted   as for Begin.
  absl::Status Adopt(const ChunkId& id, const Geometry& geometry,
                     std::shared_ptr<const LocalRows> rows, uint64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Holds a chunk once more. Returns false if it is not published with this geometry.
  bool Hold(const ChunkId& id, const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends one Hold, Commit or Adopt. The last one removes the chunk. Calls that have its rows
  // continue.
  void Release(const ChunkId& id) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes that one Release of each chunk would free, once no call attends them.
  uint64_t BytesHeldOnce(std::span<const ChunkId> ids) const ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t capacity_bytes() const;
  // Bytes in use: published, evicted but still attended, and being filled.
  uint64_t used_bytes() const;
  uint32_t chunk_count() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the ids of all published chunks, in their order.
  std::vector<ChunkId> ids() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Chunk {
    std::shared_ptr<const LocalRows> rows;
    Geometry geometry;
    uint64_t bytes = 0;
    uint32_t holds = 0;
  };
  absl::Status Take(uint64_t bytes);

  const std::shared_ptr<LocalUsage> usage_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<ChunkId, Chunk> chunks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
