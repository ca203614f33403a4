// The fabric across hosts, over the kernel's TCP. In order: Listen binds and advertises an address;
// Invite makes the holder's slots, and answers with address and token; Connect resolves, dials each
// address until one connects, and sends the token; Accept finds the invitation and welcomes the
// peer; both ends make a lane of the socket. TuneSocket sets the time limits by which either end
// notices that the other is gone.

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/host_port.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "transport/acceptor.h"
#include "transport/fabric.h"
#include "transport/handshake.h"
#include "transport/lane_memory.h"
#include "transport/socket.h"
#include "transport/tcp/silence_watch.h"
#include "transport/tcp/tcp_lane.h"

namespace ckv {
namespace {

// A half-open connection must be found within 3 s. Probes find an idle one; they are sent 1 and 2 s
// after the last sign of life. SilenceWatch ends it at 2.5 to 2.7 s. The kernel would end it at its
// timer's next firing past the user timeout, at some 3.05 s. With one probe alone, each lost packet
// would end idle lanes.
constexpr int kKeepIdleS = 1;
constexpr int kKeepIntervalS = 1;
constexpr int kKeepCount = 2;
// The limit for a connection with data in transfer, in the cases that SilenceWatch cannot judge.
// Round trips may be too long for it, or the peer is heard but does not hear, so that it is not
// silent. There the kernel counts from the first retransmission, some 0.4 s after the data. A limit
// of 3 s found the loss after 3.4 s; this one finds it after 2.85 s. It must exceed the time of two
// probes, or idle connections end after the first. A live peer that keeps its window closed for
// this time counts as gone, too.
constexpr int kUserTimeoutMs = 2400;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Resolves an address.
//   InvalidArgument     not host:port.
//   Unavailable         the name does not resolve.
absl::StatusOr<AddressList> Resolve(std::string_view address, int flags) {
  CKV_ASSIGN_OR_RETURN(const HostPort parsed, HostPort::Parse(address));
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
  // It fails on no socket of ours. If it did, the lane would be slower, not wrong.
  (void)setsockopt(fd, level, name, &value, sizeof(value));
}

// Kernels that know only SO_BUSY_POLL are slower, not wrong.
void PollBusily(int fd, uint32_t busy_poll_us) {
  const int us = static_cast<int>(std::min(busy_poll_us, kBusyPollUsMax));
  static std::atomic<bool> refused{false};
  if (setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof(us)) != 0) {
    if (!refused.exchange(true)) Log().warn("tcp: {}", ErrnoText("busy polling is refused"));
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

// As bound, with a numeric host.
absl::StatusOr<HostPort> AddressOf(int fd) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return ErrnoStatus("getsockname");
  }
  return HostPort{host, static_cast<uint16_t>(std::strtoul(port, nullptr, 10))};
}

// Returns the address that is advertised to peers.
absl::StatusOr<std::string> Advertised(const ListenOptions& options, const HostPort& bound) {
  if (!options.tcp_advertise.empty()) {
    CKV_ASSIGN_OR_RETURN(HostPort advertised, HostPort::Parse(options.tcp_advertise));
    if (advertised.port == 0) advertised.port = bound.port;
    return advertised.ToString();
  }
  if (bound.IsWildcard()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("bound to every address (%s): choose the one that peers shall connect to",
                        options.tcp_address));
  }
  return bound.ToString();
}

class TcpListener final : public Listener {
 public:
  TcpListener(Acceptor acceptor, std::string address, Clock* clock, const TcpOptions& options,
              std::shared_ptr<SilenceWatch> watch, std::shared_ptr<MemoryPinner> slot_pinner)
      : acceptor_(std::move(acceptor)),
        address_(std::move(address)),
        clock_(clock),
        options_(options),
        watch_(std::move(watch)),
        slot_pinner_(std::move(slot_pinner)) {}

  FabricKind kind() const noexcept override { return FabricKind::kTcp; }
  int event_fd() const noexcept override { return acceptor_.event_fd(); }

  absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                     std::string_view /*account*/, uint64_t tag,
                                     Instant deadline) override {
    CKV_RETURN_IF_ERROR(ValidateLaneShape(shape));
    CKV_RETURN_IF_ERROR(DecodeOffer(FabricKind::kTcp, offer).status());
    // Not in Accept: its thread answers requests meanwhile, and pinning takes long.
    CKV_ASSIGN_OR_RETURN(LaneMemory memory, LaneMemory::CreatePrivate(shape));
    CKV_RETURN_IF_ERROR(memory.Pin(slot_pinner_));
    CKV_ASSIGN_OR_RETURN(const InvitationKey key,
                         invitations_.Add({std::make_unique<LaneMemory>(std::move(memory)), tag},
                                          clock_->Now(), deadline));
    return EncodeAnswer(FabricKind::kTcp, {key, address_});
  }

  std::optional<AcceptedLane> Accept() override {
    invitations_.Expire(clock_->Now());
    while (std::optional<Acceptor::Knock> knock = acceptor_.Next()) {
      std::optional<Invited> invited = invitations_.Take(knock->key, clock_->Now());
      if (!invited) {
        Log().warn("tcp listener: dropped a connection: no such invitation");
        continue;
      }
      TuneSocket(knock->fd.get(), options_);
      const WelcomeFrame welcome = MakeWelcome(invited->memory->shape());
      // These are the first bytes of a new connection, so its buffer has room or it is broken.
      const int fd = knock->fd.get();
      if (send(fd, &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(welcome)) {
        Log().warn("tcp listener: {}", ErrnoText("the peer left before its welcome"));
        continue;
      }
      auto lane = NewTcpServeLane(std::move(knock->fd), std::move(*invited->memory), watch_);
      if (!lane.ok()) {
        Log().warn("tcp listener: {}", std::string(lane.status().message()));
        continue;
      }
      return AcceptedLane{invited->tag, *std::move(lane)};
    }
    return std::nullopt;
  }

 private:
  struct Invited {
    std::unique_ptr<LaneMemory> memory;
    uint64_t tag = 0;
  };

  Acceptor acceptor_;
  const std::string address_;
  Clock* const clock_;
  const TcpOptions options_;
  const std::shared_ptr<SilenceWatch> watch_;
  const std::shared_ptr<MemoryPinner> slot_pinner_;
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
    CKV_ASSIGN_OR_RETURN(const HostPort bound, AddressOf(socket->get()));
    CKV_ASSIGN_OR_RETURN(std::string advertised, Advertised(options, bound));
    CKV_ASSIGN_OR_RETURN(Acceptor acceptor,
                         Acceptor::Create(*std::move(socket), "tcp listener", clock_));
    return std::make_unique<TcpListener>(std::move(acceptor), std::move(advertised), clock_,
                                         options_, watch_, options.slot_pinner);
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
    if (listen(fd.get(), kListenBacklog) != 0) return ErrnoStatus("listen");
    return fd;
  }

  Clock* const clock_;
  const TcpOptions options_;
  // Watches all lanes of the fabric, which may outlive it.
  const std::shared_ptr<SilenceWatch> watch_ = std::make_shared<SilenceWatch>();
};

}  // namespace

std::unique_ptr<Fabric> NewTcpFabric(Clock* clock) { return NewTcpFabric(clock, TcpOptions{}); }
std::unique_ptr<Fabric> NewTcpFabric(Clock* clock, const TcpOptions& options) {
  return std::make_unique<TcpFabric>(clock, options);
}

}  // namespace ckv
