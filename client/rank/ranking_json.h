// A ranking of requesters as JSON, for programs.
//
//   {"tokens": x, "cache_bytes": x, "best": index or null, "tolerated_error": x or null,
//    "requesters": [{"name": ..., "address": ..., "host": ...,
//                    "load": {"free_bytes": x, "queued": x, "batch": x, "batch_max": x,
//                             "iteration_base_us": x, "iteration_request_us": x},
//                    "load_age_ms": n, "matched_tokens": x, "missing_bytes": x,
//                    "path": null or {"from_host": ..., "tier": n, "tier_name": ...,
//                                     "bandwidth_bytes_per_s": x, "latency_us": x,
//                                     "congestion": x, "in_flight": x},
//                    "bandwidth_bytes_per_s": x, "has_room": bool, "transfer_us": x,
//                    "queue_us": x, "decode_us": x, "total_us": x}]}
//
// A tolerated_error of infinity is null, because JSON has none.

#pragma once

#include <nlohmann/json.hpp>

#include "client/rank/fleet_ranking.h"

namespace ckv {

nlohmann::ordered_json RankingJson(const FleetRanking& ranking);

}  // namespace ckv
