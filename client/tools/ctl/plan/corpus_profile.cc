// Walks the document once, part by part: corpus, load, goal, requesters, network, machines. A value
// is checked when it is read, against those that were read before, so that its line is known.

#include "client/tools/ctl/plan/corpus_profile.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/cost/profile_file.h"
#include "client/tools/ctl/plan/profile_nodes.h"
#include "proto/base/status.h"
#include "proto/named_models.h"

namespace ckv::ctl {
namespace {

constexpr double kGiB = double(1 << 30);
constexpr double kGbitBytes = 1e9 / 8;
constexpr double kTokensPlanMax = 1e15;
constexpr double kUsMax = 1e9;
// 1 kbit/s to 1 Pbit/s.
constexpr double kGbpsMin = 1e-6, kGbpsMax = 1e6;

class CorpusReader : private ProfileNodes {
 public:
  using ProfileNodes::ProfileNodes;

  absl::StatusOr<CorpusPlanInput> Read(const YAML::Node& root) {
    CKV_RETURN_IF_ERROR(CheckKeys(
        root, "", {"corpus", "load", "goal", "requesters", "network", "machines", "policy"}));
    CKV_RETURN_IF_ERROR(ReadCorpus(root));
    CKV_RETURN_IF_ERROR(ReadLoad(root));
    CKV_RETURN_IF_ERROR(ReadGoal(root));
    CKV_RETURN_IF_ERROR(ReadRequesters(root));
    CKV_RETURN_IF_ERROR(ReadNetwork(root));
    CKV_RETURN_IF_ERROR(ReadMachines(root));
    CKV_RETURN_IF_ERROR(ReadPolicy(root));
    const absl::Status valid = ValidatePlanInput(input_);
    if (!valid.ok()) return Annotate(valid, path());
    return std::move(input_);
  }

 private:
  // A number that may be left out.
  absl::Status Maybe(const YAML::Node& map, const std::string& key, const char* name, double from,
                     double to, double& value) const {
    return map[name] ? Number(map, key, name, from, to, value) : absl::OkStatus();
  }
  absl::Status MaybeCount(const YAML::Node& map, const std::string& key, const char* name,
                          uint32_t from, uint32_t to, uint32_t& value) const {
    return map[name] ? Count(map, key, name, from, to, value) : absl::OkStatus();
  }
  // A whole number of tokens, which may be written as 2e6.
  absl::Status Tokens(const YAML::Node& map, const std::string& key, const char* name, double from,
                      double to, double& value) const {
    CKV_RETURN_IF_ERROR(Number(map, key, name, from, to, value));
    if (value == std::floor(value)) return absl::OkStatus();
    return Refuse(map[name], Under(key, name), absl::StrFormat("%g, must be whole", value));
  }

  absl::Status ReadCorpus(const YAML::Node& root) {
    const std::string key = "corpus";
    YAML::Node node;
    CKV_RETURN_IF_ERROR(Find(root, "", "corpus", node));
    CKV_RETURN_IF_ERROR(CheckKeys(node, key,
                                  {"model", "geometry", "dtype", "row_bytes", "tokens", "documents",
                                   "replicas", "domains", "domains_lost"}));
    CKV_RETURN_IF_ERROR(ReadGeometry(node));
    CKV_RETURN_IF_ERROR(ReadDtype(node));
    PlanCorpus& corpus = input_.corpus;
    if (bool(node["tokens"]) == bool(node["documents"]))
      return Refuse(node, key, "give one of tokens and documents");
    if (node["tokens"]) {
      CKV_RETURN_IF_ERROR(Tokens(node, key, "tokens", 1, kTokensPlanMax, corpus.tokens));
    } else {
      const YAML::Node documents = node["documents"];
      const std::string where = "corpus.documents";
      double count = 0, tokens = 0;
      CKV_RETURN_IF_ERROR(CheckKeys(documents, where, {"count", "tokens"}));
      CKV_RETURN_IF_ERROR(Tokens(documents, where, "count", 1, 1e12, count));
      CKV_RETURN_IF_ERROR(Number(documents, where, "tokens", 1, kTokensPlanMax / count, tokens));
      corpus.tokens = std::floor(count * tokens);
    }
    CKV_RETURN_IF_ERROR(Count(node, key, "replicas", 1, kPlanReplicasMax, corpus.replicas));
    corpus.domains = corpus.replicas;
    CKV_RETURN_IF_ERROR(
        MaybeCount(node, key, "domains", corpus.replicas, kPlanHoldersMax, corpus.domains));
    return MaybeCount(node, key, "domains_lost", 0, corpus.replicas - 1, corpus.domains_lost);
  }

