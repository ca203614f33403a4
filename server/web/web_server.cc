#include "server/web/web_server.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "server/web/corpus_json.h"
#include "server/web/http_head.h"
#include "server/web/metrics.h"
#include "server/web/status_json.h"
#include "server/web/status_page.h"

namespace ckv {
namespace {

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kJsonType = "application/json";
constexpr const char* kPageType = "text/html; charset=utf-8";

std::string BrokenLines(const WebSources& sources) {
  std::string lines;
  if (!sources.findings) return lines;
  for (const Finding& finding : *sources.findings()) {
    if (finding.severity != Severity::kBroken) continue;
    absl::StrAppendFormat(&lines, "broken: %s: %s %s\n", CodeName(finding.code), finding.subject,
                          finding.what);
  }
  return lines;
}

HttpReply JsonReply(const absl::StatusOr<std::string>& json) {
  if (json.ok()) return {.content_type = kJsonType, .body = *json};
  return {.status = absl::IsNotFound(json.status()) ? 404 : 503,
          .body = std::string(json.status().message()) + "\n"};
}

}  // namespace

absl::StatusOr<std::unique_ptr<WebServer>> WebServer::Start(const std::string& address,
                                                            Clock* clock) {
  std::unique_ptr<WebServer> server(new WebServer(clock));
  CKV_ASSIGN_OR_RETURN(
      server->http_,
      HttpServer::Start(address, [made = server.get()](const HttpRequest& requested) {
        return made->Answer(requested);
      }));
  return server;
}

void WebServer::Serve(WebSources sources) {
  absl::MutexLock lock(&mu_);
  sources_ = std::make_shared<const WebSources>(std::move(sources));
  noted_ = clock_->Now();
  awaits_notes_ = true;
}

void WebServer::EndNotes() {
  absl::MutexLock lock(&mu_);
  awaits_notes_ = serves_ = false;
  status_ = "draining";
}

void WebServer::Note(bool serves, std::string status) {
  absl::MutexLock lock(&mu_);
  serves_ = serves;
  status_ = std::move(status);
  noted_ = clock_->Now();
}

HttpReply WebServer::Health(bool wants_roles) {
  absl::MutexLock lock(&mu_);
  const Duration silence = clock_->Now() - noted_;
  if (awaits_notes_ && silence > kProgressMax) {
    return {.status = 503,
            .body = absl::StrFormat("no progress for %d s\n",
                                    std::chrono::floor<std::chrono::seconds>(silence).count())};
  }
  return {.status = wants_roles && !serves_ ? 503 : 200, .body = status_ + "\n"};
}

HttpReply WebServer::Answer(const HttpRequest& request) {
  if (request.path == "/healthz") return Health(/*wants_roles=*/false);
  if (request.path == "/") return {.content_type = kPageType, .body = std::string(kStatusPage)};
  std::shared_ptr<const WebSources> sources;
  std::string status;
  bool serves = false;
  {
    absl::MutexLock lock(&mu_);
    sources = sources_;
    status = status_;
    serves = serves_;
  }
  if (request.path == "/readyz") {
    HttpReply reply = Health(/*wants_roles=*/true);
    if (sources != nullptr) reply.body += BrokenLines(*sources);
    return reply;
  }
  const bool known = request.path == "/metrics" || request.path == "/status.json" ||
                     request.path == "/corpus.json";
  if (!known) {
    return {.status = 404,
            .body = "try /, /status.json, /corpus.json?name=C, /metrics, /healthz or /readyz\n"};
  }
  if (sources == nullptr) return {.status = 503, .body = status + "\n"};
  if (request.path == "/metrics")
    return {.content_type = kMetricsType, .body = MetricsText(*sources)};
  if (request.path == "/status.json")
    return {.content_type = kJsonType, .body = StatusJson(*sources, serves, status)};
  return JsonReply(CorpusJson(*sources, QueryValue(request.query, "name")));
}

}  // namespace ckv
