#include "server/web/http_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "transport/socket.h"

namespace ckv {
namespace {

// How long a connection that says nothing may hold one of the threads.
constexpr const char* kSilenceMs = "1000";
// Connections that wait for a thread; more are refused.
constexpr const char* kBacklog = "32";
constexpr size_t kQueryValueBytesMax = 1024;

constexpr absl::Duration kKnockInterval = absl::Milliseconds(5);

// A connection that says nothing.
void Knock(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) return;
  const UniqueFd fd(
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (fd.valid()) (void)connect(fd.get(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
}

std::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return "Error";
  }
}

// Scripts and styles are those of the page itself, and it asks nobody but this server.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

void Send(mg_connection* connection, const HttpReply& reply, bool with_body) {
  const std::string head = absl::StrFormat(
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: %s\r\n"
      "Connection: close\r\n\r\n",
      reply.status, ReasonOf(reply.status), reply.content_type, reply.body.size(), kPolicy);
  mg_write(connection, head.data(), head.size());
  if (with_body && !reply.body.empty()) {
    mg_write(connection, reply.body.data(), reply.body.size());
  }
}

// Returns the status that was sent, which tells civetweb that the request is answered.
int Answer(mg_connection* connection) {
  const mg_request_info* const info = mg_get_request_info(connection);
  const auto& handler = *static_cast<const HttpServer::Handler*>(info->user_data);
  const std::string_view method = info->request_method;
  if (method != "GET" && method != "HEAD") {
    Send(connection, {.status = 405, .body = "only GET and HEAD\n"}, /*with_body=*/true);
    return 405;
  }
  const HttpReply reply =
      handler({.path = info->local_uri == nullptr ? "/" : info->local_uri,
               .query = info->query_string == nullptr ? "" : info->query_string});
  Send(connection, reply, method == "GET");
  return reply.status;
}

// Civetweb writes of its errors to stderr unless somebody takes them.
int Swallow(const mg_connection* /*connection*/, const char* /*message*/) { return 1; }

}  // namespace

std::string QueryValue(std::string_view query, const std::string& key) {
  std::array<char, kQueryValueBytesMax> value;
  const int length =
      mg_get_var(query.data(), query.size(), key.c_str(), value.data(), value.size());
  return length <= 0 ? "" : std::string(value.data(), static_cast<size_t>(length));
}

struct HttpServer::State {
  Handler handler;
  mg_context* context = nullptr;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              Handler handler) {
  const auto bound = HostPort::Parse(address);
  if (!bound.ok()) {
    return absl::UnavailableError(
        absl::StrFormat("cannot listen on %s: %s", address, bound.status().message()));
  }
  auto state = std::make_unique<State>();
  state->handler = std::move(handler);
  const std::string threads = std::to_string(kThreadCount);
  std::array<const char*, 11> settings = {"listening_ports",
                                          address.c_str(),
                                          "num_threads",
                                          threads.c_str(),
                                          "request_timeout_ms",
                                          kSilenceMs,
                                          "enable_keep_alive",
                                          "no",
                                          "listen_backlog",
                                          kBacklog,
                                          nullptr};
  mg_callbacks callbacks = {};
  callbacks.begin_request = Answer;
  callbacks.log_message = Swallow;
  mg_init_data init = {&callbacks, &state->handler, settings.data()};
  std::array<char, 256> text = {};
  unsigned code = 0;
  mg_error_data error = {&code, text.data(), text.size()};
  mg_init_library(0);
  state->context = mg_start2(&init, &error);
  mg_server_port port = {};
  if (state->context == nullptr || mg_get_server_ports(state->context, 1, &port) < 1) {
    if (state->context != nullptr) mg_stop(state->context);
    mg_exit_library();
    return absl::UnavailableError(
        absl::StrFormat("cannot listen on %s: %s", address, std::string(text.data())));
  }
  HostPort as_bound = *bound;
  as_bound.port = static_cast<uint16_t>(port.port);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state), std::move(as_bound)));
}

HttpServer::HttpServer(std::unique_ptr<State> state, HostPort address)
    : state_(std::move(state)), address_(std::move(address)) {}

// Civetweb's listening thread looks whether it shall end once in 2 s, or when a connection comes:
// so they come until it has.
HttpServer::~HttpServer() {
  absl::Notification ended;
  std::thread ending([&] {
    mg_stop(state_->context);
    ended.Notify();
  });
  while (!ended.WaitForNotificationWithTimeout(kKnockInterval)) Knock(address_);
  ending.join();
  mg_exit_library();
}

}  // namespace ckv
