// The functions are in the order of the header: a report and its reply, then a query and its
// ranking. Sizes are checked before anything is copied.

#include "client/grpc/rank_convert.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cost/network_oracle.h"
#include "proto/base/status.h"
#include "proto/corpus.h"

namespace ckv {
namespace {

// A directory has at most 1024 (LoadTable::kRequesterCountMax); more are another program's.
constexpr int kRankedCountMax = 1 << 16;
constexpr uint64_t kRankAgeMsMax = uint64_t{1} << 40;

void LoadToProto(const ServingLoad& load, v1::ServingLoad& message) {
  message.set_free_bytes(load.free_bytes);
  message.set_queued(load.queued);
  message.set_batch(load.batch);
  message.set_batch_max(load.batch_max);
  message.set_iteration_base_us(load.iteration_base_us);
  message.set_iteration_request_us(load.iteration_request_us);
}

ServingLoad LoadFromProto(const v1::ServingLoad& message) {
  return {.free_bytes = message.free_bytes(),
          .queued = message.queued(),
          .batch = message.batch(),
          .batch_max = message.batch_max(),
          .iteration_base_us = message.iteration_base_us(),
          .iteration_request_us = message.iteration_request_us()};
}

absl::Status RefuseCount(const char* field, int64_t count, int64_t count_max) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d of them, limit %d", field, count, count_max));
}

absl::StatusOr<std::vector<ChunkPrefix>> DigestFrom(const std::string& bytes) {
  const size_t count = bytes.size() / sizeof(ChunkPrefix);
  if (bytes.size() % sizeof(ChunkPrefix) != 0 || count > kDigestChunkCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cached: %d bytes of prefixes: 8 each, limit %d of them", bytes.size(),
                        kDigestChunkCountMax));
  }
  std::vector<ChunkPrefix> prefixes(count);
  if (count > 0) std::memcpy(prefixes.data(), bytes.data(), bytes.size());
  return prefixes;
}

void RequesterToProto(const RankedRequester& requester, v1::RankedRequester& message) {
  message.set_name(requester.name);
  message.set_address(requester.address);
  message.set_host(requester.host);
  LoadToProto(requester.load, *message.mutable_load());
  message.set_load_age_ms(static_cast<uint64_t>(requester.load_age / std::chrono::milliseconds(1)));
  message.set_matched_tokens(requester.matched_tokens);
  message.set_missing_bytes(requester.cost.missing_bytes);
  message.set_bandwidth_bytes_per_s(requester.cost.bandwidth_bytes_per_s);
  message.set_has_room(requester.cost.has_room);
  message.set_transfer_us(requester.cost.transfer_us);
  message.set_queue_us(requester.cost.queue_us);
  message.set_decode_us(requester.cost.decode_us);
  message.set_total_us(requester.cost.total_us);
  if (!requester.has_path) return;
  v1::RankedRequester::Path& path = *message.mutable_path();
  path.set_from_host(requester.from_host);
  path.set_tier(requester.path.tier);
  path.set_tier_name(requester.tier_name);
  path.set_bandwidth_bytes_per_s(requester.path.bandwidth_bytes_per_s);
  path.set_latency_us(requester.path.latency_us);
  path.set_congestion(requester.path.congestion);
  path.set_in_flight(requester.path.in_flight);
}

RankedRequester RequesterFromProto(const v1::RankedRequester& message) {
  RankedRequester requester;
  requester.name = message.name();
  requester.address = message.address();
  requester.host = message.host();
  requester.load = LoadFromProto(message.load());
  requester.load_age =
      std::chrono::milliseconds(std::min<uint64_t>(message.load_age_ms(), kRankAgeMsMax));
  requester.matched_tokens = message.matched_tokens();
  requester.has_path = message.has_path();
  requester.from_host = message.path().from_host();
  requester.tier_name = message.path().tier_name();
  requester.path = {.tier = message.path().tier(),
                    .bandwidth_bytes_per_s = message.path().bandwidth_bytes_per_s(),
                    .latency_us = message.path().latency_us(),
                    .congestion = message.path().congestion(),
                    .in_flight = message.path().in_flight()};
  requester.cost = {.has_room = message.has_room(),
                    .missing_bytes = message.missing_bytes(),
                    .bandwidth_bytes_per_s = message.bandwidth_bytes_per_s(),
                    .transfer_us = message.transfer_us(),
                    .queue_us = message.queue_us(),
                    .decode_us = message.decode_us(),
                    .total_us = message.total_us()};
  return requester;
}

}  // namespace

