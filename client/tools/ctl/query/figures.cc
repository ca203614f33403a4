#include "client/tools/ctl/query/figures.h"

#include <algorithm>

#include "absl/strings/str_format.h"
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

Json ReportJson(const FiguresInput& input) {
  Json json = {{"title", "The cost of routing, fetching and recomputing here"},
               {"facts", Json::array()},
               {"layers", input.layers},
               {"row_bytes", input.row_bytes},
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
