// A page of metrics in the making. Only metrics*.cc include this file.

#pragma once

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cost/ratio_histogram.h"
#include "proto/base/latency_histogram.h"
#include "server/session/serve_counters.h"
#include "transport/fabric.h"

namespace ckv {

using MetricFamily = prometheus::MetricFamily;
using MetricType = prometheus::MetricType;
// All kinds of lanes, as label values.
inline constexpr FabricKind kFabrics[] = {FabricKind::kLoopback, FabricKind::kShm, FabricKind::kTcp,
                                          FabricKind::kVerbs};

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

// Families in the order in which they are added.
class MetricsPage {
 public:
  void Family(MetricType type, std::string_view name, std::string_view help) {
    MetricFamily family;
    family.name = std::string(name);
    family.help = std::string(help);
    family.type = type;
    families_.push_back(std::move(family));
  }
  // To the last family.
  void Add(MetricLabels labels, double value) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
  }
  // To the last family, which is a histogram.
  void Add(MetricLabels labels, const LatencyCounts& counts) {
    AddBuckets(std::move(labels), counts.counts, static_cast<double>(counts.sum_ns) / 1e9,
               [](size_t i) { return static_cast<double>(LatencyCounts::Bound(i).count()) / 1e9; });
  }
  void Add(MetricLabels labels, const RatioCounts& counts) {
    AddBuckets(std::move(labels), counts.counts, counts.sum,
               [](size_t i) { return RatioCounts::kBounds[i]; });
  }
  void Histogram(std::string_view name, std::string_view help) {
    Family(MetricType::Histogram, name, help);
  }
  void Counter(std::string_view name, std::string_view help, auto value) {
    Family(MetricType::Counter, name, help);
    Add({}, static_cast<double>(value));
  }
  void Gauge(std::string_view name, std::string_view help, auto value) {
    Family(MetricType::Gauge, name, help);
    Add({}, static_cast<double>(value));
  }
  // Adds every code but OK, so that the first error of a kind is an increase.
  void ByCode(std::string_view name, std::string_view help, const StatusCounts& counts) {
    Family(MetricType::Counter, name, help);
    for (size_t i = 1; i < counts.size(); ++i) {
      Add({{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(i))}},
          static_cast<double>(counts[i]));
    }
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  // Prometheus' buckets count all that is at most their bound.
  void AddBuckets(MetricLabels labels, const auto& counts, double sum, auto bound) {
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    uint64_t total = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      total += counts[i];
      const bool last = i + 1 == counts.size();
      metric.histogram.bucket.push_back(
          {total, last ? std::numeric_limits<double>::infinity() : bound(i)});
    }
    metric.histogram.sample_count = total;
    metric.histogram.sample_sum = sum;
    families_.back().metric.push_back(std::move(metric));
  }

  std::vector<MetricFamily> families_;
};

}  // namespace ckv
