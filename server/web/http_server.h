// A small HTTP server for pages about this process: GET and HEAD.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/base/clock.h"
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

// One thread reads and writes all connections, so one that says nothing, or reads nothing, costs
// others nothing. Whole requests are answered on kThreadCount threads. Each connection is for one
// request. It is plain HTTP, readable by everyone who reaches the address, and no page of another
// origin may read or frame it.
class HttpServer {
 public:
  // A browser that shows the page, two scrapers, and one that hangs.
  static constexpr int kThreadCount = 4;
  // Connections at once, if the limit of descriptors is twice that; else half of the limit. One
  // more pushes out the one that has been silent for the longest time.
  static constexpr size_t kConnectionCountMax = 1024;
  // A connection is closed after this time without a byte, either way.
  static constexpr Duration kSilenceMax = std::chrono::seconds(10);
  // It is closed after this time, whatever it does.
  static constexpr Duration kConnectionMax = std::chrono::seconds(60);

  // Called on the server's threads, several at once. It must not throw.
  using Handler = std::function<HttpReply(const HttpRequest&)>;

  // Listens on host:port; port 0 takes a free one.
  //   Unavailable         it cannot listen there; says why.
  //   ResourceExhausted   no descriptor is left.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           Handler handler);
  // Waits for requests in progress.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Returns the address as bound.
  const HostPort& address() const { return address_; }

 private:
  class Loop;
  HttpServer(std::unique_ptr<Loop> loop, HostPort address);
  const std::unique_ptr<Loop> loop_;
  const HostPort address_;
};

}  // namespace ckv
