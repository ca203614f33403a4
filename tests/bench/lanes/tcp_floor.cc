#include "tests/bench/lanes/tcp_floor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "proto/base/status.h"

namespace ckv::bench {

TcpPair ConnectTcp() {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  CKV_CHECK(bind(listener.get(), raw, bytes) == 0 && listen(listener.get(), 1) == 0);
  CKV_CHECK(getsockname(listener.get(), raw, &bytes) == 0);
  UniqueFd a(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CKV_CHECK(connect(a.get(), raw, bytes) == 0);
  UniqueFd b(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const int on = 1;
  for (int fd : {a.get(), b.get()}) {
    CKV_CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  }
  return {std::move(a), std::move(b)};
}

namespace {

bool Send(int fd, std::span<const std::byte> bytes, int flags) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), flags | MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

bool Receive(int fd, std::span<std::byte> bytes, int flags) {
  while (!bytes.empty()) {
    const ssize_t got = recv(fd, bytes.data(), bytes.size(), flags);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0 || errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool SendWhole(int fd, std::span<const std::byte> bytes) { return Send(fd, bytes, MSG_DONTWAIT); }
bool ReceiveWhole(int fd, std::span<std::byte> bytes) { return Receive(fd, bytes, MSG_DONTWAIT); }
bool SendBlocking(int fd, std::span<const std::byte> bytes) { return Send(fd, bytes, 0); }
bool ReceiveBlocking(int fd, std::span<std::byte> bytes) { return Receive(fd, bytes, 0); }

size_t ReceiveReady(int fd, std::span<std::byte> bytes) {
  const ssize_t got = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  return got > 0 ? static_cast<size_t>(got) : 0;
}

}  // namespace ckv::bench
