// Decides when to prefetch chunks that are routed: a threshold of lost time, learned from ended
// uses.
//
// An item is a chunk range that is prefetched as a whole. A use is a context's time with an item,
// from open to close. A routed step loses time compared to a step whose rows are cached locally. A
// prefetch costs its price once. The number of future steps is unknown. So an item is routed until
// it has lost a threshold, and is then prefetched.
//
//   expert e          routes until the lost time reaches factor(e) x price, then prefetches.
//                     Factors are 0 (at once), 1/16, 1/8, 1/4, 1/2, 1, 2, 8, never
//   the hint's        prefetches at once if the hints of the open uses, plus half of the item's
//                     losses in ended uses, exceed the price. Otherwise waits until the open uses
//                     have lost their hints and the price
//   a use that ends   would have lost t if it had been routed throughout. Each expert is charged
//                     its own cost: t if below its threshold, else the rest of the threshold and
//                     the price. An expert whose row cache has the item is charged nothing
//   losses            of each expert, multiplied by 1 - 1/800 a use
//   the leader        has the least loss. It decides for the uses that open next. Ties favor the
//                     expert nearest to factor 1
//   rent or buy       factor 1 decides for the first 50 uses without a hint; the hint's expert
//                     decides for the first 50 with one. Factor 1 also decides while the leaders'
//                     own losses exceed 1.05 x its own. It never pays more than twice what a
//                     clairvoyant pays, because it prefetches only after routing has cost the price
//
// Each expert simulates its own local row cache. The simulated cache has the same capacity, and
// evicts the item unused for longest. So the value of a threshold includes the items that it
// evicts.
//
// tests/bench/prefetch/ has a public trace, with prices from 2 to 6,000 steps. This rule pays 1.00
// to 1.02 of the best fixed threshold there. It pays 1.06 of the best of each half if the uses
// change tenfold half-way. Losses that fade over 4,000 uses pay .5 % less at first, but 1.16 after
// the change. An adversary who sees every threshold makes a leader alone pay 3.5 x the clairvoyant.
// With factor 1 as its guard it pays 2.11 x. The hint's expert counts half of the ended losses:
// with all of them it pays 2 % more on the trace.
//
// Sources: ski rental, Karlin et al., "Competitive snoopy caching" (1988); follow the leader of
// fading losses, Herbster and Warmuth, "Tracking the best expert" (1998).

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/base/clock.h"

namespace ckv {

// The cost of prefetching an item: time, and space in the local row cache.
struct PrefetchPrice {
  double us = 0;
  uint64_t bytes = 0;
};

struct PrefetchRuleOptions {
  // The size of the local row cache. Larger items are never prefetched.
  uint64_t capacity_bytes = 0;
  // The most items to track. Beyond that, the item unused for longest is dropped.
  uint32_t item_count_max = 1u << 16;
};

// Whether to prefetch for a use, and if not, why.
enum class PrefetchVerdict : uint8_t {
  kPrefetch = 0,
  kBelowThreshold,  // the item has not lost enough yet
  kNever,           // uses like this have not been worth a prefetch
  kTooLarge,        // larger than the local row cache
  kTooSoon,         // evicted, and its last prefetch has not paid for itself yet
  kCached,          // cached locally, or being prefetched
};

// Not thread-safe. Not on the path of queries: a use takes about 1 us to close.
class PrefetchRule {
 public:
  // Identifies an item: equal keys are one item.
  using Key = uint64_t;
  using UseId = uint32_t;

  static constexpr std::array<double, 9> kFactors = {0, 1.0 / 16, 1.0 / 8, 0.25, 0.5,
                                                     1, 2,        8,       1e30};
  // The hint's expert follows them.
  static constexpr size_t kExpertCount = kFactors.size() + 1;
  static constexpr size_t kRentOrBuy = 5;
  static constexpr size_t kHint = kFactors.size();
  static constexpr uint32_t kLearnUseCount = 50;
  static constexpr double kFadeUses = 800;
  static constexpr double kGuard = 1.05;
  // The most classes that learn separately; the others share one.
  static constexpr uint32_t kClassCountMax = 256;

  explicit PrefetchRule(const PrefetchRuleOptions& options);
  ~PrefetchRule();

