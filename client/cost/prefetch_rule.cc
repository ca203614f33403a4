// The online algorithm behind prefetch_rule.h. A use has these steps, on the thread that owns the
// rule:
//   Open           finds or adds the item, and lets the leading expert of the use's class decide
//   Lose           adds the time that a routed step lost; the verdict above the threshold is to
//                  prefetch
//   PrefetchBegan  the prefetch has begun; Close ends the use
//   Observe        at Close: charges every expert what its threshold would have cost, with a cache
//                  of its own (the Ghost functions), so that experts can be compared
// The number of items is limited: DropOne drops the oldest.

#include "client/cost/prefetch_rule.h"

#include <algorithm>
#include <limits>

#include "client/cost/cost_model.h"

namespace ckv {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFade = 1 - 1 / PrefetchRule::kFadeUses;
// Nearest to factor 1 first: ties favor the first.
constexpr std::array<size_t, PrefetchRule::kExpertCount> kByCaution = {5, 6, 4, 7, 3,
                                                                       9, 8, 2, 1, 0};

Duration Us(double us) { return Duration(static_cast<int64_t>(std::min(us, 1e15) * 1e3)); }

}  // namespace

PrefetchRule::PrefetchRule(const PrefetchRuleOptions& options) : options_(options) {
  for (Ghost& ghost : ghosts_) ghost.free_bytes = options_.capacity_bytes;
  classes_.resize(2);  // for uses without a class of their own
}

PrefetchRule::~PrefetchRule() = default;

uint32_t PrefetchRule::FindItem(Key key, uint64_t bytes) {
  const auto [entry, is_new] = item_of_key_.try_emplace(key, kNone);
  if (!is_new) return entry->second;
  if (free_items_.empty()) {
    free_items_.push_back(static_cast<uint32_t>(items_.size()));
    items_.push_back(std::make_unique<Item>());
  }
  entry->second = free_items_.back();
  free_items_.pop_back();
  Item& item = *items_[entry->second];
  item = Item();
  item.key = key;
  item.price.bytes = bytes;
  return entry->second;
}

void PrefetchRule::DropOne() {
  if (idle_.empty()) return;
  const uint32_t oldest = idle_.front();
  idle_.pop_front();
  for (size_t expert = 0; expert < kExpertCount; ++expert) {
    if (items_[oldest]->ghosts[expert].cached) GhostRemove(expert, oldest);
  }
  item_of_key_.erase(items_[oldest]->key);
  free_items_.push_back(oldest);
}

uint32_t PrefetchRule::FindClass(std::string_view name, bool hinted) {
  const auto known = class_of_name_.find(std::string(name));
  if (known != class_of_name_.end()) return known->second + (hinted ? 1 : 0);
  if (class_of_name_.size() >= kClassCountMax) return hinted ? 1 : 0;
  const auto first = static_cast<uint32_t>(classes_.size());
  class_of_name_.emplace(std::string(name), first);
  classes_.resize(classes_.size() + 2);
  return first + (hinted ? 1 : 0);
}

size_t PrefetchRule::LeaderOf(const Class& of) const {
  if (of.own > kGuard * of.losses[kRentOrBuy]) return kRentOrBuy;
  size_t leader = kRentOrBuy;
  for (const size_t expert : kByCaution) {
    // Sums in another order differ in their last bits.
    if (of.losses[expert] < of.losses[leader] * (1 - 1e-9)) leader = expert;
  }
  return leader;
}

size_t PrefetchRule::Leader(std::string_view use_class, bool hinted) const {
  const auto known = class_of_name_.find(std::string(use_class));
  const uint32_t kind = hinted ? 1 : 0;
  const Class* of = &classes_[(known == class_of_name_.end() ? 0 : known->second) + kind];
  if (of->use_count < kLearnUseCount) of = &classes_[kind];
  if (of->use_count >= kLearnUseCount) return LeaderOf(*of);
  return hinted ? kHint : kRentOrBuy;  // a hint is believed until it is known to be wrong
}

