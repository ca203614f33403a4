// Walks the document once, key by key. Every error names the line of the node that is wrong. Those
// of curves and distributions begin with an index, "[2].tokens", which leads to its node.

#include "client/tools/ctl/plan/prfaas_profile.h"

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/tools/ctl/plan/profile_nodes.h"
#include "nlohmann/json.hpp"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

constexpr double kBytesPerMiB = 1 << 20;
constexpr double kBytesPerGbit = 1e9 / 8;

class ProfileReader : private ProfileNodes {
 public:
  using ProfileNodes::ProfileNodes;

  absl::StatusOr<PrfaasProfile> Read(const YAML::Node& root) {
    CKV_RETURN_IF_ERROR(CheckKeys(
        root, "",
        {"lengths", "output_tokens", "kv_cache", "prfaas", "pd", "homogeneous_instances"}));
    CKV_ASSIGN_OR_RETURN(LengthDistribution lengths, ReadLengths(root));
    PrfaasProfile profile = {.system = {.lengths = std::move(lengths),
                                        .kv_bytes = {},
                                        .prfaas_prefill_s = {},
                                        .pd_prefill_s = {}}};
    PrfaasSystem& system = profile.system;
    CKV_RETURN_IF_ERROR(Number(root, "", "output_tokens", system.output_tokens));
    CKV_ASSIGN_OR_RETURN(system.kv_bytes, Curve(root, "", "kv_cache", "MiB", kBytesPerMiB));
    CKV_RETURN_IF_ERROR(ReadPrfaas(root, system));
    CKV_RETURN_IF_ERROR(ReadPd(root, system));
    if (root["homogeneous_instances"])
      CKV_RETURN_IF_ERROR(
          Instances(root, "", "homogeneous_instances", profile.homogeneous_instances));
    const absl::Status valid = ValidateSystem(system);
    if (!valid.ok()) return AtField(root, std::string(valid.message()));
    return profile;
  }

 private:
  absl::Status Instances(const YAML::Node& map, const std::string& key, const char* name,
                         uint32_t& value) const {
    return Count(map, key, name, 1, kSizingInstancesMax, value);
  }

  // Adds the line to an error of ValidateSystem, and the name that the field has here.
  absl::Status AtField(const YAML::Node& root, const std::string& text) const {
    const YAML::Node prfaas = root["prfaas"], pd = root["pd"];
    const struct {
      const char *field, *key;
      YAML::Node node;
    } places[] = {{"output_tokens", "output_tokens", root["output_tokens"]},
                  {"kv_bytes", "kv_cache", root["kv_cache"]},
                  {"egress_bytes_per_s", "prfaas.egress_Gbps", prfaas["egress_Gbps"]},
                  {"prfaas_prefill_s", "prfaas.prefill", prfaas["prefill"]},
                  {"pd_prefill_s", "pd.prefill", pd["prefill"]},
                  {"decode_batch_max", "pd.decode.batch_max", pd["decode"]["batch_max"]},
                  {"decode_step_s", "pd.decode.step_ms", pd["decode"]["step_ms"]}};
    const size_t colon = text.find(": ");
    for (const auto& place : places) {
      if (colon != std::string::npos && text.substr(0, colon) == place.field)
        return Refuse(place.node, place.key, text.substr(colon + 2));
    }
    return Refuse(root, "profile", text);
  }

  absl::StatusOr<LengthCurve> Curve(const YAML::Node& map, const std::string& key, const char* name,
                                    const char* unit, double factor) const {
    YAML::Node list;
    CKV_RETURN_IF_ERROR(Find(map, key, name, list));
    const std::string where = Under(key, name);
    if (!list.IsSequence()) return Refuse(list, where, "a list of points is expected");
    std::vector<LengthCurve::Point> points;
    for (size_t i = 0; i < list.size() && i <= LengthCurve::kPointCountMax; ++i) {
      const std::string item = absl::StrFormat("%s[%d]", where, i);
      CKV_RETURN_IF_ERROR(CheckKeys(list[i], item, {"tokens", unit}));
      LengthCurve::Point& point = points.emplace_back();
      CKV_RETURN_IF_ERROR(Number(list[i], item, "tokens", point.tokens));
      CKV_RETURN_IF_ERROR(Number(list[i], item, unit, point.value));
      point.value *= factor;
    }
    absl::StatusOr<LengthCurve> curve = LengthCurve::Create(std::move(points));
    if (curve.ok()) return curve;
    // The value has the name of its unit here.
    const std::string text(curve.status().message());
    const size_t at = text.find("].value: ");
    return AtItem(list, where,
                  at == std::string::npos ? curve.status()
                                          : absl::InvalidArgumentError(text.substr(0, at) + "]." +
                                                                       unit + text.substr(at + 7)));
  }

