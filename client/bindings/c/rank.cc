// Ranking: checks every number of the caller, and calls client/rank.

#include "client/rank/rank.h"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/bindings/c/ckv_rank.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/struct_size.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

constexpr uint32_t kRankCountMax = 1 << 16;

struct NamedValue {
  const char* name;
  double value;
};

// Checks numbers that must be finite and not negative.
template <size_t N>
absl::Status CheckNumbers(const char* of, size_t index, const NamedValue (&values)[N]) {
  for (const NamedValue& one : values) {
    if (std::isfinite(one.value) && one.value >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s %d: %s is %g", of, index, one.name, one.value));
  }
  return absl::OkStatus();
}

absl::Status TakeRequest(const ckv_rank_request* from, RankRequest& to) {
  ckv_rank_request request;
  CKV_RETURN_IF_ERROR(TakeStruct("ckv_rank_request", from, request));
  CKV_RETURN_IF_ERROR(CheckNumbers("ckv_rank_request", 0,
                                   {{"tokens", request.tokens},
                                    {"cache_bytes", request.cache_bytes},
                                    {"reserve_bytes", request.reserve_bytes}}));
  if (request.tokens == 0) return absl::InvalidArgumentError("ckv_rank_request: tokens is 0");
  to = {request.tokens, request.cache_bytes, request.reserve_bytes};
  return absl::OkStatus();
}

absl::Status TakeCandidate(const ckv_rank_candidate& from, size_t index, RankCandidate& to) {
  CKV_RETURN_IF_ERROR(CheckNumbers("ckv_rank_candidate", index,
                                   {{"matched_tokens", from.matched_tokens},
                                    {"free_bytes", from.free_bytes},
                                    {"queued", from.queued},
                                    {"batch", from.batch},
                                    {"batch_max", from.batch_max},
                                    {"iteration_base_us", from.iteration_base_us},
                                    {"iteration_request_us", from.iteration_request_us},
                                    {"bandwidth_bytes_per_s", from.bandwidth_bytes_per_s},
                                    {"latency_us", from.latency_us},
                                    {"congestion", from.congestion},
                                    {"in_flight", from.in_flight}}));
  if (from.congestion >= 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "ckv_rank_candidate %d: congestion is %g, not below 1", index, from.congestion));
  }
  to.matched_tokens = from.matched_tokens;
  to.free_bytes = from.free_bytes;
  to.queued = from.queued;
  to.batch = from.batch;
  to.batch_max = from.batch_max;
  to.iteration_base_us = from.iteration_base_us;
  to.iteration_request_us = from.iteration_request_us;
  to.path = {.tier = 0,
             .bandwidth_bytes_per_s = from.bandwidth_bytes_per_s,
             .latency_us = from.latency_us,
             .congestion = from.congestion,
             .in_flight = from.in_flight};
  return absl::OkStatus();
}

ckv_rank_cost CostOf(const CandidateRank& from) {
  ckv_rank_cost cost = {};
  cost.missing_bytes = from.missing_bytes;
  cost.bandwidth_bytes_per_s = from.bandwidth_bytes_per_s;
  cost.transfer_us = from.transfer_us;
  cost.queue_us = from.queue_us;
  cost.decode_us = from.decode_us;
  cost.total_us = from.total_us;
  cost.has_room = from.has_room ? 1 : 0;
  return cost;
}

absl::Status RankAll(const ckv_rank_request* request_from, const ckv_rank_candidate* from,
                     uint32_t count, ckv_rank_cost* costs, uint32_t* best, double* tolerated) {
  if (best == nullptr) return absl::InvalidArgumentError("best: NULL");
  if (count == 0 || count > kRankCountMax)
    return absl::InvalidArgumentError(absl::StrFormat("rank: %d candidates", count));
  RankRequest request;
  CKV_RETURN_IF_ERROR(TakeRequest(request_from, request));
  std::vector<RankCandidate> candidates;
  candidates.reserve(count);
  const auto take = [&candidates](const ckv_rank_candidate& one) {
    const size_t index = candidates.size();
    return TakeCandidate(one, index, candidates.emplace_back());
  };
  CKV_RETURN_IF_ERROR(ForEachStruct("ckv_rank_candidate", from, count, take));
  Ranking ranking;
  Rank(request, candidates, ranking);
  if (costs != nullptr) {
    size_t stride = 0;
    CKV_RETURN_IF_ERROR(
        ReadStructSize("ckv_rank_cost", costs, sizeof(*costs), sizeof(*costs), stride));
    auto* at = reinterpret_cast<std::byte*>(costs);
    for (size_t i = 0; i < count; ++i, at += stride) {
      CKV_RETURN_IF_ERROR(GiveStruct("ckv_rank_cost", CostOf(ranking.candidates[i]),
                                     reinterpret_cast<ckv_rank_cost*>(at)));
    }
  }
  *best = ranking.best ? static_cast<uint32_t>(*ranking.best) : CKV_RANK_NONE;
  if (tolerated != nullptr)
    *tolerated = ranking.best ? ToleratedCongestionError(candidates, ranking) : 0;
  return absl::OkStatus();
}

}  // namespace
}  // namespace ckv::c

extern "C" ckv_status ckv_rank(const ckv_rank_request* request,
                               const ckv_rank_candidate* candidates, uint32_t candidate_count,
                               ckv_rank_cost* costs, uint32_t* best, double* tolerated_error) {
  return ckv::c::Guard({}, [&] {
    return ckv::c::RankAll(request, candidates, candidate_count, costs, best, tolerated_error);
  });
}
