#include "tests/sim/plan.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_format.h"

namespace ckv::sim {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed ^ 0x5eed) {}
  uint64_t Below(uint64_t end) { return random_() % end; }
  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(Below(static_cast<uint64_t>(most - least + 1)));
  }
  double Share() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 random_;
};

// How often each kind is drawn.
struct Weight {
  Fault kind;
  uint32_t weight;
};
constexpr Weight kWeights[] = {{Fault::kDrop, 10},
                               {Fault::kDelay, 10},
                               {Fault::kDuplicate, 8},
                               {Fault::kCorrupt, 8},
                               {Fault::kBreak, 6},
                               {Fault::kPartition, 4},
                               {Fault::kPartitionOneWay, 6},
                               {Fault::kCrash, 6},
                               {Fault::kPowerLoss, 8},
                               {Fault::kStop, 6},
                               {Fault::kSlow, 4},
                               {Fault::kWallJump, 3},
                               {Fault::kDiskFull, 3},
                               {Fault::kDiskError, 3},
                               {Fault::kNoDescriptors, 3},
                               {Fault::kBitFlip, 4},
                               {Fault::kDrain, 2},
                               {Fault::kRestart, 3},
                               {Fault::kLoad, 10},
                               {Fault::kExtend, 12},
                               {Fault::kDropCorpus, 2},
                               {Fault::kTurnBack, 4},
                               {Fault::kPastElbow, 4}};

Fault DrawKind(Dice& dice) {
  uint32_t sum = 0;
  for (const Weight& one : kWeights) sum += one.weight;
  auto at = static_cast<uint32_t>(dice.Below(sum));
  for (const Weight& one : kWeights) {
    if (at < one.weight) return one.kind;
    at -= one.weight;
  }
  return Fault::kDrop;
}

PlannedFault DrawFault(Dice& dice, const FleetShape& shape, int64_t time) {
  PlannedFault fault;
  fault.at = dice.Between(0, time);
  fault.kind = DrawKind(dice);
  fault.salt = dice.Below(uint64_t{1} << 32);
  // The operator is where nothing fails but its calls.
  fault.a = static_cast<uint32_t>(dice.Below(shape.node_count() - 1));
  if (fault.a >= shape.operator_node()) ++fault.a;
  fault.b = static_cast<uint32_t>(dice.Below(shape.node_count()));
  if (fault.b == fault.a) fault.b = (fault.a + 1) % shape.node_count();
  fault.duration = dice.Between(100 * kMs, 3 * kSecond);
  fault.strength = dice.Share();
  switch (fault.kind) {
    case Fault::kStop:
      // Some stops are longer than a lease.
      fault.duration = dice.Between(20 * kMs, 5 * kSecond);
      break;
    case Fault::kPartition:
    case Fault::kPartitionOneWay:
      fault.duration = dice.Between(200 * kMs, 8 * kSecond);
      break;
    case Fault::kCrash:
    case Fault::kPowerLoss:
      fault.duration = dice.Between(10 * kMs, 4 * kSecond);
      break;
    case Fault::kNoDescriptors:
      // Holders and requesters.
      fault.a = 1 + static_cast<uint32_t>(dice.Below(shape.holder_count + shape.requester_count));
      break;
    case Fault::kPastElbow:
      // The directory plans again for it at most each 5 s.
      fault.duration = dice.Between(5 * kSecond, 20 * kSecond);
      fault.a = shape.holder(static_cast<uint32_t>(dice.Below(shape.holder_count)));
      break;
    case Fault::kDrain:
      fault.at /= 4;  // it takes 10 s, because made copies are published at most each 5 s
      [[fallthrough]];
    case Fault::kDiskFull:
    case Fault::kDiskError:
    case Fault::kBitFlip:
      fault.a = shape.holder(static_cast<uint32_t>(dice.Below(shape.holder_count)));
      break;
    case Fault::kSlow:
      // Those with a disk.
      fault.a = static_cast<uint32_t>(dice.Below(1 + shape.holder_count));
      break;
    default:
      break;
  }
  return fault;
}

}  // namespace

std::string PlannedFault::Text() const {
  return absl::StrFormat("%6d ms  %-18s node %d, %d  for %d ms, strength %.2f", at / kMs,
                         NameOf(kind), a, b, duration / kMs, strength);
}

Plan DrawPlan(uint64_t seed, bool calm) {
  Dice dice(seed);
  Plan plan;
  plan.seed = seed;
  plan.shape.holder_count = static_cast<uint32_t>(dice.Between(2, 4));
  plan.shape.requester_count = static_cast<uint32_t>(dice.Between(1, 2));
  plan.shape.is_shared = dice.Below(2) == 0;
  plan.fault_time = dice.Between(4 * kSecond, 12 * kSecond);
  // From a few chunks, so that most rows are read from the disk, to all.
  plan.store_bytes = uint64_t{16} << (10 + 2 * dice.Below(3));
  if (calm) return plan;
  const int64_t count = dice.Between(55, 95);
  for (int64_t i = 0; i < count; ++i) {
    plan.faults.push_back(DrawFault(dice, plan.shape, plan.fault_time));
  }
  std::sort(plan.faults.begin(), plan.faults.end(),
            [](const PlannedFault& a, const PlannedFault& b) { return a.at < b.at; });
  return plan;
}

}  // namespace ckv::sim