  absl::StatusOr<LengthDistribution> ReadLengths(const YAML::Node& root) const {
    YAML::Node lengths;
    CKV_RETURN_IF_ERROR(Find(root, "", "lengths", lengths));
    CKV_RETURN_IF_ERROR(CheckKeys(lengths, "lengths", {"log_normal", "histogram", "trace"}));
    if (lengths.size() != 1)
      return Refuse(lengths, "lengths", "give one of log_normal, histogram and trace");
    if (lengths["log_normal"]) return ReadLogNormal(lengths["log_normal"]);
    if (lengths["histogram"]) return ReadHistogram(lengths["histogram"]);
    const YAML::Node trace = lengths["trace"];
    if (!trace.IsScalar()) return Refuse(trace, "lengths.trace", "the name of a file is expected");
    return ReadLengthTrace(std::filesystem::path(path()).parent_path() / trace.Scalar());
  }

  absl::StatusOr<LengthDistribution> ReadLogNormal(const YAML::Node& node) const {
    const std::string key = "lengths.log_normal";
    CKV_RETURN_IF_ERROR(CheckKeys(node, key, {"mu", "sigma", "tokens_min", "tokens_max"}));
    LengthDistribution::LogNormal shape;
    CKV_RETURN_IF_ERROR(Number(node, key, "mu", shape.mu));
    CKV_RETURN_IF_ERROR(Number(node, key, "sigma", shape.sigma));
    CKV_RETURN_IF_ERROR(Number(node, key, "tokens_min", shape.tokens_min));
    CKV_RETURN_IF_ERROR(Number(node, key, "tokens_max", shape.tokens_max));
    auto lengths = LengthDistribution::Create(shape);
    if (!lengths.ok()) return Refuse(node, key, std::string(lengths.status().message()));
    return lengths;
  }

