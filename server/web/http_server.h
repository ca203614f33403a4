// A small HTTP server for pages about this process: GET and HEAD, over civetweb.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/base/host_port.h"

namespace ckv {

struct HttpReply {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// A request. The views last as long as the call.
struct HttpRequest {
  std::string_view path;   // decoded, begins with '/'
  std::string_view query;  // as sent, without the '?'
};

// Returns the decoded value of `key` in a query string, "" if there is none. At most 1 KiB.
std::string QueryValue(std::string_view query, const std::string& key);

// Answers on kThreadCount threads of its own, so requests that hang leave others. Each connection
// is for one request, and one that says nothing is closed after a second. It is plain HTTP,
// readable by everyone who reaches the address, and no page of another origin may read or frame it.
class HttpServer {
 public:
  // A browser that shows the page, two scrapers, and one that hangs.
  static constexpr int kThreadCount = 4;

  // Called on the server's threads, several at once. It must not throw.
  using Handler = std::function<HttpReply(const HttpRequest&)>;

  // Listens on host:port; port 0 takes a free one.
  //   Unavailable         it cannot listen there; says why.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           Handler handler);
  // Waits for requests in progress.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Returns the address as bound.
  const HostPort& address() const { return address_; }

 private:
  struct State;
  HttpServer(std::unique_ptr<State> state, HostPort address);
  const std::unique_ptr<State> state_;
  const HostPort address_;
};

}  // namespace ckv
