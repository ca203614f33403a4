// An engine's paged cKV cache: blocks of 64 rows in every layer, and the sequences that own them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "attention/partial.h"
#include "proto/geometry.h"
#include "transport/scatter_list.h"

namespace ckv {

// vLLM's block size for MLA: a layer of its cache is [blocks, 64, row].
inline constexpr uint32_t kCacheBlockTokens = 64;
// Slots (block x 64 + row) are int32 in selections and in vLLM's slot mappings.
inline constexpr uint32_t kCacheBlockCountMax = 1u << 24;

using CacheBlock = uint32_t;

struct CacheSequenceId {
  uint64_t value = 0;
  friend bool operator==(CacheSequenceId, CacheSequenceId) = default;
};

class CacheReservation;

// Rows of layers [layer_begin, layer_end) of a model, for tokens of many sequences:
//
//   layer(l)   [block_count][64][row_bytes], 64-byte aligned; rows as in the store: bf16
//              (1152 B for DeepSeek) or fp8_ds_mla (656 B), by the geometry's dtype
//
// Row t of a sequence is row t % 64 of block table[t / 64], in every layer. A row's position is
// stored only in its RoPE band. To make slots match positions, append at the position that
// token_count() returns.
//
// A sequence grows by a reservation. Reserve takes the blocks, the reservation's owner writes the
// rows of every layer, and Commit makes them visible. Before that, neither the table nor
// token_count() of the sequence changes. A reservation destroyed without Commit frees its blocks,
// and the cache is unchanged.
//
// Threads: sequences, tables and free blocks are thread-safe, behind one lock that is never held
// while rows are copied. The rows have no lock. A reservation's rows belong to its owner until
// Commit publishes them. A thread that sees rows in a table or a token count also sees their bytes.
// Committed rows are never written again before their sequence is freed. So any thread may read
// them, even while the last block of the sequence is being extended. Call Free only when no thread
// reads the sequence.
class PagedCache {
 public:
  struct Options {
    uint32_t block_count = 0;  // blocks in every layer; fixed
    uint32_t layer_begin = 0;  // first layer; a pipeline stage has only some layers
    uint32_t layer_end = 0;    // end of the layers; 0 means all of them
    // The memory kind of the engine's tensors, for Over. Into device memory, a fetch scatters rows
    // from where they arrived on this host.
    MemoryKind memory = MemoryKind::kHost;
  };

  // Creates a cache with its own memory. The memory is zeroed, on huge pages if available, and
  // touched when it is first written.
  //   InvalidArgument     the geometry, block_count (not 1 to kCacheBlockCountMax), the layers, or
  //                       a memory kind other than the host's.
  //   ResourceExhausted   there is not enough memory.
  static absl::StatusOr<std::unique_ptr<PagedCache>> Create(const Geometry& geometry,
                                                            const Options& options);
  // Creates a cache over an engine's own tensors, one per layer of block_count x 64 x row_bytes
  // bytes, each 64-byte aligned. They are borrowed and must outlive the cache.
  //   InvalidArgument     as Create; also a wrong number of layers, or a layer of another size or
  //                       alignment.
  static absl::StatusOr<std::unique_ptr<PagedCache>> Over(
      const Geometry& geometry, const Options& options,
      std::span<const std::span<std::byte>> layers);

  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;
  // All reservations must have ended.
  ~PagedCache();

  const Geometry& geometry() const { return geometry_; }
  uint32_t layer_begin() const { return layer_begin_; }
  uint32_t layer_end() const { return layer_begin_ + static_cast<uint32_t>(layers_.size()); }
  uint32_t block_count() const { return block_count_; }
  MemoryKind memory() const { return memory_kind_; }
  uint32_t free_block_count() const ABSL_LOCKS_EXCLUDED(mu_);

  // Starts a new sequence without tokens.
  CacheSequenceId Begin() ABSL_LOCKS_EXCLUDED(mu_);
  // Frees the sequence and its blocks. No thread may read them any more.
  //   NotFound            there is no such sequence.
  //   FailedPrecondition  a reservation for it is in progress.
  absl::Status Free(CacheSequenceId sequence) ABSL_LOCKS_EXCLUDED(mu_);