  absl::StatusOr<LengthDistribution> ReadHistogram(const YAML::Node& list) const {
    const std::string key = "lengths.histogram";
    if (!list.IsSequence()) return Refuse(list, key, "a list of bins is expected");
    std::vector<LengthDistribution::Bin> bins;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string item = absl::StrFormat("%s[%d]", key, i);
      CKV_RETURN_IF_ERROR(CheckKeys(list[i], item, {"from", "to", "weight"}));
      LengthDistribution::Bin& bin = bins.emplace_back();
      CKV_RETURN_IF_ERROR(Number(list[i], item, "from", bin.from));
      CKV_RETURN_IF_ERROR(Number(list[i], item, "to", bin.to));
      CKV_RETURN_IF_ERROR(Number(list[i], item, "weight", bin.weight));
    }
    auto lengths = LengthDistribution::Create(bins);
    if (!lengths.ok()) return AtItem(list, key, lengths.status());
    return lengths;
  }

  absl::Status ReadPrfaas(const YAML::Node& root, PrfaasSystem& system) const {
    YAML::Node node;
    CKV_RETURN_IF_ERROR(Find(root, "", "prfaas", node));
    CKV_RETURN_IF_ERROR(CheckKeys(node, "prfaas", {"instances", "egress_Gbps", "prefill"}));
    CKV_RETURN_IF_ERROR(Instances(node, "prfaas", "instances", system.prfaas_instances));
    CKV_RETURN_IF_ERROR(Number(node, "prfaas", "egress_Gbps", system.egress_bytes_per_s));
    system.egress_bytes_per_s *= kBytesPerGbit;
    CKV_ASSIGN_OR_RETURN(system.prfaas_prefill_s, Curve(node, "prfaas", "prefill", "s", 1));
    return absl::OkStatus();
  }

  absl::Status ReadPd(const YAML::Node& root, PrfaasSystem& system) const {
    YAML::Node node, decode;
    CKV_RETURN_IF_ERROR(Find(root, "", "pd", node));
    CKV_RETURN_IF_ERROR(CheckKeys(node, "pd", {"instances", "prefill", "decode"}));
    CKV_RETURN_IF_ERROR(Instances(node, "pd", "instances", system.pd_instances));
    CKV_ASSIGN_OR_RETURN(system.pd_prefill_s, Curve(node, "pd", "prefill", "s", 1));
    CKV_RETURN_IF_ERROR(Find(node, "pd", "decode", decode));
    CKV_RETURN_IF_ERROR(CheckKeys(decode, "pd.decode", {"batch_max", "step_ms"}));
    CKV_RETURN_IF_ERROR(Number(decode, "pd.decode", "batch_max", system.decode_batch_max));
    CKV_RETURN_IF_ERROR(Number(decode, "pd.decode", "step_ms", system.decode_step_s));
    system.decode_step_s /= 1000;
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<PrfaasProfile> ParsePrfaasProfile(const std::string& path, const std::string& text) {
  std::optional<PrfaasProfile> profile;
  CKV_RETURN_IF_ERROR(ReadYaml(path, text, [&](const YAML::Node& root) -> absl::Status {
    CKV_ASSIGN_OR_RETURN(profile, ProfileReader(path).Read(root));
    return absl::OkStatus();
  }));
  return *std::move(profile);
}

absl::StatusOr<PrfaasProfile> ReadPrfaasProfile(const std::string& path) {
  CKV_ASSIGN_OR_RETURN(const std::string text, ReadPlanFile(path, kPlanFileBytesMax));
  return ParsePrfaasProfile(path, text);
}

absl::StatusOr<LengthDistribution> ReadLengthTrace(const std::string& path) {
  CKV_ASSIGN_OR_RETURN(const std::string text, ReadPlanFile(path, kTraceBytesMax));
  std::vector<double> lengths;
  std::istringstream stream(text);
  size_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto refuse = [&](std::string_view why) {
      return absl::InvalidArgumentError(absl::StrFormat("%s:%d: %s", path, number, why));
    };
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return refuse("not a JSON object");
    const auto length = json.find("input_length");
    if (length == json.end() || !length->is_number())
      return refuse("input_length: missing or not a number");
    lengths.push_back(length->get<double>());
    if (!(lengths.back() >= 1 && lengths.back() <= LengthDistribution::kTokensMax))
      return refuse(absl::StrFormat("input_length: %g, must be 1 to 1e9", lengths.back()));
  }
  if (lengths.empty()) return absl::InvalidArgumentError(path + ": no line with an input_length");
  absl::StatusOr<LengthDistribution> found = LengthDistribution::OfLengths(std::move(lengths));
  if (!found.ok()) return Annotate(found.status(), path);
  return found;
}

// The source measures the PD cluster's prefill only by the rates in table 6. Its points are what
// these rates say: 3 / 1.64 s at the mean length up to t, 9 / 2.11 s at the mean of all lengths,
// and 9.73 s, the P90 of the homogeneous system, at the P90 of the lengths. The last point
// continues their parabola. 20 requests a batch are what 3.91 requests/s of 5 instances at 25 ms a
// token say.
const char* const kPrfaasPaperProfile =
    R"(# The system of section 4 of "Prefill-as-a-Service". Lengths in tokens of uncached input.
lengths:                            # or histogram: [{from: 0, to: 1000, weight: 5}, ...]
                                    # or trace: FILE, one object with input_length a line
  log_normal: {mu: 9.90, sigma: 1.00, tokens_min: 128, tokens_max: 128000}
output_tokens: 1024                 # mean of a request
kv_cache:                           # of one request
  - {tokens: 1000, MiB: 190.8}
  - {tokens: 8000, MiB: 308.9}
  - {tokens: 32000, MiB: 701.3}
  - {tokens: 128000, MiB: 2316.3}
prfaas:                             # prefills long inputs, and sends their KV cache
  instances: 4
  egress_Gbps: 100
  prefill:
    - {tokens: 1000, s: 0.44}
    - {tokens: 8000, s: 0.72}
    - {tokens: 32000, s: 1.84}
    - {tokens: 128000, s: 7.40}
pd:                                 # prefills short inputs, and decodes
  instances: 8
  prefill:
    - {tokens: 10224, s: 1.829}
    - {tokens: 27313, s: 4.265}
    - {tokens: 61970, s: 9.73}
    - {tokens: 128000, s: 21.6}
  decode: {batch_max: 20, step_ms: 25}
homogeneous_instances: 12           # to compare with: all of the PD kind
)";

}  // namespace ckv::ctl