PrefetchRule::UseId PrefetchRule::Open(Key key, std::string_view use_class,
                                       const PrefetchPrice& price, std::optional<double> hint_us,
                                       Instant now) {
  if (item_of_key_.size() >= options_.item_count_max && !item_of_key_.contains(key)) DropOne();
  const bool is_known = item_of_key_.contains(key);
  const uint32_t item_id = FindItem(key, price.bytes);
  Item& item = *items_[item_id];
  if (is_known && item.open_count == 0) idle_.erase(item.idle);
  ++item.open_count;
  item.price.us = CleanCost(price.us);
  if (free_uses_.empty()) {
    free_uses_.push_back(static_cast<uint32_t>(uses_.size()));
    uses_.emplace_back();
  }
  const UseId id = free_uses_.back();
  free_uses_.pop_back();
  Use& use = uses_[id];
  use = Use();
  use.item = item_id;
  use.use_class = FindClass(use_class, hint_us.has_value());
  use.expert = Leader(use_class, hint_us.has_value());
  use.hint_us = CleanCost(hint_us.value_or(0));
  item.hints_us += use.hint_us;
  use.hints_us = item.hints_us;
  use.opened = now;
  return id;
}

double PrefetchRule::ThresholdUs(size_t expert, const Item& item, const Use& use,
                                 double ended_lost_us) {
  if (expert == kHint) {
    const bool pays = use.hints_us + ended_lost_us / 2 > item.price.us;
    return pays ? 0 : ended_lost_us + use.hints_us + item.price.us;
  }
  return kFactors[expert] * item.price.us;
}

PrefetchVerdict PrefetchRule::Verdict(UseId id, Instant now) const {
  const Use& use = uses_[id];
  const Item& item = *items_[use.item];
  if (item.cached) return PrefetchVerdict::kCached;
  if (item.price.bytes > options_.capacity_bytes) return PrefetchVerdict::kTooLarge;
  const double threshold_us = ThresholdUs(use.expert, item, use, item.ended_lost_us);
  if (threshold_us > 1e20) return PrefetchVerdict::kNever;
  if (item.lost_us < threshold_us) return PrefetchVerdict::kBelowThreshold;
  return now < item.pay_back ? PrefetchVerdict::kTooSoon : PrefetchVerdict::kPrefetch;
}

double PrefetchRule::LeftUs(UseId id, Instant now) const {
  const Use& use = uses_[id];
  const Item& item = *items_[use.item];
  switch (Verdict(id, now)) {
    case PrefetchVerdict::kPrefetch:
      return 0;
    case PrefetchVerdict::kBelowThreshold:
      return ThresholdUs(use.expert, item, use, item.ended_lost_us) - item.lost_us;
    case PrefetchVerdict::kTooSoon:  // no more can be lost than time passes
      return static_cast<double>((item.pay_back - now).count()) / 1e3;
    default:
      return kInfinity;
  }
}

PrefetchVerdict PrefetchRule::Lose(UseId id, double us, Instant now) {
  Use& use = uses_[id];
  Item& item = *items_[use.item];
  us = CleanCost(us);
  use.total_us += us;
  if (item.cached) {
    stats_.saved_us += us;
    return PrefetchVerdict::kCached;
  }
  stats_.routed_us += us;
  use.routed_us += us;
  item.lost_us += us;
  return Verdict(id, now);
}

void PrefetchRule::SetPrice(UseId id, const PrefetchPrice& price) {
  items_[uses_[id].item]->price.us = CleanCost(price.us);
}

void PrefetchRule::PrefetchBegan(UseId id, Instant now) {
  Use& use = uses_[id];
  Item& item = *items_[use.item];
  const double price_us = item.price.us;
  use.paid_us += price_us;
  stats_.paid_us += price_us;
  // At the rate of loss seen so far; at the most it is 1.
  const double passed_us = static_cast<double>((now - use.opened).count()) / 1e3;
  const double rate = use.routed_us > 0 ? std::max(1.0, passed_us / use.routed_us) : 1.0;
  item.pay_back = now + Us(price_us * rate);
  item.cached = true;
  item.lost_us = item.ended_lost_us = 0;
}