  // Reserves room for `token_count` more tokens of the sequence, at least 1. Free rows of its last
  // block are used first. The reservation must not outlive the cache.
  //   InvalidArgument     `token_count` is 0.
  //   NotFound            there is no such sequence.
  //   FailedPrecondition  a reservation for it is in progress, because rows are added in order.
  //   ResourceExhausted   too few blocks are free; names how many there are.
  absl::StatusOr<CacheReservation> Reserve(CacheSequenceId sequence, uint64_t token_count)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the number of visible tokens.
  //   NotFound            there is no such sequence.
  absl::StatusOr<uint64_t> token_count(CacheSequenceId sequence) const ABSL_LOCKS_EXCLUDED(mu_);
  // Writes the blocks of the visible tokens to `table`, in order. Reuses the memory of `table`.
  //   NotFound            there is no such sequence.
  absl::Status Table(CacheSequenceId sequence, std::vector<CacheBlock>& table) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns every slot of the layer, in use or not; use it for selections only.
  RowView layer_rows(uint32_t layer) const;
  // Writes the visible rows as few contiguous runs as the blocks allow, in order. Attend the runs
  // one by one and merge: that is as fast as one contiguous span.
  //   NotFound            there is no such sequence.
  absl::Status Runs(CacheSequenceId sequence, uint32_t layer, std::vector<RowView>& runs) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns [block_count][64][row_bytes]; layer_begin() <= layer < layer_end().
  std::span<const std::byte> layer(uint32_t layer) const { return layers_[layer - layer_begin_]; }

 private:
  friend class CacheReservation;

  struct Sequence {
    uint64_t token_count = 0;
    std::vector<CacheBlock> table;
    bool reserved = false;
  };

  PagedCache(const Geometry& geometry, const Options& options);
  absl::StatusOr<const Sequence*> Find(CacheSequenceId sequence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends a reservation: makes its rows visible, or frees its blocks.
  void End(const CacheReservation& reservation, bool commit) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const Geometry geometry_;
  const uint32_t layer_begin_;
  const uint32_t block_count_;
  const MemoryKind memory_kind_;
  std::vector<std::span<std::byte>> layers_;
  std::span<std::byte> memory_;  // mapped by this cache, or empty

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Sequence> sequences_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<CacheBlock> free_ ABSL_GUARDED_BY(mu_);  // a stack: the last is taken next
};

// The rows of a sequence that are being written. Belongs to one thread at a time.
class CacheReservation {
 public:
  CacheReservation(CacheReservation&& other) noexcept;
  CacheReservation& operator=(CacheReservation&&) = delete;
  // Frees the blocks, unless Commit was called.
  ~CacheReservation();

  uint64_t token_count() const { return token_count_; }
  // Returns the layer's memory. table() lists the blocks of the rows. Row t of the reservation is
  // row (row_begin() + t) % 64 of block table()[(row_begin() + t) / 64]. The first block may have
  // visible rows before row_begin().
  std::span<std::byte> layer(uint32_t layer) const;
  std::span<const CacheBlock> table() const { return table_; }
  uint32_t row_begin() const { return row_begin_; }
  // Returns the place of the rows from `token_begin` on, for Splice.
  PagedPlace From(uint32_t layer, uint64_t token_begin) const;
  // Returns the spans of rows [token_begin, token_begin + token_count); adjacent blocks form one
  // span. The list is empty if there are more spans than fit, or if the memory is a device's.
  ScatterList Spans(uint32_t layer, uint64_t token_begin, uint64_t token_count) const;

  // Makes the rows visible. They must have been written in every layer. Call once.
  void Commit() &&;

  // Returns, for errors, "blocks 4 to 7, 9". After 8 ranges, blocks are only counted.
  std::string DescribeBlocks() const;

 private:
  friend class PagedCache;
  CacheReservation() = default;

  PagedCache* cache_ = nullptr;  // null if moved from or ended
  CacheSequenceId sequence_;
  uint64_t token_count_ = 0;
  uint32_t row_begin_ = 0;
  uint32_t new_block_begin_ = 0;  // first new block in table_; earlier ones belong to the sequence
  std::vector<CacheBlock> table_;
};

}  // namespace ckv
