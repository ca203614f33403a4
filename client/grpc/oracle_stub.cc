#include "client/grpc/oracle_stub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// 65,536 hosts of some 60 bytes, and room.
constexpr int kOracleMessageBytesMax = 32 << 20;
// Older than this is the same: no congestion counts.
constexpr uint64_t kAgeMsMax = uint64_t{24} * 3600 * 1000;

absl::StatusOr<NetworkSnapshot> SnapshotOf(const v1::GetCostsReply& reply) {
  if (reply.tiers_size() > static_cast<int>(kTierCountMax)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tiers: %d of them, limit %d", reply.tiers_size(), kTierCountMax));
  }
  if (reply.holders_size() > static_cast<int>(kOracleHostCountMax)) {
    return absl::InvalidArgumentError(absl::StrFormat("holders: %d of them, limit %d",
                                                      reply.holders_size(), kOracleHostCountMax));
  }
  NetworkSnapshot snapshot;
  for (const v1::GetCostsReply::Tier& tier : reply.tiers()) {
    snapshot.tiers.push_back(
        {tier.name(), tier.bandwidth_bytes_per_s(), tier.latency_us(), tier.congestion()});
  }
  for (const v1::GetCostsReply::Holder& holder : reply.holders())
    snapshot.tier_of_host.emplace(holder.host(), holder.tier());
  return snapshot;
}

}  // namespace

OracleStub::OracleStub(std::string address)
    : address_(std::move(address)),
      stub_(v1::OracleService::NewStub(MakeChannel(address_, kOracleMessageBytesMax))) {}

absl::StatusOr<NetworkSnapshot> OracleStub::Read(const std::string& requester_host,
                                                 const std::vector<std::string>& holder_hosts,
                                                 Clock& clock, Instant deadline) {
  grpc::ClientContext context;
  SetDeadline(context, clock, deadline, kControlTimeoutMax);
  v1::GetCostsRequest request;
  request.set_requester_host(requester_host);
  for (const std::string& host : holder_hosts) request.add_holder_hosts(host);
  const Instant requested = clock.Now();
  v1::GetCostsReply reply;
  CKV_RETURN_IF_ERROR(FromGrpc(stub_->GetCosts(&context, request, &reply), "GetCosts"));
  CKV_ASSIGN_OR_RETURN(NetworkSnapshot snapshot, SnapshotOf(reply));
  snapshot.taken = requested - std::chrono::milliseconds(std::min(reply.age_ms(), kAgeMsMax));
  return snapshot;
}

}  // namespace ckv
