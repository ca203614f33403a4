// Shows a process over HTTP: its metrics, its health, and a page for people.
//
//   /             a page that draws /status.json, and needs nothing from elsewhere
//   /status.json  what the page shows (status_json.h)
//   /corpus.json  ?name=C: which chunks of the corpus C are where
//   /metrics      for Prometheus (metrics.h)
//   /healthz      200 if the process makes progress: its owner looked after it lately
//   /readyz       200 if it serves every role that it has, else 503. The text says how it is. It
//                 has a line for each thing that is broken, and is 200 then, too: a probe must
//                 not take out a process that answers

#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "server/web/http_server.h"
#include "server/web/web_sources.h"

namespace ckv {

// Thread-safe. It names members, how busy they are, and the corpora that every tenant may read. It
// counts the corpora of tenants, and does not name them.
class WebServer {
 public:
  // /healthz fails if Note was last called so much earlier, between Serve and EndNotes. Its caller
  // turns ten times a second.
  static constexpr Duration kProgressMax = std::chrono::seconds(10);

  // Listens on host:port; port 0 takes a free one. Until Serve it answers for health only.
  //   Unavailable         it cannot listen on `address`; says why.
  static absl::StatusOr<std::unique_ptr<WebServer>> Start(const std::string& address,
                                                          Clock* clock = Clock::Real());
  // Shows `sources` from now on. Call it once.
  void Serve(WebSources sources) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes how the process is: whether it serves every role, and a line for people. Call it often.
  void Note(bool serves, std::string status) ABSL_LOCKS_EXCLUDED(mu_);
  // Call it when a drain begins, which may take longer than kProgressMax: from then on the process
  // counts as alive and not ready.
  void EndNotes() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for requests in progress.
  ~WebServer() = default;
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  // Returns the address as bound.
  std::string address() const { return http_->address().ToString(); }

 private:
  explicit WebServer(Clock* clock) : clock_(clock), noted_(clock->Now()) {}
  HttpReply Answer(const HttpRequest& request) ABSL_LOCKS_EXCLUDED(mu_);
  HttpReply Health(bool wants_roles) ABSL_LOCKS_EXCLUDED(mu_);

  Clock* const clock_;
  absl::Mutex mu_;
  std::shared_ptr<const WebSources> sources_ ABSL_GUARDED_BY(mu_);  // null before Serve
  bool awaits_notes_ ABSL_GUARDED_BY(mu_) = false;
  bool serves_ ABSL_GUARDED_BY(mu_) = false;
  std::string status_ ABSL_GUARDED_BY(mu_) = "starting";
  Instant noted_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HttpServer> http_;  // last: its threads use the others
};

}  // namespace ckv
