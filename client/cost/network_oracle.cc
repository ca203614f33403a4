// Keeps the last snapshot of an oracle. On the oracle's own thread, once a period: Refresh reads
// the source, validates the reading, and replaces the snapshot. If that fails, the last snapshot
// stays, and LogChange logs the first failure and the recovery only. PathTo runs on the threads of
// calls: it reads the snapshot and notes the host for the next reading.

#include "client/cost/network_oracle.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/host_port.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// absl's tables look up absl's views without making a string.
absl::string_view KeyOf(std::string_view host) { return {host.data(), host.size()}; }

absl::Status CheckTier(const TierCost& tier, size_t index) {
  const auto field = [index](const char* name) {
    return absl::StrFormat("tiers[%d].%s", index, name);
  };
  if (tier.name.size() > kOracleNameBytesMax) {
    return RefuseOracle(field("name"), absl::StrFormat("%d bytes, limit %d", tier.name.size(),
                                                       kOracleNameBytesMax));
  }
  // Written so that NaN fails.
  if (!(tier.bandwidth_bytes_per_s > 0 && tier.bandwidth_bytes_per_s <= kTierBandwidthMax)) {
    return RefuseOracle(field("bandwidth"),
                        absl::StrFormat("%g bytes a second is not within (0, %g]",
                                        tier.bandwidth_bytes_per_s, kTierBandwidthMax));
  }
  if (!(tier.latency_us >= 0 && tier.latency_us <= kTierLatencyMaxUs)) {
    return RefuseOracle(field("latency_us"), absl::StrFormat("%g is not within [0, %g]",
                                                             tier.latency_us, kTierLatencyMaxUs));
  }
  if (!(tier.congestion >= 0 && tier.congestion < 1)) {
    return RefuseOracle(field("congestion"),
                        absl::StrFormat("%g is not within [0, 1)", tier.congestion));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseOracle(const std::string& field, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", field, why));
}

std::optional<PathCost> NetworkSnapshot::Find(std::string_view host, Instant now,
                                              Duration congestion_age_max) const {
  const auto found = tier_of_host.find(KeyOf(host));
  if (found == tier_of_host.end() || found->second >= tiers.size()) return std::nullopt;
  const TierCost& tier = tiers[found->second];
  PathCost path;
  path.tier = found->second;
  path.bandwidth_bytes_per_s = tier.bandwidth_bytes_per_s;
  path.latency_us = tier.latency_us;
  if (now - taken <= congestion_age_max) path.congestion = tier.congestion;
  return path;
}

absl::Status ValidateSnapshot(const NetworkSnapshot& snapshot) {
  if (snapshot.tiers.empty() || snapshot.tiers.size() > kTierCountMax) {
    return RefuseOracle("tiers", absl::StrFormat("%d of them, 1 to %d can be",
                                                 snapshot.tiers.size(), kTierCountMax));
  }
  for (size_t i = 0; i < snapshot.tiers.size(); ++i)
    CKV_RETURN_IF_ERROR(CheckTier(snapshot.tiers[i], i));
  if (snapshot.tier_of_host.size() > kOracleHostCountMax) {
    return RefuseOracle(
        "hosts",
        absl::StrFormat("%d of them, limit %d", snapshot.tier_of_host.size(), kOracleHostCountMax));
  }
  for (const auto& [host, tier] : snapshot.tier_of_host) {
    if (host.empty() || host.size() > kOracleNameBytesMax) {
      return RefuseOracle("hosts", absl::StrFormat("a name of %d bytes, 1 to %d can be",
                                                   host.size(), kOracleNameBytesMax));
    }
    if (tier >= snapshot.tiers.size()) {
      return RefuseOracle(
          absl::StrFormat("hosts[%s].tier", host),
          absl::StrFormat("%d, but there are %d tiers", tier, snapshot.tiers.size()));
    }
  }
  return absl::OkStatus();
}

NetworkOracle::NetworkOracle(std::unique_ptr<OracleSource> source, NetworkOracleOptions options)
    : options_(std::move(options)), source_(std::move(source)) {}

NetworkOracle::~NetworkOracle() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    wake_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void NetworkOracle::Start() {
  if (!thread_.joinable()) thread_ = Thread([this] { Run(); });
}

void NetworkOracle::Run() {
  while (true) {
    LogChange(Refresh());
    absl::MutexLock lock(&mu_);
    options_.clock->Await(mu_, absl::Condition(&wake_), options_.clock->Now() + options_.period);
    if (stopping_) return;
    wake_ = false;
  }
}

void NetworkOracle::LogChange(const absl::Status& status) {
  if (!status.ok() && !failing_) {
    Log().warn("{}; its last answer stays in use", status.ToString());
  } else if (status.ok() && failing_) {
    Log().info("the network oracle answers again");
  }
  failing_ = !status.ok();
}

absl::Status NetworkOracle::Refresh() {
  std::vector<std::string> hosts;
  {
    absl::MutexLock lock(&mu_);
    hosts.assign(wanted_.begin(), wanted_.end());
  }
  auto snapshot = source_->Read(options_.requester_host, hosts, *options_.clock,
                                options_.clock->Now() + options_.timeout);
  absl::Status status = snapshot.ok() ? ValidateSnapshot(*snapshot) : snapshot.status();
  if (!status.ok()) return Annotate(status, source_->Describe());
  auto published = std::make_shared<const NetworkSnapshot>(*std::move(snapshot));
  absl::MutexLock lock(&mu_);
  if (snapshot_ == nullptr || snapshot_->taken <= published->taken) snapshot_.swap(published);
  return absl::OkStatus();
}

std::shared_ptr<const NetworkSnapshot> NetworkOracle::Snapshot() const {
  absl::MutexLock lock(&mu_);
  return snapshot_;
}

std::optional<PathCost> NetworkOracle::PathTo(std::string_view host) {
  std::shared_ptr<const NetworkSnapshot> snapshot;
  {
    absl::MutexLock lock(&mu_);
    snapshot = snapshot_;
    // Requested once. If a source does not have the host, querying again every period is enough.
    if (!host.empty() && host.size() <= kOracleNameBytesMax &&
        wanted_.size() < kOracleHostCountMax && !wanted_.contains(KeyOf(host))) {
      wanted_.emplace(host);
      wake_ = true;
    }
  }
  if (snapshot == nullptr) return std::nullopt;
  return snapshot->Find(host, options_.clock->Now(), options_.congestion_age_max);
}

std::string HostOfAddress(std::string_view address) {
  const auto parsed = HostPort::Parse(address);
  return parsed.ok() ? parsed->host : std::string(address);
}

}  // namespace ckv
