// When to pull what is routed: a threshold of lost time, learned from the uses that ended.
//
// An item is what is pulled as one: a run of chunks. A use is a context's time with an item, from
// open to close. A routed step loses time against a step whose rows are near. A pull costs its
// price once. Nobody says how many steps will come. So an item is routed until it has lost a
// threshold, and is then pulled.
//
//   expert e          routes until the time lost reaches factor(e) x price, then pulls. Factors
//                     are 0 (pull at once), 1/16, 1/8, 1/4, 1/2, 1, 2, 8, never
//   the hint's        pulls at once if the hints of the open uses, and half of the item's losses in
//                     ended uses, are above the price. Else it waits until the open uses have lost
//                     their hints and the price
//   a use that ends   lost t if it had been routed throughout. Each expert is charged its own cost:
//                     t below its threshold, else the rest of the threshold and the price. It is
//                     charged nothing if its near store has the item
//   losses            of each expert, multiplied by 1 - 1/800 a use
//   the leader        has the least loss. It decides for the uses that open next. Ties go to the
//                     expert nearest to factor 1
//   rent or buy       factor 1 decides for the first 50 uses. It also decides while the leaders'
//   own
//                     losses are above 1.05 x its own. It never pays more than twice what a
//                     clairvoyant pays, because it pulls only where routing has cost the price
//
// Each expert keeps a near store of its own on paper. It has the same room, and evicts the item
// unused for longest. So the worth of a threshold counts the items that it pushes out.
//
// tests/bench/act/ has a public trace, with prices from 2 to 6,000 steps. This rule pays 1.00 to
// 1.02 of the best fixed threshold there. It pays 1.06 of the best of each half if the uses change
// tenfold half-way. Losses that fade over 4,000 uses pay .5 % less at first, but 1.16 after the
// change. An adversary who sees every threshold makes a leader alone pay 3.5 x the clairvoyant.
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

// The cost of a pull of an item: time, and room in the near store.
struct PullPrice {
  double us = 0;
  uint64_t bytes = 0;
};

struct PullRuleOptions {
  // The near store's size. Items larger than this are never pulled.
  uint64_t room_bytes = 0;
  // Items that are remembered. Beyond it, the one unused for longest is forgotten.
  uint32_t item_count_max = 1u << 16;
};

// Why a use is not told to pull, or that it is.
enum class PullVerdict : uint8_t {
  kPull = 0,
  kBelowThreshold,  // it has not lost enough yet
  kNever,           // uses like this have not been worth a pull
  kNoRoom,          // larger than the near store
  kTooSoon,         // was pulled and evicted, and that pull has not paid for itself yet
  kNear,            // is near, or on its way
};
inline constexpr size_t kPullVerdictCount = 6;
std::string_view PullVerdictName(PullVerdict verdict);

// Not thread-safe. Off the path of queries: a use takes about 1 us to close.
class PullRule {
 public:
  // Names an item; equal keys are one item.
  using Key = uint64_t;
  using UseId = uint32_t;

  static constexpr std::array<double, 9> kFactors = {0, 1.0 / 16, 1.0 / 8, 0.25, 0.5,
                                                     1, 2,        8,       1e30};
  // The hint's expert comes behind them.
  static constexpr size_t kExpertCount = kFactors.size() + 1;
  static constexpr size_t kRentOrBuy = 5;
  static constexpr size_t kHint = kFactors.size();
  static constexpr uint32_t kLearnUseCount = 50;
  static constexpr double kFadeUses = 800;
  static constexpr double kGuard = 1.05;
  // Classes that learn by themselves; the others share one.
  static constexpr uint32_t kClassCountMax = 256;

  explicit PullRule(const PullRuleOptions& options);
  ~PullRule();

  // Opens a use of an item. Uses of one class learn together: a corpus, say. A class of fewer than
  // 50 uses goes by what all uses taught. `hint_us` is the time that the use will lose if it is
  // routed throughout, if its owner knows. An item keeps the size it first had.
  UseId Open(Key item, std::string_view use_class, const PullPrice& price,
             std::optional<double> hint_us, Instant now);
  // Counts time that the use lost, or would have lost if its item were not near, and tells whether
  // to pull the item now.
  PullVerdict Lose(UseId use, double us, Instant now);
  // The time that the use may still lose before the verdict is to pull. It is 0 if that is the
  // verdict, and infinity if no loss will make it so.
  double LeftUs(UseId use, Instant now) const;
  PullVerdict Verdict(UseId use, Instant now) const;
  // Whether the hint's expert decides for the use.
  bool ByHint(UseId use) const { return uses_[use].expert == kHint; }
  // The new price of the item of a use, once its constants are known better.
  void SetPrice(UseId use, const PullPrice& price);
  void Close(UseId use);

  // The item of a use is near, which the rule did not know. It was pulled for another item's sake,
  // or the rule had forgotten it.
  void CameNear(UseId use) { items_[uses_[use].item]->near = true; }
  // The item of a use is being pulled, or its pull failed. A pull that ends well needs no call.
  void Pulling(UseId use, Instant now);
  void PullFailed(Key item);
  // The item is no longer near.
  void Evicted(Key item);

  struct Stats {
    uint64_t uses = 0;     // closed
    double routed_us = 0;  // lost by routing
    double saved_us = 0;   // that routing would have lost, but for near rows
    double pulled_us = 0;  // prices paid
  };
  const Stats& stats() const { return stats_; }
  // The expert that decides for uses of a class that open now.
  size_t Leader(std::string_view use_class, bool hinted) const;

 private:
  // The near store of one expert, on paper, and what it has lost of items that it routes.
  struct Ghost {
    uint64_t room_left = 0;
    uint32_t newest = kNone, oldest = kNone;
  };
  struct GhostEntry {
    float lost_us = 0;
    bool near = false;
    uint32_t newer = 0, older = 0;
  };
  struct Item {
    Key key = 0;
    PullPrice price;
    double lost_us = 0;        // since it was last near
    double ended_lost_us = 0;  // the part of it that uses lost that have ended
    double hints_us = 0;       // hints of the open uses
    bool near = false;
    uint32_t open_count = 0;
    Instant pay_back{};                  // when the last pull has paid for itself
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
    double routed_us = 0;  // really
    double paid_us = 0;
  };
  static constexpr uint32_t kNone = 0xffffffff;

  uint32_t FindItem(Key key, uint64_t bytes);
  void ForgetOne();
  uint32_t FindClass(std::string_view name, bool hinted);
  size_t LeaderOf(const Class& of) const;
  // The lost time at which an expert pulls an item for a use.
  static double ThresholdUs(size_t expert, const Item& item, const Use& use, double ended_lost_us);
  void Learn(const Use& use);
  // An expert's cost of a use, by its own near store.
  double Charge(size_t expert, uint32_t item, const Use& use);
  void GhostTouch(size_t expert, uint32_t item);
  void GhostInsert(size_t expert, uint32_t item);
  void GhostRemove(size_t expert, uint32_t item);

  const PullRuleOptions options_;
  std::vector<std::unique_ptr<Item>> items_;
  std::vector<uint32_t> free_items_;
  absl::flat_hash_map<Key, uint32_t> item_of_key_;
  std::list<uint32_t> idle_;  // without an open use; unused for longest first
  std::vector<Use> uses_;
  std::vector<uint32_t> free_uses_;
  std::array<Ghost, kExpertCount> ghosts_;
  // Two for each name: without hints, with. The first two learn from all uses.
  std::vector<Class> classes_;
  absl::flat_hash_map<std::string, uint32_t> class_of_name_;
  Stats stats_;
};

}  // namespace ckv