v1::ReportLoadRequest ToProto(const LoadNotice& notice) {
  v1::ReportLoadRequest message;
  message.set_name(notice.name);
  message.set_address(notice.address);
  message.set_host(notice.host);
  message.set_lease_ttl_ms(static_cast<uint32_t>(notice.ttl / std::chrono::milliseconds(1)));
  LoadToProto(notice.load, *message.mutable_load());
  message.set_leaves(notice.leaves);
  if (!notice.cached) return message;
  const std::vector<ChunkPrefix>& cached = *notice.cached;
  message.mutable_cached()->set_prefixes(cached.data(), cached.size() * sizeof(ChunkPrefix));
  return message;
}

absl::StatusOr<LoadNotice> FromProto(const v1::ReportLoadRequest& message) {
  LoadNotice notice;
  notice.name = message.name();
  notice.address = message.address();
  notice.host = message.host();
  notice.ttl = std::chrono::milliseconds(message.lease_ttl_ms());
  notice.load = LoadFromProto(message.load());
  notice.leaves = message.leaves();
  if (message.has_cached()) {
    CKV_ASSIGN_OR_RETURN(notice.cached, DigestFrom(message.cached().prefixes()));
  }
  CKV_RETURN_IF_ERROR(ValidateNotice(notice));
  return notice;
}

v1::ReportLoadReply ToProto(const LoadLease& lease) {
  v1::ReportLoadReply message;
  message.set_lease_ttl_ms(static_cast<uint32_t>(lease.ttl / std::chrono::milliseconds(1)));
  message.set_digest_wanted(lease.digest_wanted);
  message.set_digest_count(lease.digest_count);
  return message;
}

LoadLease FromProto(const v1::ReportLoadReply& message) {
  return {.ttl = std::chrono::milliseconds(message.lease_ttl_ms()),
          .digest_wanted = message.digest_wanted(),
          .digest_count = message.digest_count()};
}

absl::StatusOr<FleetQuery> FromProto(const v1::RankRequest& message) {
  if (message.chunks_size() > static_cast<int>(kRankChunkCountMax))
    return RefuseCount("chunks", message.chunks_size(), kRankChunkCountMax);
  if (message.from_hosts_size() > static_cast<int>(kRankSourceCountMax))
    return RefuseCount("from_hosts", message.from_hosts_size(), kRankSourceCountMax);
  if (message.in_flight_size() > static_cast<int>(kTierCountMax))
    return RefuseCount("in_flight", message.in_flight_size(), kTierCountMax);
  FleetQuery query;
  query.request = {.tokens = message.tokens(),
                   .cache_bytes = message.cache_bytes(),
                   .reserve_bytes = message.reserve_bytes()};
  query.chunks.reserve(static_cast<size_t>(message.chunks_size()));
  for (const v1::RankRequest::Chunk& chunk : message.chunks()) {
    CKV_ASSIGN_OR_RETURN(const ChunkId id, ChunkId::FromBytes(chunk.id()));
    if (chunk.token_count() > kChunkTokenCountMax)
      return RefuseCount("chunks.token_count", chunk.token_count(), kChunkTokenCountMax);
    query.chunks.push_back({PrefixOf(id), static_cast<double>(chunk.token_count())});
  }
  query.prefix_only = message.prefix_only();
  query.from_hosts.assign(message.from_hosts().begin(), message.from_hosts().end());
  query.in_flight.assign(message.in_flight().begin(), message.in_flight().end());
  query.with_tolerance = message.with_tolerance();
  return query;
}

v1::RankReply ToProto(const FleetRanking& ranking) {
  v1::RankReply message;
  for (const RankedRequester& requester : ranking.requesters)
    RequesterToProto(requester, *message.add_requesters());
  if (ranking.best) message.set_best(static_cast<uint32_t>(*ranking.best));
  message.set_tokens(ranking.request.tokens);
  message.set_cache_bytes(ranking.request.cache_bytes);
  if (ranking.tolerated_error) message.set_tolerated_error(*ranking.tolerated_error);
  return message;
}

absl::StatusOr<FleetRanking> FromProto(const v1::RankReply& message) {
  if (message.requesters_size() > kRankedCountMax)
    return RefuseCount("requesters", message.requesters_size(), kRankedCountMax);
  FleetRanking ranking;
  ranking.request = {.tokens = message.tokens(), .cache_bytes = message.cache_bytes()};
  for (const v1::RankedRequester& requester : message.requesters())
    ranking.requesters.push_back(RequesterFromProto(requester));
  if (message.has_best()) {
    if (message.best() >= ranking.requesters.size())
      return RefuseCount("best", message.best(), message.requesters_size());
    ranking.best = message.best();
  }
  if (message.has_tolerated_error()) ranking.tolerated_error = message.tolerated_error();
  return ranking;
}

}  // namespace ckv
