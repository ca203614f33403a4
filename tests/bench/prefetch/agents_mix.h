// The agents of agents_bench.cc: which document each reads, and for how many steps.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace ckv::bench {

inline constexpr uint32_t kAgentCount = 24;
inline constexpr uint32_t kStepsMax = 400;
inline constexpr uint32_t kDocumentCount = 7;

struct Agent {
  uint32_t document = 0;
  uint32_t steps = 0;
};

// In the order of their arrival. Lengths are 1 to kStepsMax and the same in every mix; the seed
// says who has which. Half of the agents make one step, two make more than 100, and the mean is 29.
// The document of rank r is drawn with weight 1 / r.
//
// A document is attended for 100 steps on average. A pull over shm or tcp has paid for itself after
// 20 to 40 steps here, one over 1 Gbit/s after some 120. So prefetching at once wins on the former,
// and routing on the latter.
inline std::vector<Agent> MakeAgents(uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<Agent> agents(kAgentCount);
  for (uint32_t i = 0; i < kAgentCount; ++i) {
    const double at = double(i) / (kAgentCount - 1);
    agents[i].steps = static_cast<uint32_t>(std::lround(std::pow(kStepsMax, at * at * at * at)));
  }
  // Not std::shuffle and distributions, whose results are the library's choice.
  for (uint32_t i = kAgentCount - 1; i > 0; --i)
    std::swap(agents[i].steps, agents[rng() % (i + 1)].steps);
  double weights = 0;
  for (uint32_t rank = 1; rank <= kDocumentCount; ++rank) weights += 1.0 / rank;
  for (Agent& agent : agents) {
    double left = weights * double(rng()) / double(std::mt19937::max());
    while (agent.document + 1 < kDocumentCount && left > 1.0 / (agent.document + 1))
      left -= 1.0 / ++agent.document;
  }
  return agents;
}

}  // namespace ckv::bench
