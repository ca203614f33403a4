// The local row cache of one simulated requester: which chunks are worth a copy, and which are
// evicted for them.
//
// Policy auto decides as the product's PrefetchPlan (client/prefetch/prefetch_plan.h), with its
// PrefetchRule and PrefetchQueue themselves. Each chunk is a range. A step reports what routing it
// lost, and the rule answers when to prefetch. A new chunk evicts those that save less time than it
// promises. PrefetchPlan needs contexts, memory and threads, so its few lines of accounting are
// repeated here. It decides after each step; the product waits until a decision may change.
//
// Policies fetch and local hold the chunks of a context until it ends, as policy `cache` does. The
// chunk that was unused for longest is evicted.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/cost/prefetch_rule.h"
#include "client/prefetch/prefetch_queue.h"
#include "client/simulate/fleet_spec.h"
#include "client/simulate/fleet_view.h"

namespace ckv {

// A context that the requester decodes.
struct FleetWatch {
  std::vector<uint32_t> chunks;  // without those of the requester's own holder
  std::vector<PrefetchRule::UseId> uses;
  bool opened = false;      // the rule has its uses
  bool cached_pays = true;  // if false, its cached rows are not used
  double own_share = 0;     // share of its tokens that the requester's own holder has
  double routed_us = 0;     // time of a step that was all routed; 0 if there was none
  uint32_t steps = 0;       // all of them, for a hint
};

// The copy of a chunk into the cache.
struct FleetCopy {
  uint32_t chunk = 0;
  uint32_t holder = 0;  // from where; not used by kLocal
  Primitive primitive = Primitive::kFetch;
};

// Not thread-safe.
class FleetPrefetch {
 public:
  // kPrefetchFlowsDefault of client/prefetch/prefetcher_tools.h. PrefetchQueue limits those from
  // one holder to one.
  static constexpr uint32_t kFlowsMax = 2;
  // PrefetchPlan's: the cost model's error.
  static constexpr double kModelError = 0.12;

  // All must outlive it.
  FleetPrefetch(const FleetSpec* spec, const FleetPlacement* placement, FleetView* view);

  bool IsCached(uint32_t chunk) const;
  bool AllCached(std::span<const uint32_t> chunks) const;

  // Policies fetch and local: holds the chunks of a context, and queues those that are not cached.
  // Returns false if held chunks leave no room; it then changes nothing.
  bool Hold(std::span<const uint32_t> chunks, double now_s);
  void Release(std::span<const uint32_t> chunks, double now_s);

  // Policy auto: `watch` has made `steps` steps (0 or 1) since the last call, of this cost. Queues
  // chunks that the rule wants in the cache.
  void Update(FleetWatch& watch, uint32_t steps, const FleetStepCost& cost, double now_s);
  void Close(FleetWatch& watch);

  // Returns the next copy to begin, if one may begin now. Makes room for it, and drops copies for
  // which there is none, or which no context needs any more.
  std::optional<FleetCopy> NextCopy(double now_s);
  void EndCopy(const FleetCopy& copy, double now_s);

  // Chunks that became cached or were evicted since the last call, for a digest of the cache.
  struct Change {
    uint32_t chunk = 0;
    bool cached = false;
  };
  std::vector<Change>& changes() { return changes_; }
  uint64_t evictions() const { return evictions_; }

 private:
  enum class State : uint8_t { kNotCached, kQueued, kCopying, kCached };
  struct Entry {
    State state = State::kNotCached;
    uint32_t held = 0, users = 0;
    std::optional<PrefetchRule::UseId> wanted_by;  // the use for which it was queued
    const uint32_t* source = nullptr;
    Primitive primitive = Primitive::kFetch;
    double price_us = 0, saved_us = 0, cached_since_s = 0, last_use_s = 0;
  };
  void Enqueue(uint32_t chunk, Entry& entry, Primitive primitive);
  bool MakeRoom(double now_s);
  void Evict(uint32_t chunk, Entry& entry);
  void Forget(uint32_t chunk);
  static double Worth(const Entry& entry, double now_s);

  const FleetSpec& spec_;
  const FleetPlacement& placement_;
  FleetView& view_;
  const uint64_t capacity_chunks_;
  const bool holds_;  // policies fetch and local
  PrefetchRule rule_;
  PrefetchQueue queue_;
  absl::flat_hash_map<uint32_t, Entry> entries_;
  uint64_t used_chunks_ = 0, held_chunks_ = 0;
  uint32_t copies_ = 0;
  uint64_t evictions_ = 0;
  std::vector<Change> changes_;
};

}  // namespace ckv
