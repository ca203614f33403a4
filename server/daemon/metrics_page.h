// A page of metrics in the making. Only metrics*.cc include this file.

#pragma once

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/session/serve_counters.h"

namespace ckv {

using MetricFamily = prometheus::MetricFamily;
using MetricType = prometheus::MetricType;
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
  std::vector<MetricFamily> families_;
};

}  // namespace ckv