  absl::Status ReadGeometry(const YAML::Node& node) {
    const std::string key = "corpus";
    if (bool(node["model"]) == bool(node["geometry"]))
      return Refuse(node, key, "give one of model and geometry");
    if (node["model"]) {
      std::string name;
      CKV_RETURN_IF_ERROR(Text(node, key, "model", name));
      const absl::StatusOr<NamedModel> model = FindModel(name);
      if (!model.ok())
        return Refuse(node["model"], "corpus.model", std::string(model.status().message()));
      input_.corpus.geometry = model->geometry;
      heads_ = model->heads;
      return absl::OkStatus();
    }
    const YAML::Node shape = node["geometry"];
    const std::string where = "corpus.geometry";
    Geometry& geometry = input_.corpus.geometry;
    CKV_RETURN_IF_ERROR(CheckKeys(shape, where, {"layers", "heads", "d_qk", "d_v", "d_rope"}));
    CKV_RETURN_IF_ERROR(Count(shape, where, "layers", 1, kLayerCountMax, geometry.layers));
    CKV_RETURN_IF_ERROR(Count(shape, where, "heads", 1, 1 << 16, heads_));
    CKV_RETURN_IF_ERROR(Count(shape, where, "d_qk", 1, kRowWidthMax, geometry.d_qk));
    CKV_RETURN_IF_ERROR(Count(shape, where, "d_v", 1, geometry.d_qk, geometry.d_v));
    geometry.d_rope = geometry.d_qk - geometry.d_v;
    return MaybeCount(shape, where, "d_rope", 0, geometry.d_qk, geometry.d_rope);
  }

  absl::Status ReadDtype(const YAML::Node& node) {
    Geometry& geometry = input_.corpus.geometry;
    if (node["dtype"]) {
      std::string name;
      CKV_RETURN_IF_ERROR(Text(node, "corpus", "dtype", name));
      if (name != "bf16" && name != "fp8_ds_mla")
        return Refuse(node["dtype"], "corpus.dtype", "not bf16 or fp8_ds_mla");
      geometry.dtype = name == "bf16" ? RowDtype::kBf16 : RowDtype::kFp8DsMla;
    }
    if (!node["row_bytes"]) return absl::OkStatus();
    double bytes = 0;
    CKV_RETURN_IF_ERROR(Number(node, "corpus", "row_bytes", bytes));
    Geometry fp8 = geometry, bf16 = geometry;
    fp8.dtype = RowDtype::kFp8DsMla;
    bf16.dtype = RowDtype::kBf16;
    if (!node["dtype"] && bytes == fp8.row_bytes()) geometry = fp8;
    if (bytes == geometry.row_bytes()) return absl::OkStatus();
    return Refuse(node["row_bytes"], "corpus.row_bytes",
                  absl::StrFormat("%g, but rows of these widths have %d (bf16) or %d (fp8_ds_mla)",
                                  bytes, bf16.row_bytes(), fp8.row_bytes()));
  }

