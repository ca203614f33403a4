// The network of a simulated fleet: what becomes of each message, and who can reach whom.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "tests/sim/scheduler.h"

namespace ckv::sim {

inline constexpr uint32_t kNodeCountMax = 16;

// Kinds of faults that a message or a call met, for the print of what a run covered.
enum class Fault : uint8_t {
  kDrop,
  kDelay,
  kReorder,
  kDuplicate,
  kCorrupt,
  kBreak,
  kPartition,
  kPartitionOneWay,
  kCrash,
  kPowerLoss,
  kStop,
  kSlow,
  kWallJump,
  kDiskFull,
  kDiskError,
  kTornWrite,
  kLostWrite,
  kNoDescriptors,
  kBitFlip,
  kRestart,
  kDrain,
  kLoad,
  kExtend,
  kDropCorpus,
  kTurnBack,
  kPastElbow,
  kLeasedCopy,
  kRepair,
  kMappedCopy,
  kLeadChange,
  kCount
};
const char* NameOf(Fault fault);

// How messages of one direction between two nodes fare, each with these probabilities.
struct Link {
  bool blocked = false;
  double drop = 0, duplicate = 0, corrupt = 0, break_lane = 0;
  int64_t delay_min = 20 * kUs, delay_max = 60 * kUs;
  double slow = 0;  // the probability of a delay up to slow_max instead
  int64_t slow_max = 0;
};

struct Fate {
  bool lost = false;
  bool breaks = false;
  bool duplicated = false;
  bool corrupted = false;
  int64_t arrives = 0;        // the scheduler's time
  int64_t arrives_again = 0;  // of the duplicate
  uint64_t salt = 0;          // says which bits are corrupted
};

class Network {
 public:
  explicit Network(uint64_t seed) : random_(seed) {}

  Link& link(uint32_t from, uint32_t to) { return links_[from][to]; }
  // The fate of a message that is sent now. Frames of lanes can be corrupted and duplicated, and
  // break their lane; calls cannot, because gRPC has checksums and numbers below them.
  Fate Send(uint32_t from, uint32_t to, bool is_frame);
  bool blocked(uint32_t from, uint32_t to) const { return links_[from][to].blocked; }

  // Whether the process may open nothing now; counts that.
  bool LacksDescriptors(const Process& process);

  void Count(Fault fault, uint64_t count = 1) { counts_[static_cast<size_t>(fault)] += count; }
  uint64_t count(Fault fault) const { return counts_[static_cast<size_t>(fault)]; }
  uint64_t fault_count() const;

 private:
  bool Chance(double probability);
  std::mt19937_64 random_;
  std::array<std::array<Link, kNodeCountMax>, kNodeCountMax> links_;
  std::array<uint64_t, static_cast<size_t>(Fault::kCount)> counts_{};
  std::array<std::array<int64_t, kNodeCountMax>, kNodeCountMax> last_arrival_{};
};

}  // namespace ckv::sim
