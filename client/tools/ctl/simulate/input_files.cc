// A topology is walked once; errors of FabricTree begin with an item's index, which leads to its
// line. A trace is read line by line, and a line is checked before its ids are kept.

#include "client/tools/ctl/simulate/input_files.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

constexpr double kBytesPerGbps = 1e9 / 8, kBytesPerGB = 1e9;
constexpr double kTraceTokensMax = 1e8;
// A simulation ends when the slowest transfer has: what a link below takes is no cluster's.
constexpr double kLinkGbpsMin = 0.1, kLinkGbpsMax = 1e6, kLatencyUsMax = 1e6;

class TopologyReader {
 public:
  explicit TopologyReader(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<FabricTree> Read(const YAML::Node& root) {
    CKV_RETURN_IF_ERROR(
        CheckKeys(root, "topology", {"server_GBps", "tier_latency_us", "servers", "links"}));
    FabricSpec spec;
    CKV_RETURN_IF_ERROR(Number(root, "", "server_GBps", spec.server_bytes_per_s));
    spec.server_bytes_per_s *= kBytesPerGB;
    CKV_RETURN_IF_ERROR(List(root, "tier_latency_us"));
    for (const YAML::Node& one : root["tier_latency_us"]) {
      double& us = spec.tier_latency_us.emplace_back();
      if (!one.IsScalar() || !absl::SimpleAtod(one.Scalar(), &us))
        return Refuse(one, "tier_latency_us", "not a number");
      if (us > kLatencyUsMax)
        return Refuse(one, "tier_latency_us", absl::StrFormat("%g, at most %g", us, kLatencyUsMax));
    }
    CKV_RETURN_IF_ERROR(List(root, "servers"));
    for (const YAML::Node& one : root["servers"]) {
      if (!one.IsScalar()) return Refuse(one, "servers", "a name is expected");
      spec.servers.push_back(one.Scalar());
    }
    CKV_RETURN_IF_ERROR(List(root, "links"));
    for (size_t i = 0; i < root["links"].size(); ++i)
      CKV_RETURN_IF_ERROR(ReadLink(root["links"][i], absl::StrFormat("links[%d]", i), spec));
    absl::StatusOr<FabricTree> tree = FabricTree::Create(spec);
    if (!tree.ok()) return AtItem(root, std::string(tree.status().message()));
    return tree;
  }

 private:
  absl::Status Refuse(const YAML::Node& node, const std::string& key, std::string_view why) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: %s: %s", path_, node.Mark().line + 1, key, why));
  }

  absl::Status CheckKeys(const YAML::Node& map, const std::string& key,
                         std::initializer_list<const char*> known) const {
    if (!map.IsMap()) return Refuse(map, key, "keys are expected");
    for (const auto& entry : map) {
      std::string names;
      bool found = false;
      for (const char* one : known) {
        found = found || (entry.first.IsScalar() && entry.first.Scalar() == one);
        names += (names.empty() ? "" : ", ") + std::string(one);
      }
      if (!found) return Refuse(entry.first, key, "unknown key; known are: " + names);
      for (const auto& other : map) {
        if (other.first.Mark().pos < entry.first.Mark().pos &&
            other.first.Scalar() == entry.first.Scalar())
          return Refuse(entry.first, key, entry.first.Scalar() + " occurs twice");
      }
    }
    return absl::OkStatus();
  }

  absl::Status List(const YAML::Node& root, const char* name) const {
    const YAML::Node node = root[name];
    if (!node) return Refuse(root, name, "missing");
    if (!node.IsSequence()) return Refuse(node, name, "a list is expected");
    return absl::OkStatus();
  }

  absl::Status Number(const YAML::Node& map, const std::string& where, const char* name,
                      double& value) const {
    const YAML::Node node = map[name];
    if (!node) return Refuse(map, where + name, "missing");
    if (node.IsScalar() && absl::SimpleAtod(node.Scalar(), &value)) return absl::OkStatus();
    return Refuse(node, where + name, "not a number");
  }

  absl::Status ReadLink(const YAML::Node& node, const std::string& key, FabricSpec& spec) const {
    CKV_RETURN_IF_ERROR(CheckKeys(node, key, {"from", "to", "Gbps", "count"}));
    FabricLink& link = spec.links.emplace_back();
    for (const auto& [name, text] : {std::pair{"from", &link.from}, std::pair{"to", &link.to}}) {
      if (!node[name] || !node[name].IsScalar()) return Refuse(node, key, "needs from and to");
      *text = node[name].Scalar();
    }
    CKV_RETURN_IF_ERROR(Number(node, key + ".", "Gbps", link.bytes_per_s));
    if (!(link.bytes_per_s >= kLinkGbpsMin && link.bytes_per_s <= kLinkGbpsMax)) {
      return Refuse(
          node["Gbps"], key + ".Gbps",
          absl::StrFormat("%g, must be %g to %g", link.bytes_per_s, kLinkGbpsMin, kLinkGbpsMax));
    }
    link.bytes_per_s *= kBytesPerGbps;
    const YAML::Node count = node["count"];
    if (count && !(count.IsScalar() && absl::SimpleAtoi(count.Scalar(), &link.count)))
      return Refuse(count, key + ".count", "not a count");
    return absl::OkStatus();
  }

