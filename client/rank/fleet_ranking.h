// A ranking of the live requesters of a fleet, as the directory makes it (Rank in
// proto/ckv/v1/directory.proto). client/rank/rank.h has the formulas.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/rank/rank.h"
#include "client/rank/serving_load.h"
#include "proto/base/clock.h"

namespace ckv {

// Chunks that a caller may name in one query; those of a corpus may be more.
inline constexpr size_t kRankChunkCountMax = 4096;
// Hosts that have the prompt's rows. A chunk has at most 8 replicas; more than 4 change little.
inline constexpr size_t kRankSourceCountMax = 4;

struct RankChunk {
  ChunkPrefix prefix = 0;
  double tokens = 0;
};

struct FleetQuery {
  RankRequest request;
  std::vector<RankChunk> chunks;  // the prompt's, in order
  // Counts only chunks before the first that a requester lacks, as the paper's lambda. Set it for
  // engines that reuse prefixes only. A row cache of ckv uses each chunk alone.
  bool prefix_only = false;
  // The hosts that have the prompt's rows, as the network oracle names them.
  std::vector<std::string> from_hosts;
  std::vector<double> in_flight;  // the caller's own transfers, by tier; missing tiers have none
  bool with_tolerance = false;    // also computes FleetRanking::tolerated_error
};

// One requester with the terms of its cost.
struct RankedRequester {
  std::string name, address, host;
  ServingLoad load;
  Duration load_age{0};  // time since the report
  double matched_tokens = 0;
  // The path from the prompt's rows: the fastest of from_hosts. Unset if the oracle does not have
  // both hosts; then `path` is not used, and the transfer costs nothing.
  bool has_path = false;
  std::string from_host, tier_name;
  PathCost path;
  CandidateRank cost;
};

struct FleetRanking {
  RankRequest request;                      // that was ranked for
  std::vector<RankedRequester> requesters;  // ordered by name
  // The index of the cheapest with room, the lower one of a tie. Nothing if none has room.
  std::optional<size_t> best;
  // ToleratedCongestionError, if it was wanted and there is a best one.
  std::optional<double> tolerated_error;
};

// Checks a query from outside the process.
//   InvalidArgument     names the field: "tokens: 0, need more: name a corpus, ...".
absl::Status ValidateQuery(const FleetQuery& query);

}  // namespace ckv