void PrefetchRule::PrefetchFailed(Key key) { Evicted(key); }

void PrefetchRule::Evicted(Key key) {
  const auto known = item_of_key_.find(key);
  if (known != item_of_key_.end()) items_[known->second]->cached = false;
}

void PrefetchRule::Close(UseId id) {
  Use& use = uses_[id];
  Item& item = *items_[use.item];
  Observe(use);
  item.hints_us = std::max(0.0, item.hints_us - use.hint_us);
  if (!item.cached) item.ended_lost_us = std::min(item.lost_us, item.ended_lost_us + use.routed_us);
  if (--item.open_count == 0) {
    item.hints_us = 0;
    item.idle = idle_.insert(idle_.end(), use.item);
  }
  use = Use();
  free_uses_.push_back(id);
}

void PrefetchRule::Observe(const Use& use) {
  if (use.total_us <= 0) return;  // it attended nothing
  ++stats_.uses;
  std::array<double, kExpertCount> charges;
  for (size_t expert = 0; expert < kExpertCount; ++expert)
    charges[expert] = Charge(expert, use.item, use);
  const auto teach = [&](Class& of) {
    ++of.use_count;
    of.own = of.own * kFade + use.routed_us + use.paid_us;
    for (size_t expert = 0; expert < kExpertCount; ++expert)
      of.losses[expert] = of.losses[expert] * kFade + charges[expert];
  };
  teach(classes_[use.use_class]);
  if (use.use_class > 1) teach(classes_[use.use_class % 2]);
}

double PrefetchRule::Charge(size_t expert, uint32_t item_id, const Use& use) {
  Item& item = *items_[item_id];
  GhostEntry& entry = item.ghosts[expert];
  if (entry.cached) {
    GhostTouch(expert, item_id);
    return 0;
  }
  const double threshold_us = ThresholdUs(expert, item, use, entry.lost_us);
  const double left_us = std::max(0.0, threshold_us - entry.lost_us);
  const bool fits = item.price.bytes <= options_.capacity_bytes;
  if (!fits || (left_us > 0 && use.total_us <= left_us)) {
    entry.lost_us = static_cast<float>(entry.lost_us + use.total_us);
    return use.total_us;
  }
  entry.lost_us = 0;
  GhostInsert(expert, item_id);
  return left_us + item.price.us;
}

void PrefetchRule::GhostTouch(size_t expert, uint32_t item) {
  if (ghosts_[expert].newest == item) return;
  GhostRemove(expert, item);
  GhostInsert(expert, item);
}

void PrefetchRule::GhostInsert(size_t expert, uint32_t item_id) {
  Ghost& ghost = ghosts_[expert];
  Item& item = *items_[item_id];
  while (ghost.free_bytes < item.price.bytes && ghost.oldest != kNone)
    GhostRemove(expert, ghost.oldest);
  ghost.free_bytes -= std::min(ghost.free_bytes, item.price.bytes);
  GhostEntry& entry = item.ghosts[expert];
  entry.cached = true;
  entry.newer = kNone;
  entry.older = ghost.newest;
  if (ghost.newest != kNone) items_[ghost.newest]->ghosts[expert].newer = item_id;
  ghost.newest = item_id;
  if (ghost.oldest == kNone) ghost.oldest = item_id;
}

void PrefetchRule::GhostRemove(size_t expert, uint32_t item_id) {
  Ghost& ghost = ghosts_[expert];
  GhostEntry& entry = items_[item_id]->ghosts[expert];
  (entry.newer == kNone ? ghost.newest : items_[entry.newer]->ghosts[expert].older) = entry.older;
  (entry.older == kNone ? ghost.oldest : items_[entry.older]->ghosts[expert].newer) = entry.newer;
  ghost.free_bytes += items_[item_id]->price.bytes;
  entry = GhostEntry();
}

}  // namespace ckv
