#include "tests/sim/network.h"

#include <algorithm>

namespace ckv::sim {

const char* NameOf(Fault fault) {
  static constexpr std::array<const char*, static_cast<size_t>(Fault::kCount)> kNames = {
      "drop",
      "delay",
      "reorder",
      "duplicate",
      "corrupt frame",
      "broken lane",
      "partition",
      "one-way partition",
      "crash",
      "power loss",
      "stop",
      "slow node",
      "wall clock jump",
      "disk full",
      "disk error",
      "torn write",
      "lost write",
      "no descriptors",
      "bit flip",
      "restart",
      "drain",
      "load",
      "extend",
      "drop corpus",
      "other version",
      "past elbow",
      "leased copy",
      "repair",
      "mapped copy",
      "lead change"};
  return kNames[static_cast<size_t>(fault)];
}

bool Network::Chance(double probability) {
  if (probability <= 0) return false;
  return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
}

Fate Network::Send(uint32_t from, uint32_t to, bool is_frame) {
  const Link& link = links_[from][to];
  Fate fate;
  fate.salt = random_();
  int64_t delay =
      link.delay_min +
      static_cast<int64_t>(random_() % static_cast<uint64_t>(link.delay_max - link.delay_min + 1));
  if (from == to) return fate.arrives = Sim().now() + kUs, fate;
  if (link.blocked) {
    fate.lost = true;
    Count(Fault::kDrop);
    return fate;
  }
  if (Chance(link.drop)) {
    fate.lost = true;
    Count(Fault::kDrop);
  }
  if (Chance(link.slow)) {
    delay += static_cast<int64_t>(random_() % static_cast<uint64_t>(link.slow_max));
    Count(Fault::kDelay);
  }
  if (is_frame) {
    fate.breaks = Chance(link.break_lane);
    fate.duplicated = Chance(link.duplicate);
    fate.corrupted = Chance(link.corrupt);
    if (fate.breaks) Count(Fault::kBreak);
    if (fate.duplicated && !fate.lost) Count(Fault::kDuplicate);
    if (fate.corrupted && !fate.lost) Count(Fault::kCorrupt);
  }
  fate.arrives = Sim().now() + delay;
  if (fate.arrives < last_arrival_[from][to] && !fate.lost) Count(Fault::kReorder);
  last_arrival_[from][to] = std::max(last_arrival_[from][to], fate.arrives);
  // With the first one, while the call waits for others, or when its slot has the next request.
  constexpr uint64_t kLater[] = {2 * kUs, 100 * kUs, 20 * kMs};
  const uint64_t later = kLater[fate.salt % 3];
  fate.arrives_again = fate.arrives + static_cast<int64_t>(random_() % later);
  return fate;
}

bool Network::LacksDescriptors(const Process& process) {
  if (process.no_descriptors_until <= Sim().now()) return false;
  Count(Fault::kNoDescriptors);
  return true;
}

uint64_t Network::fault_count() const {
  uint64_t sum = 0;
  for (const uint64_t count : counts_) sum += count;
  // These are what the fleet did by itself.
  for (const Fault one : {Fault::kLeasedCopy, Fault::kRepair, Fault::kMappedCopy}) {
    sum -= count(one);
  }
  return sum;
}

}  // namespace ckv::sim
