#include "client/rank/fleet_ranking.h"

#include "absl/strings/str_format.h"
#include "client/cost/network_oracle.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status ValidateQuery(const FleetQuery& query) {
  CKV_RETURN_IF_ERROR(ValidateLoadNumber("tokens", query.request.tokens));
  CKV_RETURN_IF_ERROR(ValidateLoadNumber("cache_bytes", query.request.cache_bytes));
  CKV_RETURN_IF_ERROR(ValidateLoadNumber("reserve_bytes", query.request.reserve_bytes));
  if (query.request.tokens == 0) {
    return absl::InvalidArgumentError("tokens: 0, need more: name a corpus, chunks or tokens");
  }
  if (query.from_hosts.size() > kRankSourceCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "from_hosts: %d hosts, limit %d", query.from_hosts.size(), kRankSourceCountMax));
  }
  for (const std::string& host : query.from_hosts) {
    if (host.empty() || host.size() > kOracleNameBytesMax) {
      return absl::InvalidArgumentError(absl::StrFormat("from_hosts: a name of %d bytes, 1 to %d",
                                                        host.size(), kOracleNameBytesMax));
    }
  }
  if (query.in_flight.size() > kTierCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("in_flight: %d tiers, limit %d", query.in_flight.size(), kTierCountMax));
  }
  for (const double count : query.in_flight)
    CKV_RETURN_IF_ERROR(ValidateLoadNumber("in_flight", count));
  return absl::OkStatus();
}

}  // namespace ckv