  // Adds the line to an error that begins with a list's name, and maybe an index.
  absl::Status AtItem(const YAML::Node& root, const std::string& text) const {
    const size_t colon = text.find(": ");
    const std::string key = text.substr(0, colon);
    const size_t open = key.find('[');
    const YAML::Node list = root[key.substr(0, open)];
    if (!list) return Refuse(root, "topology", text);
    size_t index = 0;
    const bool item = open != std::string::npos &&
                      absl::SimpleAtoi(key.substr(open + 1, key.size() - open - 2), &index) &&
                      index < list.size();
    return Refuse(item ? list[index] : list, key, text.substr(colon + 2));
  }

  const std::string path_;
};

// Takes one line of a trace. Returns why it is wrong; "" if it is not.
std::string TakeTraceLine(const std::string& line, double before_s, TraceRequest& request) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return "not a JSON object";
  double timestamp_ms = 0;
  for (const auto& [key, value] :
       {std::pair{"timestamp", &timestamp_ms}, std::pair{"input_length", &request.input_tokens},
        std::pair{"output_length", &request.output_tokens}}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number())
      return absl::StrFormat("%s: missing or not a number", key);
    *value = found->get<double>();
  }
  request.arrival_s = timestamp_ms / 1e3;
  if (!(request.arrival_s >= before_s))
    return absl::StrFormat("timestamp: %g ms, before that of the line above", timestamp_ms);
  if (!(request.input_tokens >= 1 && request.input_tokens <= kTraceTokensMax))
    return absl::StrFormat("input_length: %g, must be 1 to 1e8", request.input_tokens);
  if (!(request.output_tokens >= 0 && request.output_tokens <= kTraceTokensMax))
    return absl::StrFormat("output_length: %g, must be 0 to 1e8", request.output_tokens);
  const auto ids = json.find("hash_ids");
  if (ids == json.end() || !ids->is_array()) return "hash_ids: missing or not a list";
  const double blocks = std::ceil(request.input_tokens / kSimBlockTokens);
  if (static_cast<double>(ids->size()) != blocks) {
    return absl::StrFormat("hash_ids: %d ids, but %g tokens are %g blocks of %d", ids->size(),
                           request.input_tokens, blocks, kSimBlockTokens);
  }
  for (const auto& id : *ids) {
    if (!id.is_number_unsigned()) return "hash_ids: not a whole number of 0 or above";
    request.blocks.push_back(id.get<uint64_t>());
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrFormat("%s: cannot be opened", path));
  std::vector<TraceRequest> trace;
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::string why;
    if (line.size() > kTraceLineBytesMax) {
      why = absl::StrFormat("longer than %d bytes", kTraceLineBytesMax);
    } else if (trace.size() == kTraceLinesMax) {
      why = absl::StrFormat("more than %d requests", kTraceLinesMax);
    } else {
      const double before_s = trace.empty() ? 0 : trace.back().arrival_s;
      why = TakeTraceLine(line, before_s, trace.emplace_back());
    }
    if (!why.empty())
      return absl::InvalidArgumentError(absl::StrFormat("%s:%d: %s", path, number, why));
  }
  if (file.bad()) return absl::InvalidArgumentError(path + ": cannot be read");
  if (trace.empty()) return absl::InvalidArgumentError(path + ": no requests");
  return trace;
}

absl::StatusOr<FabricTree> ParseTopology(const std::string& path, const std::string& text) {
  // yaml-cpp reports by exceptions; none passes this function.
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %d documents, must be one", path, documents.size()));
    }
    return TopologyReader(path).Read(documents.front());
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: %s", path, error.mark.line + 1, error.msg));
  }
}

absl::StatusOr<FabricTree> ReadTopology(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrFormat("%s: cannot be opened", path));
  std::string text(kTopologyBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kTopologyBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: larger than %d bytes", path, kTopologyBytesMax));
  }
  return ParseTopology(path, text);
}

std::string ExampleTopology() {
  const FabricSpec spec = SpecOf(FatTree());
  std::ostringstream out;
  out << "# The fat tree of NetKV, section VI-A: 64 GPUs.\n"
      << "server_GBps: " << spec.server_bytes_per_s / kBytesPerGB << "   # within a server\n"
      << "tier_latency_us: [1, 3, 8, 15]   # same server, same rack, same pod, across pods\n"
      << "servers:\n";
  for (const std::string& server : spec.servers) out << "  - " << server << "\n";
  out << "links:   # up from each server and group; count: physical links, each of Gbps\n";
  for (const FabricLink& link : spec.links) {
    out << "  - {from: " << link.from << ", to: " << link.to
        << ", Gbps: " << link.bytes_per_s / kBytesPerGbps << ", count: " << link.count << "}\n";
  }
  return out.str();
}

}  // namespace ckv::ctl
