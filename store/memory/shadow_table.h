// Shadows: packed, approximate rows of evicted chunks, in the memory that their exact rows had.
// They answer a request that allows an approximation at once, without a read from disk.
//
//   hot -> evicted -> shadow -> gone        the chunk has its file in every state
//
// An evicted chunk's rows are packed in place (1152 to 656 bytes for DeepSeek), and the memory they
// no longer need is freed. So eviction needs no extra memory. The oldest shadow is removed first.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "proto/geometry.h"
#include "store/memory/arena.h"
#include "store/memory/chunk.h"
#include "store/memory/chunk_table.h"

namespace ckv {

// Packs rows, whose contents are opaque to the store. Immutable, thread-safe.
class ShadowCodec {
 public:
  virtual ~ShadowCodec() = default;
  // Returns the size of a packed row in bytes, less than geometry.row_bytes(), or 0 if rows of this
  // geometry are not packed.
  virtual uint32_t PackedRowBytes(const Geometry& geometry) const = 0;
  // Packs one row into PackedRowBytes(geometry) bytes at `packed`, which may overlap `row` but must
  // not begin after it. Returns false if the row has values that cannot be packed (not finite, or
  // too large).
  virtual bool Pack(const Geometry& geometry, const std::byte* row, std::byte* packed) const = 0;
};

// Packed rows of one chunk, [layer][token][row_bytes], each layer 64-byte aligned. Immutable.
class Shadow {
 public:
  // Packs a chunk's rows in the chunk's own memory. Returns null, and frees the memory, if the rows
  // cannot be packed or no longer match their checksums.
  static std::shared_ptr<const Shadow> Make(Chunk chunk, const ShadowCodec& codec);

  uint32_t token_count() const { return token_count_; }
  uint32_t row_bytes() const { return row_bytes_; }
  const std::byte* layer(uint32_t layer) const {
    return extent_.bytes().data() + layer * layer_stride_bytes_;
  }
  uint64_t bytes() const { return extent_.bytes().size(); }

 private:
  Shadow(Extent extent, uint32_t token_count, uint32_t row_bytes, uint64_t layer_stride_bytes)
      : extent_(std::move(extent)),
        token_count_(token_count),
        row_bytes_(row_bytes),
        layer_stride_bytes_(layer_stride_bytes) {}
  Extent extent_;
  uint32_t token_count_;
  uint32_t row_bytes_;
  uint64_t layer_stride_bytes_;
};

// The shadows of one store's chunks. Thread-safe. A shadow that Find returned stays readable while
// its pointer exists.
class ShadowTable {
 public:
  // Holds at most `bytes_max` bytes of shadows; 0 means none.
  explicit ShadowTable(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  uint64_t bytes_max() const { return bytes_max_; }
  // Adds a shadow and removes the oldest ones to make room. A shadow larger than bytes_max is not
  // kept.
  void Add(ChunkLocator chunk, std::shared_ptr<const Shadow> shadow) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the chunk's shadow, or null if there is none.
  std::shared_ptr<const Shadow> Find(ChunkLocator chunk) const ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the chunk's shadow, because the chunk is hot again or dropped. Does nothing if it has
  // none.
  void Remove(ChunkLocator chunk) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the oldest shadow. Returns false if there is none.
  bool RemoveOldest() ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    uint32_t generation = 0;
    uint64_t serial = 0;
    std::shared_ptr<const Shadow> shadow;
  };
  // Refers to a slot's entry with this serial, unless the entry was replaced since.
  struct Age {
    uint32_t slot = 0;
    uint64_t serial = 0;
  };
  using Entries = absl::flat_hash_map<uint32_t, Entry>;
  void Erase(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool EraseOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t bytes_max_;
  mutable absl::Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);       // by the chunk's slot
  std::deque<Age> ages_ ABSL_GUARDED_BY(mu_);  // oldest first; includes removed entries
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_serial_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv
