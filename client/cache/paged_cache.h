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
//   layer(l)   [block_count][64][row_bytes], 64-byte aligned; rows as the store has them: bf16
//              (1152 B for DeepSeek) or fp8_ds_mla (656 B), by the geometry's dtype
//
// Row t of a sequence is row t % 64 of block table[t / 64], in every layer. Which position a row
// stands at is in its RoPE band only: whoever wants slots to follow positions appends at the
// position that token_count() says.
//
// A sequence grows by a reservation: Reserve takes the blocks, the owner of the reservation writes
// the rows of every layer, Commit makes them visible. Until then, nobody is shown them: neither the
// table nor token_count() of the sequence has changed. A reservation that goes without a Commit
// gives its blocks back, and the cache is as it was.
//
// Threads: the book-keeping (sequences, tables, free blocks) is thread-safe, behind one lock that
// is never held while rows are copied. The rows have no lock. Those of a reservation belong to its
// owner until Commit, which publishes them: a thread that sees them in a table or a token count
// sees their bytes. Committed rows are never written again before their sequence is freed, so any
// thread may read them, while the last block of a sequence is being extended too. Free is for
// whoever knows that nobody reads the sequence any more.
class PagedCache {
 public:
  struct Options {
    uint32_t block_count = 0;  // in every layer; fixed
    uint32_t layer_begin = 0;  // a stage of a pipeline has some of the layers
    uint32_t layer_end = 0;    // 0: all of the geometry's
  };

  // Memory of the cache's own: zeroed, on huge pages where there are any; touched when it is first
  // written.
  //   InvalidArgument     the geometry, block_count (1 to kCacheBlockCountMax) or the layers.
  //   ResourceExhausted   the memory cannot be had.
  static absl::StatusOr<std::unique_ptr<PagedCache>> Create(const Geometry& geometry,
                                                            const Options& options);
  // Over an engine's own tensors, one of block_count x 64 x row_bytes a layer, each 64-byte
  // aligned; borrowed, and must outlive the cache.
  //   InvalidArgument     also: another number of layers, or one of another size or alignment.
  static absl::StatusOr<std::unique_ptr<PagedCache>> Over(
      const Geometry& geometry, const Options& options,
      std::span<const std::span<std::byte>> layers);

  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;
  // Every reservation has gone.
  ~PagedCache();

  const Geometry& geometry() const { return geometry_; }
  uint32_t layer_begin() const { return layer_begin_; }
  uint32_t layer_end() const { return layer_begin_ + static_cast<uint32_t>(layers_.size()); }
  uint32_t block_count() const { return block_count_; }
  uint32_t free_block_count() const ABSL_LOCKS_EXCLUDED(mu_);

  // A new sequence of no tokens.
  CacheSequenceId Begin() ABSL_LOCKS_EXCLUDED(mu_);
  // Gives back its blocks; nobody reads them any more.
  //   NotFound            no such sequence.
  //   FailedPrecondition  a reservation for it is in progress.
  absl::Status Free(CacheSequenceId sequence) ABSL_LOCKS_EXCLUDED(mu_);

  // Room for `token_count` more tokens of the sequence, at least 1. What is left of its last block
  // is used first. The reservation must not outlive the cache.
  //   InvalidArgument     no tokens.
  //   NotFound            no such sequence.
  //   FailedPrecondition  one is in progress for it: rows come in order.
  //   ResourceExhausted   too few free blocks; says how many there are.
  absl::StatusOr<CacheReservation> Reserve(CacheSequenceId sequence, uint64_t token_count)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Visible tokens.
  //   NotFound            no such sequence.
  absl::StatusOr<uint64_t> token_count(CacheSequenceId sequence) const ABSL_LOCKS_EXCLUDED(mu_);
  // The blocks of the visible tokens, in order; `table` keeps its memory between calls.
  //   NotFound            no such sequence.
  absl::Status Table(CacheSequenceId sequence, std::vector<CacheBlock>& table) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // For attention. The visible rows as slots of a layer, which are indices into layer_rows(): a
  // Selection with k = slots.size(), the same for all layers, attends them in order, with the bits
  // of the same rows in one piece.
  //   NotFound            no such sequence.
  absl::Status Slots(CacheSequenceId sequence, std::vector<int32_t>& slots) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Every slot of the layer, in use or not: for selections only.
  RowView layer_rows(uint32_t layer) const;
  // Or as few dense pieces as the blocks allow, in order: attended one by one and merged, at the
  // speed of dense rows.
  //   NotFound            no such sequence.
  absl::Status Runs(CacheSequenceId sequence, uint32_t layer, std::vector<RowView>& runs) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // [block_count][64][row_bytes]; layer_begin() <= layer < layer_end().
  std::span<const std::byte> layer(uint32_t layer) const { return layers_[layer - layer_begin_]; }

 private:
  friend class CacheReservation;

  struct Sequence {
    uint64_t token_count = 0;
    std::vector<CacheBlock> table;
    bool reserved = false;
  };

  PagedCache(const Geometry& geometry, uint32_t layer_begin, uint32_t block_count);
  absl::StatusOr<const Sequence*> Find(CacheSequenceId sequence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of a reservation: its rows become visible, or its blocks free.
  void End(const CacheReservation& reservation, bool commit) ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const Geometry geometry_;
  const uint32_t layer_begin_;
  const uint32_t block_count_;
  std::vector<std::span<std::byte>> layers_;
  std::span<std::byte> memory_;  // mapped here, or empty

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Sequence> sequences_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<CacheBlock> free_ ABSL_GUARDED_BY(mu_);  // a stack: the last is taken next
};

// Rows of a sequence that are being written. Belongs to one thread at a time.
class CacheReservation {
 public:
  CacheReservation(CacheReservation&& other) noexcept;
  CacheReservation& operator=(CacheReservation&&) = delete;
  // Without a Commit, the blocks go back.
  ~CacheReservation();

  uint64_t token_count() const { return token_count_; }
  // The layer's memory, and the blocks of the rows: row t of the reservation is row
  // (row_begin() + t) % 64 of block table()[(row_begin() + t) / 64]. The first block may have
  // visible rows before row_begin().
  std::span<std::byte> layer(uint32_t layer) const;
  std::span<const CacheBlock> table() const { return table_; }
  uint32_t row_begin() const { return row_begin_; }
  // Where rows [token_begin, token_begin + token_count) lie: neighbouring blocks are one piece.
  // None where they lie in more pieces than fit.
  ScatterList Pieces(uint32_t layer, uint64_t token_begin, uint64_t token_count) const;

  // The rows are there, in every layer: shows them. Once.
  void Commit() &&;

  // "blocks 4 to 7, 9": for errors; what lies past 8 runs is counted.
  std::string DescribeBlocks() const;

 private:
  friend class PagedCache;
  CacheReservation() = default;

  PagedCache* cache_ = nullptr;  // null: moved from, or ended
  CacheSequenceId sequence_;
  uint64_t token_count_ = 0;
  uint32_t row_begin_ = 0;
  uint32_t new_block_begin_ = 0;  // in table_: those before are the sequence's already
  std::vector<CacheBlock> table_;
};

}  // namespace ckv
