#include "server/listen/listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace ckv {
namespace {

// How many connections in a row may have lost their peers before they are accepted. The next call
// continues.
constexpr int kTriesMax = 64;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

uint64_t DescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return limit.rlim_cur;
}

UniqueFd OpenReserve() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

void SetPort(sockaddr* address, uint16_t port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(port);
  }
}

// Sets errno on failure.
UniqueFd ListenOn(const addrinfo& one, bool both_families) {
  UniqueFd fd(socket(one.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return fd;
  const int on = 1, v6_only = both_families ? 0 : 1;
  // Otherwise an address released a moment ago would seem to be in use.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // Accepted connections inherit it.
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (one.ai_family == AF_INET6)
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof(v6_only));
  if (bind(fd.get(), one.ai_addr, one.ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0)
    return fd;
  const int error = errno;
  fd.Reset();
  errno = error;
  return fd;
}

uint16_t PortOf(const UniqueFd& socket) {
  sockaddr_storage bound = {};
  socklen_t bytes = sizeof(bound);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

absl::StatusOr<Addresses> Resolve(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  const char* const name = host == "*" ? nullptr : host.c_str();
  if (const int error = getaddrinfo(name, service.c_str(), &hints, &found); error != 0)
    return absl::UnavailableError(gai_strerror(error));
  return Addresses(found, freeaddrinfo);
}

}  // namespace

uint64_t DescriptorsKept(uint64_t limit, PortUse use) {
  return use == PortUse::kHealth ? std::max<uint64_t>(limit / 64, 4)
                                 : std::max<uint64_t>(limit / 8, 16);
}

absl::StatusOr<PortListener> PortListener::Bind(const HostPort& address, bool both_families,
                                                PortUse use) {
  // A socket on :: that is not limited to IPv6 serves both families. Without IPv6, 0.0.0.0 is used.
  const bool all = both_families && address.IsWildcard();
  absl::StatusOr<Addresses> found = Resolve(all ? "::" : address.host, address.port);
  if (!found.ok()) return found.status();
  PortListener listener(use);
  listener.reserve_ = OpenReserve();
  std::string why = "no address";
  const auto add = [&](const Addresses& addresses) {
    for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
      if (listener.port_ != 0) SetPort(one->ai_addr, listener.port_);
      UniqueFd fd = ListenOn(*one, all);
      if (!fd.valid()) {
        why = std::strerror(errno);
        if (errno == EADDRINUSE) return false;
        continue;
      }
      if (listener.port_ == 0) listener.port_ = PortOf(fd);
      listener.sockets_.push_back(std::move(fd));
    }
    return true;
  };
  if (!add(*found)) return absl::UnavailableError(why);
  if (all && listener.sockets_.empty()) {
    found = Resolve("0.0.0.0", address.port);
    if (!found.ok()) return found.status();
    if (!add(*found)) return absl::UnavailableError(why);
  }
  if (listener.sockets_.empty()) return absl::UnavailableError(why);
  return listener;
}

PortListener::Accepted PortListener::Accept(const UniqueFd& socket) {
  if (!reserve_.valid()) reserve_ = OpenReserve();
  for (int i = 0; i < kTriesMax; ++i) {
    const int fd = accept4(socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      const uint64_t limit = DescriptorLimit();
      if (static_cast<uint64_t>(fd) + DescriptorsKept(limit, use_) < limit)
        return {Outcome::kAccepted, fd};
      close(fd);
      return {Outcome::kRefused, -1};
    }
    if (errno == EAGAIN) return {};
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
      continue;  // the peer has gone meanwhile, or a signal arrived
    reserve_.Reset();
    // Another thread may take the descriptor that was released.
    const int refused = accept4(socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (refused >= 0) close(refused);
    reserve_ = OpenReserve();
    return {refused >= 0 ? Outcome::kRefused : Outcome::kShort, -1};
  }
  return {};
}

}  // namespace ckv
