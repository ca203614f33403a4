// Goal: a shortage of descriptors refuses connections, and is over once it is over. Method: the
// limit of this process is lowered to just above what it has open, and raised again.

#include "server/listen/listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "proto/base/status.h"

namespace ckv {
namespace {

using Outcome = PortListener::Outcome;

PortListener ListenOnLoopback() {
  auto listener = PortListener::Bind({"127.0.0.1", 0}, /*both_families=*/false, PortUse::kCalls);
  CKV_CHECK(listener.ok());
  return *std::move(listener);
}

UniqueFd Connect(uint16_t port, int family = AF_INET) {
  sockaddr_in6 to6 = {};
  to6.sin6_family = AF_INET6;
  to6.sin6_port = htons(port);
  to6.sin6_addr = in6addr_loopback;
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool six = family == AF_INET6;
  const auto* address =
      six ? reinterpret_cast<const sockaddr*>(&to6) : reinterpret_cast<const sockaddr*>(&to);
  if (fd.valid() && connect(fd.get(), address, six ? sizeof(to6) : sizeof(to)) != 0) fd.Reset();
  return fd;
}

Outcome AcceptOne(PortListener& listener) {
  for (const UniqueFd& socket : listener.sockets()) {
    pollfd polled = {socket.get(), POLLIN, 0};
    if (poll(&polled, 1, 0) != 1) continue;
    const PortListener::Accepted accepted = listener.Accept(socket);
    if (accepted.fd >= 0) close(accepted.fd);
    return accepted.outcome;
  }
  return Outcome::kNone;
}

// The soft limit of descriptors while it lives.
class Limit {
 public:
  Limit() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~Limit() { setrlimit(RLIMIT_NOFILE, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;
  void Set(uint64_t soft) {
    const rlimit limit = {soft, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

 private:
  rlimit before_ = {};
};

uint64_t NextDescriptor() {
  const int fd = dup(STDERR_FILENO);
  close(fd);
  return static_cast<uint64_t>(fd);
}

bool SeesAnEnd(const UniqueFd& client) {
  char byte;
  const ssize_t got = recv(client.get(), &byte, 1, 0);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

TEST(PortListener, RefusesWhileDescriptorsRunOutAndAcceptsAfterwards) {
  PortListener listener = ListenOnLoopback();
  const UniqueFd first = Connect(listener.port()), second = Connect(listener.port()),
                 third = Connect(listener.port());
  ASSERT_TRUE(third.valid());
  Limit limit;
  // There are descriptors, all of them kept for other things.
  limit.Set(NextDescriptor() + 2);
  EXPECT_EQ(AcceptOne(listener), Outcome::kRefused);
  EXPECT_TRUE(SeesAnEnd(first));
  // There is none at all.
  limit.Set(NextDescriptor());
  EXPECT_EQ(dup(STDERR_FILENO), -1);
  EXPECT_EQ(AcceptOne(listener), Outcome::kRefused);
  EXPECT_TRUE(SeesAnEnd(second));
  limit.Set(NextDescriptor() + 200);
  EXPECT_EQ(AcceptOne(listener), Outcome::kAccepted);
  EXPECT_EQ(AcceptOne(listener), Outcome::kNone);
  const UniqueFd fourth = Connect(listener.port());
  EXPECT_EQ(AcceptOne(listener), Outcome::kAccepted);
}

// The sockets stay readable: one who polls them would turn without a pause.
TEST(PortListener, ReportsThatNoDescriptorIsLeftEvenToRefuse) {
  PortListener listener = ListenOnLoopback();
  const UniqueFd client = Connect(listener.port());
  ASSERT_TRUE(client.valid());
  const uint64_t next = NextDescriptor();
  Limit limit;
  limit.Set(STDERR_FILENO + 1);
  EXPECT_EQ(AcceptOne(listener), Outcome::kShort);
  limit.Set(next + 200);
  EXPECT_EQ(AcceptOne(listener), Outcome::kAccepted) << "it has waited";
}

TEST(PortListener, APortIsTakenOnceAndGivenUpByClose) {
  PortListener listener = ListenOnLoopback();
  const HostPort same = {"127.0.0.1", listener.port()};
  EXPECT_FALSE(PortListener::Bind(same, /*both_families=*/false, PortUse::kCalls).ok());
  EXPECT_FALSE(
      PortListener::Bind({"0.0.0.0", same.port}, /*both_families=*/true, PortUse::kCalls).ok());
  listener.Close();
  EXPECT_FALSE(Connect(same.port).valid());
  EXPECT_TRUE(PortListener::Bind(same, /*both_families=*/false, PortUse::kCalls).ok());
}

TEST(PortListener, AWildcardCoversBothFamilies) {
  for (const char* host : {"0.0.0.0", "::", "*"}) {
    auto listener = PortListener::Bind({host, 0}, /*both_families=*/true, PortUse::kCalls);
    ASSERT_TRUE(listener.ok()) << host << listener.status();
    EXPECT_TRUE(Connect(listener->port()).valid()) << host;
    const bool has_six = PortListener::Bind({"::1", 0}, false, PortUse::kCalls).ok();
    EXPECT_EQ(Connect(listener->port(), AF_INET6).valid(), has_six) << host;
  }
}

TEST(PortListener, GivesTheReasonIfItCannotListen) {
  const auto elsewhere =
      PortListener::Bind({"192.0.2.1", 0}, /*both_families=*/true, PortUse::kCalls);
  EXPECT_EQ(elsewhere.status().message(), "Cannot assign requested address");
  EXPECT_FALSE(
      PortListener::Bind({"no such host", 1}, /*both_families=*/true, PortUse::kCalls).ok());
}

TEST(DescriptorsKept, LeaveRoomForHealthWhereCallsAreRefused) {
  EXPECT_EQ(DescriptorsKept(64, PortUse::kCalls), 16u);
  EXPECT_EQ(DescriptorsKept(1024, PortUse::kCalls), 128u);
  for (const uint64_t limit : {64, 1024, 20'000, 1'048'576})
    EXPECT_LE(4 * DescriptorsKept(limit, PortUse::kHealth),
              DescriptorsKept(limit, PortUse::kCalls));
}

}  // namespace
}  // namespace ckv
