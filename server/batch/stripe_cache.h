// Stripes of chunks on disk that selections read, kept in memory for the next selections.
//
// A decode step selects some rows of each layer, and the next step selects mostly the same ones.
// DeepSeek V3.2 selects 2048 rows of 1152 bytes in each of 61 layers:
//
//   rows side by side    64 stripes a layer, 2.3 MiB;  137 MiB a step
//   rows far apart     2048 stripes a layer,  72 MiB;  4.3 GiB a step
//
// If a share r of the stripes is the last step's, a step reads the share 1 - r of this from disk.
// That holds only if the stripes of a whole step have room. Layers come in turn: with less room the
// oldest stripe is always the one that is needed next.

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

// The limit of a cache beside store.capacity, unless set: 3 % of it. A store of 64 GiB keeps 1.9
// GiB, a step of 14 sequences whose rows lie side by side.
constexpr uint64_t StripeBytesMax(uint64_t capacity_bytes) { return capacity_bytes / 100 * 3; }

// Thread-safe, except Missing and Fill. Nothing here waits for the disk while it holds the lock.
//
// A stripe is named by its chunk's locator, its layer and its number. A locator never names another
// chunk, so rows of a chunk that was dropped, replaced or quarantined are not found by a new
// locator. Who finds stripes by an old one must ask the table whether it is stale (PinHandle does).
class StripeCache {
  struct Layer;

 public:
  // The limit of bytes in memory, in whole pages: a stripe counts every page that it touches.
  explicit StripeCache(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  // Every hold must be gone.
  ~StripeCache();
  StripeCache(const StripeCache&) = delete;
  StripeCache& operator=(const StripeCache&) = delete;

  // The right to read stripes of a layer: while it lives, no stripe of this layer is evicted.
  // Movable; any thread may destroy it.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept;
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { Release(); }

    bool held() const { return layer_ != nullptr; }
    // Valid if held(): [token_count][row_bytes]. Use only rows of the stripes that were asked for.
    const std::byte* rows() const;
    uint32_t token_count() const;
    // Stripes that were asked for.
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

  // Holds the layer if every stripe with a row of `indices` is in memory; they are the newest then.
  // Else the hold is empty. Indices outside the chunk select nothing. It allocates nothing.
  Hold Find(ChunkLocator chunk, uint32_t layer, std::span<const int32_t> indices)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns how many of `stripes` are not in memory. One thread calls Missing and Fill, so the next
  // Fill reads as many.
  size_t Missing(ChunkLocator chunk, uint32_t layer, std::span<const uint32_t> stripes) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Holds the layer with `stripes` (ascending, at least one). Reads those that are not in memory,
  // and evicts the oldest stripes of layers that nobody holds to make room. Waits for the disk.
  //   ResourceExhausted   there is no room beside what is held. Nothing was read.
  //   and ChunkRows::Read's errors.
  absl::StatusOr<Hold> Fill(ChunkLocator chunk, const ChunkRows& rows, uint32_t layer,
                            std::span<const uint32_t> stripes) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes in memory, and being read.
  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);

  // The limit of layers that have stripes here. Each is a mapping of the process, of which Linux
  // allows 65530 (vm.max_map_count).
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
    std::list<Name>::iterator place;  // in order_, if it is here
  };
  // All but the memory is guarded by the cache's mutex. A layer is here only with a stripe.
  struct Layer {
    Layer(const Key& key, SparseLayer memory);
    const Key key;
    SparseLayer memory;
    std::vector<Stripe> stripes;
    uint32_t here_count = 0;
    uint32_t hold_count = 0;
  };
  // Memory of evicted stripes, given back to the system without the lock.
  struct Garbage {
    std::vector<std::pair<SparseLayer*, PageRange>> pages;
    std::vector<std::unique_ptr<Layer>> layers;
    void Free();
  };
  // The stripes that a Fill has to read, and the room that was made for them.
  struct Plan {
    Layer* layer = nullptr;  // null if no stripe of it is here
    std::vector<uint32_t> missing;
    uint64_t bytes = 0;
    bool has_room = false;
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
  // Makes the stripe the newest. Returns false if it is already, by the same use.
  bool Use(Stripe& stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Layer* LayerOf(const Key& key) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The pages of a stripe that is not here, without those that it shares with stripes that are.
  static PageRange PagesAlone(const Layer& layer, uint32_t stripe);

  const uint64_t bytes_max_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<Key, std::unique_ptr<Layer>> layers_ ABSL_GUARDED_BY(mu_);
  std::list<Name> order_ ABSL_GUARDED_BY(mu_);  // stripes that are here, the newest first
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv
