// Policies that choose the instance that decodes a request: NetKV's, and what it is compared with.
//
// Source: arXiv:2606.03910 sections VI-A and VI-H. NetKV's own are the product's Rank
// (client/rank/rank.h), with the signals that each of them has.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "client/rank/rank.h"

namespace ckv {

enum class DecodePolicy : uint8_t {
  kRoundRobin = 0,  // RR: the next one that has room
  kLoad,            // LA: the least T_queue + T_decode
  kCache,           // CA: the longest cached prefix, then the least load
  kCacheLoad,       // CLA*: w_cache x cached share - w_load x (queued + batch) / batch_max
  kTopology,        // NetKV-Topo-Only: Rank with tiers alone
  kStatic,          // NetKV-Static: and the caller's own transfers
  kFull,            // NetKV-Full: and the tiers' congestion
};
inline constexpr size_t kDecodePolicyCount = 7;
std::string_view DecodePolicyName(DecodePolicy policy);  // "CLA*"

struct CacheLoadWeights {
  double cache = 1, load = 1;
};

// Not thread-safe. Equal candidates take turns: the one after the last choice is first.
class DecodeChooser {
 public:
  explicit DecodeChooser(DecodePolicy policy, CacheLoadWeights weights = {})
      : policy_(policy), weights_(weights) {}

  // Returns the index of the chosen candidate; nothing if none has room.
  std::optional<size_t> Choose(const RankRequest& request,
                               std::span<const RankCandidate> candidates);

 private:
  // Higher is better, for the policies that are not Rank's.
  double Score(const RankRequest& request, const RankCandidate& candidate,
               const CandidateRank& cost) const;

  const DecodePolicy policy_;
  const CacheLoadWeights weights_;
  size_t turn_ = 0;
  std::vector<RankCandidate> turned_;
  Ranking ranking_;
};

}  // namespace ckv
