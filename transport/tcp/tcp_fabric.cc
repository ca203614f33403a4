// Across hosts, by the kernel's TCP.

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "transport/acceptor.h"
#include "transport/fabric.h"
#include "transport/handshake.h"
#include "transport/silence_watch.h"
#include "transport/socket.h"
#include "transport/tcp_lane.h"

namespace ckv {
namespace {

constexpr int kBacklog = 128;

// A half-open connection must be found within 3 s. An idle one by probes, sent 1 and 2 s after the
// last sign of life: SilenceWatch ends it at 2.5 to 2.7 s, and the kernel would at its timer's next
// firing, past the user timeout, some 3.05 s. One probe alone would end idle lanes at each lost
// packet.
constexpr int kKeepIdleS = 1;
constexpr int kKeepIntervalS = 1;
constexpr int kKeepCount = 2;
// One with data under way: SilenceWatch again, but where round trips are too long for it, and where
// the peer is heard and does not hear, so that it is not silent: there the kernel counts from the
// first retransmission, some 0.4 s after the data, so that a limit of 3 s found it after 3.4 s, and
// this one does after 2.85. It must exceed two probes' time, or the idle are given up after the
// first. A peer that lives but leaves its window closed for so long counts as gone, too.
constexpr int kUserTimeoutMs = 2400;

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

// "host:port" or "[v6]:port".
absl::StatusOr<HostPort> ParseHostPort(std::string_view address) {
  const size_t colon = address.rfind(':');
  const auto error = [&] {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is not host:port (port 0 to 65535)", address));
  };
  if (colon == std::string_view::npos || colon == 0) return error();
  std::string_view host = address.substr(0, colon);
  const std::string_view port = address.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  uint16_t number = 0;
  const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (host.empty() || port.empty() || code != std::errc() || end != port.data() + port.size()) {
    return error();
  }
  return HostPort{std::string(host), number};
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

//   InvalidArgument     not host:port.
//   Unavailable         the name does not resolve.
absl::StatusOr<AddressList> Resolve(std::string_view address, int flags) {
  CKV_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = absl::StrFormat("%d", parsed.port);
  const int error = getaddrinfo(parsed.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrFormat("%s: %s", address, gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

void SetOption(int fd, int level, int name, int value) {
  // Fails on no socket of ours; without it the lane is slower, not wrong.
  (void)setsockopt(fd, level, name, &value, sizeof(value));
}

// Kernels that know SO_BUSY_POLL alone are slower, not wrong.
void PollBusily(int fd, uint32_t busy_poll_us) {
  const int us = static_cast<int>(std::min(busy_poll_us, kBusyPollUsMax));
  static std::atomic<bool> refused{false};
  if (setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof(us)) != 0) {
    if (!refused.exchange(true)) spdlog::warn("tcp: {}", ErrnoText("busy polling is refused"));
    return;
  }
  SetOption(fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, 1);
}

void TuneSocket(int fd, const TcpOptions& options) {
  if (options.busy_poll_us > 0) PollBusily(fd, options.busy_poll_us);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalS);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepCount);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

struct BoundAddress {
  std::string host;  // numeric
  uint16_t port = 0;
  bool everywhere = false;  // the wildcard
};

absl::StatusOr<BoundAddress> AddressOf(int fd) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return ErrnoStatus("getsockname");
  }
  BoundAddress bound;
  bound.host = host;
  bound.port = static_cast<uint16_t>(std::strtoul(port, nullptr, 10));
  bound.everywhere = bound.host == "0.0.0.0" || bound.host == "::";
  return bound;
}

std::string JoinHostPort(const std::string& host, uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? absl::StrFormat("[%s]:%d", host, port) : absl::StrFormat("%s:%d", host, port);
}

// What peers are told to connect to.
absl::StatusOr<std::string> Advertised(const ListenOptions& options, const BoundAddress& bound) {
  if (!options.tcp_advertise.empty()) {
    CKV_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(options.tcp_advertise));
    return JoinHostPort(parsed.host, parsed.port != 0 ? parsed.port : bound.port);
  }
  if (bound.everywhere) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "bound to every address (%s): say which one peers shall connect to", options.tcp_address));
  }
  return JoinHostPort(bound.host, bound.port);
}

class TcpListener final : public Listener {
 public:
  TcpListener(Acceptor acceptor, std::string address, Clock* clock, const TcpOptions& options,
              std::shared_ptr<SilenceWatch> watch)
      : acceptor_(std::move(acceptor)),
        address_(std::move(address)),
        clock_(clock),
        options_(options),
        watch_(std::move(watch)) {}

  FabricKind kind() const noexcept override { return FabricKind::kTcp; }
  int event_fd() const noexcept override { return acceptor_.event_fd(); }

  absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                     std::string_view /*account*/, uint64_t tag,
                                     Instant deadline) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    CKV_RETURN_IF_ERROR(DecodeOffer(FabricKind::kTcp, offer).status());
    CKV_ASSIGN_OR_RETURN(const InvitationKey key,
                         invitations_.Add({shape, tag}, clock_->Now(), deadline));
    return EncodeAnswer(FabricKind::kTcp, {key, address_});
  }

  std::optional<AcceptedLane> Accept() override {
    invitations_.Expire(clock_->Now());
    while (std::optional<Acceptor::Knock> knock = acceptor_.Next()) {
      const std::optional<Invited> invited = invitations_.Take(knock->key, clock_->Now());
      if (!invited) {
        spdlog::warn("tcp listener: dropped a connection: no such invitation");
        continue;
      }
      TuneSocket(knock->fd.get(), options_);
      const WelcomeFrame welcome = MakeWelcome(invited->shape);
      // The first bytes of a new connection: its buffer has room, or it is broken.
      const int fd = knock->fd.get();
      if (send(fd, &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(welcome)) {
        spdlog::warn("tcp listener: {}", ErrnoText("the peer left before its welcome"));
        continue;
      }
      auto lane = NewTcpServeLane(std::move(knock->fd), invited->shape, watch_);
      if (!lane.ok()) {
        spdlog::warn("tcp listener: {}", std::string(lane.status().message()));
        continue;
      }
      return AcceptedLane{invited->tag, *std::move(lane)};
    }
    return std::nullopt;
  }

 private:
  struct Invited {
    LaneShape shape;
    uint64_t tag = 0;
  };

  Acceptor acceptor_;
  const std::string address_;
  Clock* const clock_;
  const TcpOptions options_;
  const std::shared_ptr<SilenceWatch> watch_;
  InvitationTable<Invited> invitations_;
};

class TcpDialer final : public Dialer {
 public:
  TcpDialer(const LaneShape& shape, Clock* clock, const TcpOptions& options,
            std::shared_ptr<SilenceWatch> watch)
      : shape_(shape),
        clock_(clock),
        options_(options),
        watch_(std::move(watch)),
        offer_(EncodeOffer(FabricKind::kTcp, "")) {}

  const std::string& offer() const override { return offer_; }

  absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                       Instant deadline) override {
    CKV_ASSIGN_OR_RETURN(const Answer where, DecodeAnswer(FabricKind::kTcp, answer));
    CKV_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(where.address, 0));
    absl::StatusOr<UniqueFd> socket = absl::UnavailableError("no address");
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      socket = ConnectTo(*a, deadline);
      if (socket.ok()) break;
    }
    if (!socket.ok()) return Annotate(socket.status(), where.address);
    TuneSocket(socket->get(), options_);
    HelloFrame hello;
    hello.invitation = where.key.id;
    hello.token = where.key.token;
    CKV_RETURN_IF_ERROR(
        Annotate(SendAll(socket->get(), BytesOf(hello), *clock_, deadline), "tcp hello"));
    WelcomeFrame welcome;
    CKV_RETURN_IF_ERROR(Annotate(
        ReceiveAll(socket->get(), WritableBytesOf(welcome), *clock_, deadline), "tcp welcome"));
    CKV_RETURN_IF_ERROR(CheckWelcome(welcome, shape_));
    return NewTcpRequestLane(*std::move(socket), shape_, watch_);
  }

 private:
  absl::StatusOr<UniqueFd> ConnectTo(const addrinfo& address, Instant deadline) {
    UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    if (!fd.valid()) return ErrnoStatus("socket");
    if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
    if (errno != EINPROGRESS) return ErrnoStatus("connect");
    CKV_RETURN_IF_ERROR(WaitFor(fd.get(), POLLOUT, *clock_, deadline));
    int error = 0;
    socklen_t bytes = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error == 0) return fd;
    errno = error;
    return ErrnoStatus("connect");
  }

  const LaneShape shape_;
  Clock* const clock_;
  const TcpOptions options_;
  const std::shared_ptr<SilenceWatch> watch_;
  const std::string offer_;
};

class TcpFabric final : public Fabric {
 public:
  TcpFabric(Clock* clock, const TcpOptions& options) : clock_(clock), options_(options) {}

  FabricKind kind() const noexcept override { return FabricKind::kTcp; }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    CKV_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(options.tcp_address, AI_PASSIVE));
    absl::StatusOr<UniqueFd> socket = absl::UnavailableError("no address");
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      socket = BindTo(*a);
      if (socket.ok()) break;
    }
    if (!socket.ok()) {
      return absl::Status(
          socket.status().code(),
          absl::StrFormat("%s: %s; choose a free port or an address of this host",
                          options.tcp_address, std::string(socket.status().message())));
    }
    CKV_ASSIGN_OR_RETURN(const BoundAddress bound, AddressOf(socket->get()));
    CKV_ASSIGN_OR_RETURN(std::string advertised, Advertised(options, bound));
    CKV_ASSIGN_OR_RETURN(Acceptor acceptor,
                         Acceptor::Create(*std::move(socket), "tcp listener", clock_));
    return std::make_unique<TcpListener>(std::move(acceptor), std::move(advertised), clock_,
                                         options_, watch_);
  }

  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    return std::make_unique<TcpDialer>(shape, clock_, options_, watch_);
  }

 private:
  static absl::StatusOr<UniqueFd> BindTo(const addrinfo& address) {
    UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    if (!fd.valid()) return ErrnoStatus("socket");
    SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0) return ErrnoStatus("bind");
    if (listen(fd.get(), kBacklog) != 0) return ErrnoStatus("listen");
    return fd;
  }

  Clock* const clock_;
  const TcpOptions options_;
  // Of all its lanes, which may outlive it.
  const std::shared_ptr<SilenceWatch> watch_ = std::make_shared<SilenceWatch>();
};

}  // namespace

std::unique_ptr<Fabric> NewTcpFabric(Clock* clock) { return NewTcpFabric(clock, TcpOptions{}); }
std::unique_ptr<Fabric> NewTcpFabric(Clock* clock, const TcpOptions& options) {
  return std::make_unique<TcpFabric>(clock, options);
}

}  // namespace ckv
