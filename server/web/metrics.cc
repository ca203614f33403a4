#include "server/web/metrics.h"

#include <prometheus/text_serializer.h>

#include <map>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "server/web/metrics_directory.h"
#include "server/web/metrics_holder.h"
#include "server/web/metrics_page.h"
#include "server/web/metrics_process.h"
#include "server/web/metrics_requester.h"

namespace ckv {
namespace {

using Labels = MetricLabels;
using Page = MetricsPage;

std::string_view RoleName(MemberRole role) {
  return role == MemberRole::kHolder ? "holder" : "requester";
}

void AddLeases(const WebSources& sources, Page& page) {
  std::vector<std::pair<Labels, Registration::Report>> reports;
  for (const Registration* registration : sources.registrations) {
    reports.push_back(
        {{{"role", std::string(RoleName(registration->role()))}}, registration->report()});
  }
  const auto family = [&](MetricType type, std::string_view name, std::string_view help,
                          auto value) {
    page.Family(type, name, help);
    for (const auto& [labels, report] : reports)
      page.Add(labels, static_cast<double>(value(report)));
  };
  using Report = Registration::Report;
  family(MetricType::Gauge, "ckv_lease_held",
         "If 1, the directory has this process in this role. If 0, its lease has run out, or "
         "none was "
         "given.",
         [](const Report& report) { return report.lease.has_value() ? 1 : 0; });
  family(MetricType::Counter, "ckv_lease_registrations_total",
         "Leases taken. More than one: a lease was lost, and the holder's sessions with it.",
         [](const Report& report) { return report.registration_count; });
  family(MetricType::Counter, "ckv_lease_renewals_total", "Renewals that succeeded.",
         [](const Report& report) { return report.renewal_count; });
  family(MetricType::Counter, "ckv_lease_failures_total",
         "Calls to the directory that failed: it is away, slow, or denied the lease.",
         [](const Report& report) { return report.failure_count; });
}

void AddSpans(const SpanSink::Counts& counts, Page& page) {
  page.Counter("ckv_trace_spans_total", "Spans of sampled calls.", counts.recorded);
  page.Counter("ckv_trace_spans_dropped_total",
               "Spans that found no room, or could not be written to trace.path.", counts.dropped);
}

void AddFindings(const std::vector<Finding>& findings, Page& page) {
  page.Family(MetricType::Gauge, "ckv_findings",
              "Findings of the moment: on a directory of its fleet, else of this process. broken: "
              "something can not be answered or changed. ckvctl health shows what to do.");
  std::map<std::pair<FindingCode, Severity>, uint64_t> counts;
  for (const FindingCount& one : CountByCode(findings))
    counts[{one.code, one.severity}] = one.count;
  for (size_t i = 0; i < kFindingCodeCount; ++i) {
    const auto code = static_cast<FindingCode>(i);
    for (const Severity severity : {Severity::kBroken, Severity::kWarning}) {
      const auto count = counts.find({code, severity});
      page.Add({{"code", std::string(CodeName(code))},
                {"severity", std::string(SeverityName(severity))}},
               count == counts.end() ? 0 : static_cast<double>(count->second));
    }
  }
}

}  // namespace

std::string MetricsText(const WebSources& sources) {
  Page page;
  page.Family(MetricType::Gauge, "ckv_build_info",
              "1; what runs is in the labels. Holders of one fleet must run the same version and "
              "kernel, or partials differ in their last bits.");
  page.Add({{"version", sources.version}, {"commit", sources.commit}, {"kernel", sources.kernel}},
           1);
  AddProcess(page);
  if (sources.findings) AddFindings(*sources.findings(), page);
  if (sources.spans != nullptr) AddSpans(sources.spans->counts(), page);
  if (!sources.registrations.empty()) AddLeases(sources, page);
  if (sources.directory != nullptr) AddDirectory(*sources.directory, page);
  if (sources.placement != nullptr) AddPlacement(*sources.placement, page);
  if (sources.copies != nullptr) AddCopies(*sources.copies, page);
  if (sources.directory_log != nullptr) AddDirectoryLog(*sources.directory_log, page);
  if (sources.etcd != nullptr) AddSharedDirectory(*sources.etcd, page);
  if (sources.holder != nullptr) AddHolder(*sources.holder, sources.clock->Now(), page);
  if (sources.holder_load) AddLoad(sources.holder_load(), page);
  if (sources.requester != nullptr) AddRequester(sources, page);
  if (sources.replicas != nullptr) AddReplicas(sources.replicas->stats(), page);
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, page.Take());
  return std::move(text).str();
}

}  // namespace ckv