  // Opens a use of an item. Uses of one class learn together: those of a corpus, for example. A
  // class of fewer than 50 uses relies on the losses of all uses. `hint_us` is the time that the
  // use will lose if it is routed throughout, if its owner knows. An item keeps the size it first
  // had.
  UseId Open(Key item, std::string_view use_class, const PrefetchPrice& price,
             std::optional<double> hint_us, Instant now);
  // Adds time that the use lost, or would have lost if its item were not cached locally. Returns
  // whether to prefetch the item now.
  PrefetchVerdict Lose(UseId use, double us, Instant now);
  // Returns the time that the use may still lose before the verdict is to prefetch. Returns 0 if
  // that is the verdict, and infinity if no loss will make it so.
  double LeftUs(UseId use, Instant now) const;
  PrefetchVerdict Verdict(UseId use, Instant now) const;
  // Returns true if the hint's expert decides for the use.
  bool ByHint(UseId use) const { return uses_[use].expert == kHint; }
  // Sets the price of the item of a use, once its constants are known better.
  void SetPrice(UseId use, const PrefetchPrice& price);
  void Close(UseId use);

  // Reports that the item of a use is cached locally, which the rule did not know. It was
  // prefetched for another item, or the rule had dropped it.
  void CameLocal(UseId use) { items_[uses_[use].item]->cached = true; }
  // Report that the item of a use is being prefetched, or that its prefetch failed. A prefetch that
  // succeeds needs no call.
  void PrefetchBegan(UseId use, Instant now);
  void PrefetchFailed(Key item);
  // Reports that the item is no longer cached locally.
  void Evicted(Key item);

  struct Stats {
    uint64_t uses = 0;     // closed
    double routed_us = 0;  // lost by routing
    double saved_us = 0;   // not lost, because the rows were cached locally
    double paid_us = 0;    // prices paid
  };
  const Stats& stats() const { return stats_; }
  // Returns the expert that decides for uses of a class that open now.
  size_t Leader(std::string_view use_class, bool hinted) const;

 private:
  // The simulated row cache of one expert, and what it has lost on items that it routes.
  struct Ghost {
    uint64_t free_bytes = 0;
    uint32_t newest = kNone, oldest = kNone;
  };
  struct GhostEntry {
    float lost_us = 0;
    bool cached = false;
    uint32_t newer = 0, older = 0;
  };
  struct Item {
    Key key = 0;
    PrefetchPrice price;
    double lost_us = 0;        // since it was last cached locally
    double ended_lost_us = 0;  // the part of it lost by ended uses
    double hints_us = 0;       // hints of the open uses
    bool cached = false;
    uint32_t open_count = 0;
    Instant pay_back{};                  // when the last prefetch has paid for itself
    std::list<uint32_t>::iterator idle;  // in idle_, while no use is open
    std::array<GhostEntry, kExpertCount> ghosts;
  };
  struct Class {
    std::array<double, kExpertCount> losses{};
    double own = 0;
    uint64_t use_count = 0;
  };
  struct Use {
    uint32_t item = kNone;
    uint32_t use_class = 0;
    double hint_us = 0;
    double hints_us = 0;  // the item's, when this use opened
    size_t expert = kRentOrBuy;
    Instant opened{};
    double total_us = 0;   // as if routed throughout
    double routed_us = 0;  // actually
    double paid_us = 0;
  };
  static constexpr uint32_t kNone = 0xffffffff;

  uint32_t FindItem(Key key, uint64_t bytes);
  void DropOne();
  uint32_t FindClass(std::string_view name, bool hinted);
  size_t LeaderOf(const Class& of) const;
  // Returns the lost time at which an expert prefetches an item for a use.
  static double ThresholdUs(size_t expert, const Item& item, const Use& use, double ended_lost_us);
  void Observe(const Use& use);
  // Returns an expert's cost of a use, by its own simulated row cache.
  double Charge(size_t expert, uint32_t item, const Use& use);
  void GhostTouch(size_t expert, uint32_t item);
  void GhostInsert(size_t expert, uint32_t item);
  void GhostRemove(size_t expert, uint32_t item);

  const PrefetchRuleOptions options_;
  std::vector<std::unique_ptr<Item>> items_;
  std::vector<uint32_t> free_items_;
  absl::flat_hash_map<Key, uint32_t> item_of_key_;
  std::list<uint32_t> idle_;  // items without an open use; unused for longest first
  std::vector<Use> uses_;
  std::vector<uint32_t> free_uses_;
  std::array<Ghost, kExpertCount> ghosts_;
  // Two for each name: one without hints, one with hints. The first two learn from all uses.
  std::vector<Class> classes_;
  absl::flat_hash_map<std::string, uint32_t> class_of_name_;
  Stats stats_;
};

}  // namespace ckv
