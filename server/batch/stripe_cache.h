// Caches stripes of chunks on disk that selections read, in memory, for later selections.
//
// A decode step selects some rows of each layer, and the next step selects mostly the same rows.
// DeepSeek V3.2 selects 2048 rows of 1152 bytes in each of 61 layers:
//
//   adjacent rows        64 stripes a layer, 2.3 MiB;  137 MiB a step
//   rows far apart     2048 stripes a layer,  72 MiB;  4.3 GiB a step
//
// If a fraction r of the stripes was also in the previous step, a step reads the fraction 1 - r of
// these bytes from disk. That requires room for the stripes of a whole step. Steps visit the layers
// in order, so with less room the oldest stripe is always the one needed next.

#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/batch/sparse_layer.h"
#include "store/chunk_store.h"

namespace ckv {

// The default limit of a cache, in addition to store.capacity: 3 % of it. For a store of 64 GiB it
// is 1.9 GiB: a step of 14 sequences with adjacent rows.
constexpr uint64_t StripeBytesMax(uint64_t capacity_bytes) { return capacity_bytes / 100 * 3; }

// Thread-safe, except Missing and Fill. No function holds the lock while it waits for the disk.
//
// A stripe is named by its chunk's locator, its layer and its number. A locator never refers to
// another chunk. So the rows of a chunk that was dropped, replaced or quarantined are not found by
// a new locator. A caller with an old locator must check at the table whether it is stale
// (PinHandle does).
class StripeCache {
  struct Layer;

 public:
  // `bytes_max` limits the bytes in memory. A stripe counts every page that contains some of it.
  explicit StripeCache(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  // Every hold must have been destroyed.
  ~StripeCache();
  StripeCache(const StripeCache&) = delete;
  StripeCache& operator=(const StripeCache&) = delete;

  // The right to read stripes of a layer: while a hold exists, no stripe of its layer is evicted.
  // Movable; any thread may destroy it.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept;
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { Release(); }

    bool held() const { return layer_ != nullptr; }
    // Valid if held(): [token_count][row_bytes]. Use only rows of the requested stripes.
    const std::byte* rows() const;
    uint32_t token_count() const;
    // Number of requested stripes.
    uint32_t stripe_count() const { return stripe_count_; }

   private:
    friend class StripeCache;
    Hold(StripeCache* cache, Layer* layer, uint32_t stripe_count)
        : cache_(cache), layer_(layer), stripe_count_(stripe_count) {}
    void Release();
    StripeCache* cache_ = nullptr;
    Layer* layer_ = nullptr;
    uint32_t stripe_count_ = 0;
  };

  // Holds the layer if every stripe with a row of `indices` is in memory, and makes these stripes
  // the newest. Otherwise returns an empty hold. Indices outside the chunk select nothing.
  // Allocates nothing.
  Hold Find(ChunkLocator chunk, uint32_t layer, std::span<const int32_t> indices)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns how many of `stripes` are not in memory. One thread must call both Missing and Fill, so
  // the next Fill reads exactly this many.
  size_t Missing(ChunkLocator chunk, uint32_t layer, std::span<const uint32_t> stripes) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Holds the layer with `stripes` (ascending, at least one). Reads those that are not in memory,
  // and makes room by evicting the oldest stripes of layers that are not held. Waits for the disk.
  //   ResourceExhausted   the held layers leave no room. Nothing was read.
  //   and ChunkRows::Read's errors.
  absl::StatusOr<Hold> Fill(ChunkLocator chunk, const ChunkRows& rows, uint32_t layer,
                            std::span<const uint32_t> stripes) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes in memory, including those being read.
  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);

  // The limit of layers with stripes in the cache. Each is one memory mapping of the process, and
  // Linux allows 65530 (vm.max_map_count).
  static constexpr size_t kLayerCountMax = 1u << 14;

 private:
  struct Key {
    uint32_t slot, generation, layer;
    template <typename H>
    friend H AbslHashValue(H h, const Key& key) {
      return H::combine(std::move(h), key.slot, key.generation, key.layer);
    }
    bool operator==(const Key&) const = default;
  };
  struct Name {
    Layer* layer;
    uint32_t stripe;
  };
  struct Stripe {
    bool here = false;
    uint64_t used = 0;                // the value of uses_ at its last use
    std::list<Name>::iterator place;  // in order_, if `here`
  };
  // The cache's mutex guards everything except the memory. A layer is in the cache only while it
  // has a stripe.
  struct Layer {
    Layer(const Key& key, SparseLayer memory);
    const Key key;
    SparseLayer memory;
    std::vector<Stripe> stripes;
    uint32_t here_count = 0;
    uint32_t hold_count = 0;
  };
  // Memory of evicted stripes, to be returned to the system without the lock.
  struct Garbage {
    std::vector<std::pair<SparseLayer*, PageRange>> pages;
    std::vector<std::unique_ptr<Layer>> layers;
    void Free();
  };
  // The stripes that a Fill has to read, and the room that was made for them.
  struct Plan {
    Layer* layer = nullptr;  // null if no stripe of the layer is here
    std::vector<uint32_t> missing;
    uint64_t bytes = 0;
    bool fits = false;
    Garbage garbage;
  };

  Plan MakePlan(const Key& key, const LayerShape& shape, std::span<const uint32_t> stripes)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool MakeRoom(uint64_t bytes, bool new_layer, Garbage& garbage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::list<Name>::iterator Evict(std::list<Name>::iterator at, Garbage& garbage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Hold Publish(Plan& plan, std::unique_ptr<Layer> made, uint32_t stripe_count)
      ABSL_LOCKS_EXCLUDED(mu_);
  void GiveUp(Plan& plan) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the stripe the newest. Returns false if the same use has already done so.
  bool Use(Stripe& stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Layer* LayerOf(const Key& key) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The pages of a stripe that is not here, except those shared with stripes that are.
  static PageRange PagesAlone(const Layer& layer, uint32_t stripe);

  const uint64_t bytes_max_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<Key, std::unique_ptr<Layer>> layers_ ABSL_GUARDED_BY(mu_);
  std::list<Name> order_ ABSL_GUARDED_BY(mu_);  // stripes that are here, newest first
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv
