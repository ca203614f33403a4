// Parses an oracle's JSON file into a NetworkSnapshot. In order: keys of the document, tiers, a
// check of the tiers, hosts, a check of the whole. Unknown keys are refused, so that a typing error
// is not silent. The tier of a host depends on the first label in which it differs from the
// requester's.

#include "client/cost/oracle_file.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/formats/json.h"

namespace ckv {
namespace {

using OracleJson = nlohmann::json;

constexpr int kVersion = 1;
constexpr double kBytesPerGB = 1e9;
// document -> tiers -> tier, and document -> hosts -> labels.
constexpr int kOracleDepthMax = 3;

// For messages: a key that somebody else wrote.
std::string Shown(const std::string& name) { return absl::Utf8SafeCHexEscape(name.substr(0, 64)); }

absl::Status CheckKeys(const OracleJson& object, const std::string& where,
                       std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    bool found = false;
    for (const std::string_view name : known) found = found || key == name;
    if (!found) return RefuseOracle(where + Shown(key), "nothing of that name is known here");
  }
  return absl::OkStatus();
}

absl::Status ReadNumber(const OracleJson& object, const std::string& where, const char* key,
                        bool required, double* value) {
  const auto found = object.find(key);
  if (found == object.end()) {
    return required ? RefuseOracle(where + key, "is missing") : absl::OkStatus();
  }
  if (!found->is_number()) return RefuseOracle(where + key, "is not a number");
  *value = found->get<double>();
  return absl::OkStatus();
}

absl::Status ReadTiers(const OracleJson& document, NetworkSnapshot* snapshot) {
  const auto tiers = document.find("tiers");
  if (tiers == document.end() || !tiers->is_array()) return RefuseOracle("tiers", "is not a list");
  if (tiers->size() > kTierCountMax) {
    return RefuseOracle("tiers",
                        absl::StrFormat("%d of them, limit %d", tiers->size(), kTierCountMax));
  }
  for (size_t i = 0; i < tiers->size(); ++i) {
    const OracleJson& json = (*tiers)[i];
    const std::string where = absl::StrFormat("tiers[%d].", i);
    if (!json.is_object()) return RefuseOracle(absl::StrFormat("tiers[%d]", i), "is not an object");
    CKV_RETURN_IF_ERROR(
        CheckKeys(json, where, {"name", "bandwidth_GBps", "latency_us", "congestion"}));
    TierCost tier;
    if (const auto name = json.find("name"); name != json.end()) {
      if (!name->is_string()) return RefuseOracle(where + "name", "is not a string");
      tier.name = name->get<std::string>();
    }
    double gb_per_s = 0;
    CKV_RETURN_IF_ERROR(ReadNumber(json, where, "bandwidth_GBps", true, &gb_per_s));
    CKV_RETURN_IF_ERROR(ReadNumber(json, where, "latency_us", true, &tier.latency_us));
    CKV_RETURN_IF_ERROR(ReadNumber(json, where, "congestion", false, &tier.congestion));
    tier.bandwidth_bytes_per_s = gb_per_s * kBytesPerGB;
    snapshot->tiers.push_back(std::move(tier));
  }
  return absl::OkStatus();
}

absl::Status CheckLabels(const std::string& host, const OracleJson& labels, size_t count) {
  const std::string field = absl::StrFormat("hosts[%s]", Shown(host));
  if (!labels.is_array() || labels.size() != count) {
    return RefuseOracle(field,
                        absl::StrFormat("is not a list of %d labels, one fewer than tiers", count));
  }
  for (const OracleJson& label : labels) {
    if (!label.is_string()) return RefuseOracle(field, "a label is not a string");
  }
  return absl::OkStatus();
}

// The tier of two hosts: how many labels, from the narrowest, are below the first that differs.
uint32_t TierOf(const OracleJson& a, const OracleJson& b) {
  size_t same = 0;
  while (same < a.size() && a[same] == b[same]) ++same;
  return static_cast<uint32_t>(a.size() - same);
}

absl::Status ReadHosts(const OracleJson& document, std::string_view requester_host,
                       NetworkSnapshot* snapshot) {
  const auto hosts = document.find("hosts");
  if (hosts == document.end() || !hosts->is_object())
    return RefuseOracle("hosts", "is not an object");
  if (hosts->size() > kOracleHostCountMax) {
    return RefuseOracle(
        "hosts", absl::StrFormat("%d of them, limit %d", hosts->size(), kOracleHostCountMax));
  }
  for (const auto& [host, labels] : hosts->items())
    CKV_RETURN_IF_ERROR(CheckLabels(host, labels, snapshot->tiers.size() - 1));
  const auto here = hosts->find(std::string(requester_host));
  if (here == hosts->end()) {
    return absl::NotFoundError(absl::StrFormat(
        "hosts: '%s', this requester's host, is not among them (oracle.host names it)",
        requester_host));
  }
  for (const auto& [host, labels] : hosts->items())
    snapshot->tier_of_host.emplace(host, TierOf(*here, labels));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<NetworkSnapshot> ParseOracleFile(std::string_view text,
                                                std::string_view requester_host) {
  CKV_ASSIGN_OR_RETURN(const OracleJson document, ParseJson(text, kOracleDepthMax));
  if (!document.is_object()) return absl::InvalidArgumentError("not a JSON object");
  CKV_RETURN_IF_ERROR(CheckKeys(document, "", {"version", "tiers", "hosts"}));
  const auto version = document.find("version");
  if (version == document.end() || *version != kVersion) {
    return RefuseOracle("version", absl::StrFormat("is not %d", kVersion));
  }
  NetworkSnapshot snapshot;
  CKV_RETURN_IF_ERROR(ReadTiers(document, &snapshot));
  // Before the hosts, whose labels count the tiers.
  CKV_RETURN_IF_ERROR(ValidateSnapshot(snapshot));
  CKV_RETURN_IF_ERROR(ReadHosts(document, requester_host, &snapshot));
  CKV_RETURN_IF_ERROR(ValidateSnapshot(snapshot));
  return snapshot;
}

absl::StatusOr<NetworkSnapshot> OracleFile::Read(const std::string& requester_host,
                                                 const std::vector<std::string>& /*holder_hosts*/,
                                                 Clock& clock, Instant /*deadline*/) {
  const Instant taken = clock.Now();
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path_.c_str(), "re"),
                                                             &std::fclose);
  if (file == nullptr) {
    const int error = errno;
    const std::string why = std::strerror(error);
    return error == ENOENT ? absl::NotFoundError(why) : absl::UnavailableError(why);
  }
  std::string text;
  char block[1 << 16];
  size_t count = 0;
  while ((count = std::fread(block, 1, sizeof(block), file.get())) > 0) {
    text.append(block, count);
    if (text.size() > kOracleFileBytesMax) {
      return absl::InvalidArgumentError(absl::StrFormat("more than %d bytes", kOracleFileBytesMax));
    }
  }
  if (std::ferror(file.get()) != 0) return absl::UnavailableError("it could not be read");
  CKV_ASSIGN_OR_RETURN(NetworkSnapshot snapshot, ParseOracleFile(text, requester_host));
  snapshot.taken = taken;
  return snapshot;
}

std::string OracleFile::Describe() const { return "oracle file " + path_; }

}  // namespace ckv
