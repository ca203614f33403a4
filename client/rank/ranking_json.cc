#include "client/rank/ranking_json.h"

#include <cmath>

namespace ckv {
namespace {

using Json = nlohmann::ordered_json;

Json LoadJson(const ServingLoad& load) {
  return {{"free_bytes", load.free_bytes},
          {"queued", load.queued},
          {"batch", load.batch},
          {"batch_max", load.batch_max},
          {"iteration_base_us", load.iteration_base_us},
          {"iteration_request_us", load.iteration_request_us}};
}

Json PathJson(const RankedRequester& requester) {
  if (!requester.has_path) return nullptr;
  return {{"from_host", requester.from_host},
          {"tier", requester.path.tier},
          {"tier_name", requester.tier_name},
          {"bandwidth_bytes_per_s", requester.path.bandwidth_bytes_per_s},
          {"latency_us", requester.path.latency_us},
          {"congestion", requester.path.congestion},
          {"in_flight", requester.path.in_flight}};
}

Json RequesterJson(const RankedRequester& requester) {
  return {{"name", requester.name},
          {"address", requester.address},
          {"host", requester.host},
          {"load", LoadJson(requester.load)},
          {"load_age_ms", requester.load_age / std::chrono::milliseconds(1)},
          {"matched_tokens", requester.matched_tokens},
          {"missing_bytes", requester.cost.missing_bytes},
          {"path", PathJson(requester)},
          {"bandwidth_bytes_per_s", requester.cost.bandwidth_bytes_per_s},
          {"has_room", requester.cost.has_room},
          {"transfer_us", requester.cost.transfer_us},
          {"queue_us", requester.cost.queue_us},
          {"decode_us", requester.cost.decode_us},
          {"total_us", requester.cost.total_us}};
}

}  // namespace

nlohmann::ordered_json RankingJson(const FleetRanking& ranking) {
  Json requesters = Json::array();
  for (const RankedRequester& requester : ranking.requesters)
    requesters.push_back(RequesterJson(requester));
  Json best, tolerated;
  if (ranking.best) best = *ranking.best;
  if (ranking.tolerated_error && std::isfinite(*ranking.tolerated_error))
    tolerated = *ranking.tolerated_error;
  return {{"tokens", ranking.request.tokens},
          {"cache_bytes", ranking.request.cache_bytes},
          {"best", best},
          {"tolerated_error", tolerated},
          {"requesters", requesters}};
}

}  // namespace ckv
