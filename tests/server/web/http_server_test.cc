// Goal: no connected client keeps others from an answer. Method: a server on loopback, and clients
// that send nothing, send half of a request, or read nothing. What counts is the order: a probe is
// answered while these are still connected.

#include "server/web/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "proto/base/status.h"
#include "proto/host/descriptors.h"
#include "tests/server/web/scrape.h"
#include "transport/socket.h"

namespace ckv {
namespace {

using test::HttpAnswer;
using testing::HasSubstr;
using testing::StartsWith;

constexpr size_t kLargeBytes = 16 << 20;  // more than the sockets of both ends hold

std::unique_ptr<HttpServer> StartHttpServer() {
  auto server = HttpServer::Start("127.0.0.1:0", [](const HttpRequest& request) {
    if (request.path == "/large") return HttpReply{.body = std::string(kLargeBytes, 'x')};
    return HttpReply{.body = "path " + std::string(request.path)};
  });
  CKV_CHECK(server.ok());
  return *std::move(server);
}

UniqueFd Connect(const HttpServer& server, const std::string& bytes) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(server.address().port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CKV_CHECK(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
  if (!bytes.empty())
    CKV_CHECK(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(bytes.size()));
  return fd;
}

// Whether the server has closed its end, as far as this one knows.
bool IsClosed(const UniqueFd& fd) {
  char byte;
  const ssize_t got = recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

size_t ClosedOf(const std::vector<UniqueFd>& clients) {
  size_t count = 0;
  for (const UniqueFd& client : clients) count += IsClosed(client) ? 1 : 0;
  return count;
}

std::string Probe(const HttpServer& server) {
  return HttpAnswer(server.address().ToString(), "GET", "/healthz");
}

TEST(HttpServer, AnswersAProbeDuringSilentAndHalfOpenConnections) {
  if (RaiseDescriptorLimit().now < 2 * HttpServer::kConnectionCountMax + 512)
    GTEST_SKIP() << "too few descriptors are allowed; to run it: ulimit -Hn 4096";
  const auto server = StartHttpServer();
  std::vector<UniqueFd> clients;
  for (const char* said :
       {"", "GET /heal", "GET /healthz HTTP/1.1\r\nHost: a\r\n", "\r", "\x16\x03\x01"})
    for (int i = 0; i < 100; ++i) clients.push_back(Connect(*server, said));
  EXPECT_THAT(Probe(*server), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(ClosedOf(clients), 0u) << "none had to go for it";
}

TEST(HttpServer, AnswersAProbeDuringConnectionsThatReadNothing) {
  const auto server = StartHttpServer();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 3 * HttpServer::kThreadCount; ++i)
    clients.push_back(Connect(*server, "GET /large HTTP/1.1\r\n\r\n"));
  EXPECT_THAT(Probe(*server), StartsWith("HTTP/1.1 200"));
  // One of them reads after all.
  std::string answer;
  char bytes[1 << 16];
  for (ssize_t got = 0; (got = recv(clients[0].get(), bytes, sizeof(bytes), 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(got));
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, kLargeBytes);
}

TEST(HttpServer, ClosesTheMostSilentConnectionForOneTooMany) {
  if (RaiseDescriptorLimit().now < 2 * HttpServer::kConnectionCountMax + 512)
    GTEST_SKIP() << "too few descriptors are allowed; to run it: ulimit -Hn 4096";
  const auto server = StartHttpServer();
  std::vector<UniqueFd> clients;
  for (size_t i = 0; i < HttpServer::kConnectionCountMax; ++i)
    clients.push_back(Connect(*server, ""));
  EXPECT_THAT(Probe(*server), StartsWith("HTTP/1.1 200"));
  EXPECT_TRUE(IsClosed(clients.front()));
  EXPECT_FALSE(IsClosed(clients.back()));
  EXPECT_LE(ClosedOf(clients), 2u);
}

TEST(HttpServer, ReadsAHeadByteByByteAndDropsWhatFollows) {
  const auto server = StartHttpServer();
  const UniqueFd client = Connect(*server, "");
  for (const char byte :
       std::string("GET /a%20b HTTP/1.1\r\nHost: x\r\n\r\nmore than was asked for"))
    (void)!send(client.get(), &byte, 1, MSG_NOSIGNAL);
  std::string answer;
  char bytes[4096];
  for (ssize_t got = 0; (got = recv(client.get(), bytes, sizeof(bytes), 0)) > 0;)
    answer.append(bytes, static_cast<size_t>(got));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("path /a b"));
}

TEST(HttpServer, RefusesHeadsWithoutEndAndBytesThatAreNone) {
  const auto server = StartHttpServer();
  const std::string address = server->address().ToString();
  EXPECT_THAT(HttpAnswer(address, "GET", "/" + std::string(9000, 'a')), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(HttpAnswer(address, "get", "/"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(HttpAnswer(address, "GET", "/%"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(HttpAnswer(address, "DELETE", "/"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(Probe(*server), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, EndsWithConnectionsInEachState) {
  auto server = StartHttpServer();
  std::vector<UniqueFd> clients;
  for (const char* said : {"", "GET", "GET /large HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"})
    clients.push_back(Connect(*server, said));
  server.reset();
  EXPECT_FALSE(HttpServer::Start("127.0.0.1:x", nullptr).ok());
}

}  // namespace
}  // namespace ckv