  absl::Status ReadLoad(const YAML::Node& root) {
    const std::string key = "load";
    YAML::Node node;
    CKV_RETURN_IF_ERROR(Find(root, "", "load", node));
    CKV_RETURN_IF_ERROR(
        CheckKeys(node, key,
                  {"agents", "steps_per_s", "batch", "query_rows", "context_tokens", "context_cv",
                   "selected", "near_share", "session_steps", "sharing", "holders_per_call"}));
    PlanLoad& load = input_.load;
    CKV_RETURN_IF_ERROR(Count(node, key, "agents", 1, 1000000, load.agents));
    CKV_RETURN_IF_ERROR(Number(node, key, "steps_per_s", 1e-6, 1e6, load.steps_per_s));
    CKV_RETURN_IF_ERROR(ReadRows(node));
    double context = 0, selected = 0;
    CKV_RETURN_IF_ERROR(Tokens(node, key, "context_tokens", 1, input_.corpus.tokens, context));
    load.context_tokens = static_cast<uint64_t>(context);
    CKV_RETURN_IF_ERROR(Maybe(node, key, "context_cv", 0, 100, load.context_cv));
    if (node["selected"]) CKV_RETURN_IF_ERROR(Tokens(node, key, "selected", 1, context, selected));
    load.selected = static_cast<uint64_t>(selected);
    CKV_RETURN_IF_ERROR(Number(node, key, "near_share", 0, 1, load.near_share));
    CKV_RETURN_IF_ERROR(Count(node, key, "session_steps", 1, 1 << 30, load.session_steps));
    CKV_RETURN_IF_ERROR(MaybeCount(node, key, "sharing", 1, load.agents, load.sharing));
    return MaybeCount(node, key, "holders_per_call", 1, kPlanCallHoldersMax, load.holders_per_call);
  }

  // M_q, or the sequences of which each has as many rows as the model has heads.
  absl::Status ReadRows(const YAML::Node& node) {
    if (bool(node["batch"]) == bool(node["query_rows"]))
      return Refuse(node, "load", "give one of batch and query_rows");
    if (node["query_rows"])
      return Count(node, "load", "query_rows", 1, 1 << 20, input_.load.query_rows);
    uint32_t batch = 0;
    CKV_RETURN_IF_ERROR(Count(node, "load", "batch", 1, (1 << 20) / heads_, batch));
    input_.load.query_rows = batch * heads_;
    return absl::OkStatus();
  }

  absl::Status ReadGoal(const YAML::Node& root) {
    const std::string key = "goal";
    YAML::Node node;
    CKV_RETURN_IF_ERROR(Find(root, "", "goal", node));
    CKV_RETURN_IF_ERROR(CheckKeys(node, key, {"per", "p50_us", "p99_us", "utilisation_max"}));
    PlanGoal& goal = input_.goal;
    std::string per;
    CKV_RETURN_IF_ERROR(Text(node, key, "per", per));
    if (per != "layer" && per != "step")
      return Refuse(node["per"], "goal.per", "not layer or step");
    goal.per_step = per == "step";
    if (!node["p50_us"] && !node["p99_us"])
      return Refuse(node, key, "give p50_us, p99_us, or both");
    for (const auto& [name, limit] :
         {std::pair{"p50_us", &goal.p50_us}, std::pair{"p99_us", &goal.p99_us}}) {
      if (!node[name]) continue;
      double us = 0;
      CKV_RETURN_IF_ERROR(Number(node, key, name, 1e-3, kUsMax, us));
      *limit = us;
    }
    return Number(node, key, "utilisation_max", 0.01, 1, goal.utilisation_max);
  }

  absl::Status ReadRequesters(const YAML::Node& root) {
    const std::string key = "requesters";
    YAML::Node node;
    CKV_RETURN_IF_ERROR(Find(root, "", "requesters", node));
    CKV_RETURN_IF_ERROR(
        CheckKeys(node, key, {"count", "network_Gbps", "cache_GiB", "calibration", "costs"}));
    PlanRequesters& requesters = input_.requesters;
    CKV_RETURN_IF_ERROR(Count(node, key, "count", 1, 1000000, requesters.count));
    CKV_RETURN_IF_ERROR(
        Number(node, key, "network_Gbps", kGbpsMin, kGbpsMax, requesters.network_bytes_per_s));
    requesters.network_bytes_per_s *= kGbitBytes;
    double cache_gib = 0;
    CKV_RETURN_IF_ERROR(Number(node, key, "cache_GiB", 0, 1e9, cache_gib));
    requesters.cache_tokens =
        static_cast<uint64_t>(cache_gib * kGiB / double(input_.corpus.geometry.token_bytes()));
    if (bool(node["calibration"]) == bool(node["costs"]))
      return Refuse(node, key, "give one of calibration and costs");
    if (node["calibration"]) {
      CKV_ASSIGN_OR_RETURN(const Profile measured, Calibration(node, key));
      requesters.here = measured.here;
      return absl::OkStatus();
    }
    return ReadCosts(node["costs"], requesters.here);
  }

