#include "client/tools/ctl/query/figures.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/tools/characterize/run.h"
#include "client/tools/ctl/result_folder.h"
#include "proto/base/status.h"
#include "store/formats/output_file.h"

namespace ckv::ctl {
namespace {

Json GridJson(const FabricFindings& findings) {
  Json grid = Json::array();
  for (const GridPoint& point : findings.grid) {
    grid.push_back({{"query_rows", point.query_rows},
                    {"tokens", point.tokens},
                    {"steps", point.steps},
                    {"best", PrimitiveName(point.best)},
                    {"right", !point.chosen || point.right()}});
  }
  return grid;
}

// Nanoseconds of a token over query rows: computing, bringing the row in, and both. Without a floor
// there are none.
Json PointsJson(const ComputeCurve& curve) {
  Json points = Json::array();
  if (curve.empty() || !(curve.floor.us_per_token > 0)) return points;
  ComputeCurve alone = curve;
  alone.base_us = alone.per_row_us = 0;
  ComputeCurve warm = alone;
  warm.floor = {};
  const double last = curve.anchors[curve.anchor_count - 1].rows;
  for (double rows = curve.anchors[0].rows; rows > 0; rows = std::min(last, rows * 1.2)) {
    points.push_back(
        {rows, 1e3 * warm.Us(rows, 1), 1e3 * curve.floor.us_per_token, 1e3 * alone.Us(rows, 1)});
    if (rows >= last) break;
  }
  return points;
}

// The decode point of figure 6: query rows, and tokens of the chunk.
constexpr uint32_t kDecodeRows = 256;
constexpr uint64_t kDecodeTokens = 2048;

// A fabric's two constants (Table 2), and the model's costs of one step over bandwidths (figure
// 6(a)).
Json LanesJson(const FiguresInput& input) {
  Json lanes = Json::array();
  for (const LaneProfile& lane : input.profile->lanes) {
    Json points = Json::array();
    for (const BandwidthPoint& point :
         SweepBandwidth(*input.profile, *input.geometry, lane.fabric, kDecodeRows, kDecodeTokens)) {
      Json us = Json::array();
      for (const std::optional<double>& one : point.us) us.push_back(one ? Json(*one) : Json());
      points.push_back({{"bandwidth_bytes_per_s", point.bandwidth_bytes_per_s}, {"us", us}});
    }
    lanes.push_back({{"fabric", lane.fabric},
                     {"t_probe_us", lane.constants.t_probe_us},
                     {"bandwidth_bytes_per_s", lane.constants.bandwidth_bytes_per_s},
                     {"merge_per_row_us", input.profile->here.merge_per_row_us},
                     {"over_bandwidth", points}});
  }
  return lanes;
}

Json ReportJson(const FiguresInput& input) {
  const Geometry& geometry = *input.geometry;
  Json json = {
      {"title", "The cost of routing, fetching and recomputing here"},
      {"answer", input.answer},
      {"disturbed", input.disturbed},
      {"facts", Json::array()},
      {"layers", geometry.layers},
      {"heads", input.heads},
      {"row_bytes", geometry.row_bytes()},
      {"payload_bytes", geometry.query_row_bytes() + geometry.partial_row_bytes(/*f32=*/false)},
      {"lanes", LanesJson(input)},
      {"findings", FindingsJson(input.findings)},
      {"kernels", Json::array()}};
  for (const auto& [name, value] : input.facts) json["facts"].push_back(Json::array({name, value}));
  for (size_t i = 0; i < input.findings.size(); ++i)
    json["findings"][i]["grid"] = GridJson(input.findings[i]);
  for (const KernelCurve& kernel : input.kernels) {
    json["kernels"].push_back({{"name", kernel.name},
                               {"about", DescribeFloor(kernel.curve)},
                               {"points", PointsJson(kernel.curve)}});
  }
  return json;
}

}  // namespace

Json FindingsJson(std::span<const FabricFindings> findings) {
  Json json = Json::array();
  for (const FabricFindings& one : findings) {
    json.push_back({{"fabric", one.fabric},
                    {"mape", one.all.mape},
                    {"mape_large", one.large.mape},
                    {"mape_beyond_kernel", one.beyond.mape},
                    {"mape_beyond_kernel_large", one.beyond_large.mape},
                    {"routes", one.all.count},
                    {"regret", one.regret},
                    {"right_share", one.right_share},
                    {"clear_points", one.clear_count},
                    {"resolved_right_share", one.resolved_right_share},
                    {"resolved_points", one.resolved_count}});
  }
  return json;
}

absl::StatusOr<bool> DrawFigures(const std::string& folder, const FiguresInput& input) {
  CKV_RETURN_IF_ERROR(WriteOutput(folder + "/report.json", RenderJson(ReportJson(input))));
  const std::string script = folder + "/figures.py";
  CKV_RETURN_IF_ERROR(WriteOutput(script, kFiguresScript));
  return DrawWithPython(script);
}

}  // namespace ckv::ctl