  absl::Status ReadCosts(const YAML::Node& node, RequesterConstants& here) const {
    const std::string key = "requesters.costs";
    CKV_RETURN_IF_ERROR(CheckKeys(node, key,
                                  {"merge_per_row_us", "splice_per_token_layer_us",
                                   "splice_per_layer_us", "prefill_per_token_layer_us", "kernel"}));
    CKV_RETURN_IF_ERROR(Number(node, key, "merge_per_row_us", 0, kUsMax, here.merge_per_row_us));
    CKV_RETURN_IF_ERROR(
        Number(node, key, "splice_per_token_layer_us", 0, kUsMax, here.splice_per_token_layer_us));
    CKV_RETURN_IF_ERROR(
        Maybe(node, key, "splice_per_layer_us", 0, kUsMax, here.splice_per_layer_us));
    if (node["prefill_per_token_layer_us"]) {
      double prefill_us = 0;
      CKV_RETURN_IF_ERROR(Number(node, key, "prefill_per_token_layer_us", 0, kUsMax, prefill_us));
      here.prefill_per_token_layer_us = prefill_us;
    }
    return ReadKernel(node, key, here.attend, nullptr);
  }

  // `gather` may be null, if selections are not attended with the kernel.
  absl::Status ReadKernel(const YAML::Node& map, const std::string& key, ComputeCurve& curve,
                          double* gather) const {
    YAML::Node node, anchors;
    CKV_RETURN_IF_ERROR(Find(map, key, "kernel", node));
    const std::string where = Under(key, "kernel");
    CKV_RETURN_IF_ERROR(CheckKeys(node, where,
                                  {"base_us", "per_row_us", "anchors", "floor_us_per_token",
                                   "floor_shown_share", "gather_factor"}));
    CKV_RETURN_IF_ERROR(Number(node, where, "base_us", 0, kUsMax, curve.base_us));
    CKV_RETURN_IF_ERROR(Maybe(node, where, "per_row_us", 0, kUsMax, curve.per_row_us));
    CKV_RETURN_IF_ERROR(
        Maybe(node, where, "floor_us_per_token", 0, kUsMax, curve.floor.us_per_token));
    CKV_RETURN_IF_ERROR(Maybe(node, where, "floor_shown_share", 0, 1, curve.floor.shown_share));
    if (gather != nullptr)
      CKV_RETURN_IF_ERROR(Maybe(node, where, "gather_factor", 1e-3, 1e3, *gather));
    CKV_RETURN_IF_ERROR(Find(node, where, "anchors", anchors));
    const std::string list = Under(where, "anchors");
    if (!anchors.IsSequence() || anchors.size() == 0 ||
        anchors.size() > ComputeCurve::kAnchorCountMax) {
      return Refuse(
          anchors, list,
          absl::StrFormat("a list of 1 to %d points is expected", ComputeCurve::kAnchorCountMax));
    }
    double before = 0;
    for (size_t i = 0; i < anchors.size(); ++i) {
      const std::string item = absl::StrFormat("%s[%d]", list, i);
      ComputeAnchor& anchor = curve.anchors[curve.anchor_count++];
      CKV_RETURN_IF_ERROR(CheckKeys(anchors[i], item, {"query_rows", "us_per_token"}));
      CKV_RETURN_IF_ERROR(Number(anchors[i], item, "query_rows", 1, 1 << 20, anchor.rows));
      CKV_RETURN_IF_ERROR(Number(anchors[i], item, "us_per_token", 0, kUsMax, anchor.us_per_token));
      if (anchor.rows <= before)
        return Refuse(anchors[i], item + ".query_rows", "not above that of the point before");
      before = anchor.rows;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Profile> Calibration(const YAML::Node& map, const std::string& key) const {
    std::string name;
    CKV_RETURN_IF_ERROR(Text(map, key, "calibration", name));
    absl::StatusOr<Profile> profile =
        ReadProfile(std::filesystem::path(path()).parent_path() / name);
    const std::string where = Under(key, "calibration");
    if (!profile.ok())
      return Refuse(map["calibration"], where, std::string(profile.status().message()));
    const std::string wanted = absl::StrFormat("x%s ", input_.corpus.geometry.widths().ToString());
    if (profile->subject.find(wanted) == std::string::npos) {
      return Refuse(map["calibration"], where,
                    absl::StrFormat("it is of '%s', not of rows of %s", profile->subject,
                                    input_.corpus.geometry.widths().ToString()));
    }
    return profile;
  }

  absl::Status ReadNetwork(const YAML::Node& root) {
    if (!root["network"]) return absl::OkStatus();
    double gbps = 0;
    CKV_RETURN_IF_ERROR(CheckKeys(root["network"], "network", {"total_Gbps"}));
    CKV_RETURN_IF_ERROR(
        Number(root["network"], "network", "total_Gbps", kGbpsMin, kGbpsMax * 1e3, gbps));
    input_.network_bytes_per_s = gbps * kGbitBytes;
    return absl::OkStatus();
  }

  absl::Status ReadMachines(const YAML::Node& root) {
    YAML::Node list;
    CKV_RETURN_IF_ERROR(Find(root, "", "machines", list));
    if (!list.IsSequence() || list.size() == 0 || list.size() > kPlanMachinesMax) {
      return Refuse(list, "machines",
                    absl::StrFormat("a list of 1 to %d machines is expected", kPlanMachinesMax));
    }
    for (size_t i = 0; i < list.size(); ++i) {
      CKV_RETURN_IF_ERROR(
          ReadMachine(list[i], absl::StrFormat("machines[%d]", i), input_.machines.emplace_back()));
      for (size_t other = 0; other < i; ++other) {
        if (input_.machines[other].name == input_.machines[i].name) {
          return Refuse(list[i]["name"], absl::StrFormat("machines[%d].name", i),
                        "another machine has this name");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadMachine(const YAML::Node& node, const std::string& key, PlanMachine& machine) {
    CKV_RETURN_IF_ERROR(CheckKeys(node, key,
                                  {"name", "count_max", "memory_GiB", "disk_GiB", "network_Gbps",
                                   "price_per_hour", "processors_per_holder", "calibration", "lane",
                                   "kernel", "round_trip_us", "bandwidth_Gbps", "wire_share"}));
    CKV_RETURN_IF_ERROR(Text(node, key, "name", machine.name));
    CKV_RETURN_IF_ERROR(Count(node, key, "count_max", 1, kPlanHoldersMax, machine.count_max));
    double disk = 0;
    CKV_RETURN_IF_ERROR(Number(node, key, "memory_GiB", 1e-3, 1e8, machine.memory_bytes));
    machine.memory_bytes *= kGiB;
    if (node["disk_GiB"]) {
      CKV_RETURN_IF_ERROR(Number(node, key, "disk_GiB", 1e-3, 1e8, disk));
      machine.disk_bytes = disk * kGiB;
    }
    CKV_RETURN_IF_ERROR(
        Number(node, key, "network_Gbps", kGbpsMin, kGbpsMax, machine.network_bytes_per_s));
    machine.network_bytes_per_s *= kGbitBytes;
    CKV_RETURN_IF_ERROR(Number(node, key, "price_per_hour", 0, 1e9, machine.price_per_hour));
    CKV_RETURN_IF_ERROR(
        Maybe(node, key, "processors_per_holder", 1e-3, 1, machine.processors_per_holder));
    return ReadLane(node, key, machine);
  }

  absl::Status ReadLane(const YAML::Node& node, const std::string& key, PlanMachine& machine) {
    if (bool(node["calibration"]) == bool(node["kernel"]))
      return Refuse(node, key, "give one of calibration and kernel");
    Candidate& lane = machine.lane;
    FabricConstants fabric;
    if (node["calibration"]) {
      CKV_ASSIGN_OR_RETURN(const Profile measured, Calibration(node, key));
      CKV_ASSIGN_OR_RETURN(const LaneProfile one, LaneOf(node, key, measured));
      fabric = one.constants;
      lane.compute.curve = one.compute;
      lane.wire_share = one.wire_share;
      lane.splice_share = one.splice_share;
      lane.burst_bytes = one.burst_bytes;
      lane.cold_exchange = one.cold_exchange;
    } else {
      CKV_RETURN_IF_ERROR(ReadKernel(node, key, lane.compute.curve, &lane.compute.gather_factor));
      lane.wire_share = 1;  // a network card moves the bytes
      fabric.bandwidth_bytes_per_s = machine.network_bytes_per_s;
      if (!node["round_trip_us"]) return Refuse(node, key + ".round_trip_us", "missing");
    }
    CKV_RETURN_IF_ERROR(Maybe(node, key, "round_trip_us", 0, kUsMax, fabric.t_probe_us));
    if (node["bandwidth_Gbps"]) {
      double gbps = 0;
      CKV_RETURN_IF_ERROR(Number(node, key, "bandwidth_Gbps", kGbpsMin, kGbpsMax, gbps));
      fabric.bandwidth_bytes_per_s = gbps * kGbitBytes;
      fabric.fetch_bandwidth_bytes_per_s = 0;
    }
    CKV_RETURN_IF_ERROR(Maybe(node, key, "wire_share", 0, 1, lane.wire_share));
    lane.fabric = fabric;
    return absl::OkStatus();
  }

  absl::StatusOr<LaneProfile> LaneOf(const YAML::Node& node, const std::string& key,
                                     const Profile& measured) const {
    const auto refuse = [&](const YAML::Node& at, std::string why) {
      for (const LaneProfile& one : measured.lanes)
        absl::StrAppendFormat(&why, "; it has %s over %s", one.holder, one.fabric);
      return Refuse(at, Under(key, at.IsMap() ? "lane" : "calibration"), why);
    };
    if (measured.lanes.empty()) return refuse(node["calibration"], "it has no lane to a holder");
    const YAML::Node lane = node["lane"];
    if (!lane && measured.lanes.size() > 1)
      return refuse(node["calibration"], "choose one: lane: {holder: NAME, fabric: NAME}");
    if (!lane) return CheckedLane(node, key, measured.lanes.front());
    std::string holder, fabric;
    const std::string where = Under(key, "lane");
    CKV_RETURN_IF_ERROR(CheckKeys(lane, where, {"holder", "fabric"}));
    CKV_RETURN_IF_ERROR(Text(lane, where, "holder", holder));
    CKV_RETURN_IF_ERROR(Text(lane, where, "fabric", fabric));
    const LaneProfile* found = measured.Find(holder, fabric);
    if (found == nullptr) return refuse(lane, "the calibration has none of these names");
    return CheckedLane(node, key, *found);
  }

  absl::StatusOr<LaneProfile> CheckedLane(const YAML::Node& node, const std::string& key,
                                          const LaneProfile& lane) const {
    if (lane.compute.empty() || !(lane.constants.bandwidth_bytes_per_s > 0)) {
      return Refuse(node["calibration"], Under(key, "calibration"),
                    absl::StrFormat("the lane to %s over %s has no kernel or no bandwidth",
                                    lane.holder, lane.fabric));
    }
    return lane;
  }

  absl::Status ReadPolicy(const YAML::Node& root) {
    if (!root["policy"]) return absl::OkStatus();
    std::string name;
    CKV_RETURN_IF_ERROR(Text(root, "", "policy", name));
    for (const Primitive one : {Primitive::kRoute, Primitive::kFetch, Primitive::kLocal}) {
      if (name == PrimitiveName(one)) input_.policy = one;
    }
    return input_.policy || name == "auto"
               ? absl::OkStatus()
               : Refuse(root["policy"], "policy", "not auto, route, fetch or local");
  }

  CorpusPlanInput input_;
  uint32_t heads_ = 0;
};

}  // namespace

absl::StatusOr<CorpusPlanInput> ParseCorpusProfile(const std::string& path,
                                                   const std::string& text) {
  std::optional<CorpusPlanInput> input;
  CKV_RETURN_IF_ERROR(ReadYaml(path, text, [&](const YAML::Node& root) -> absl::Status {
    CKV_ASSIGN_OR_RETURN(input, CorpusReader(path).Read(root));
    return absl::OkStatus();
  }));
  return *std::move(input);
}

absl::StatusOr<CorpusPlanInput> ReadCorpusProfile(const std::string& path) {
  CKV_ASSIGN_OR_RETURN(const std::string text, ReadPlanFile(path, kPlanFileBytesMax));
  return ParseCorpusProfile(path, text);
}

}  // namespace ckv::ctl
