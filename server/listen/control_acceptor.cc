#include "server/listen/control_acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "client/grpc/channel_stub.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// New connections per turn, so that Stop is noticed.
constexpr int kAcceptBatchMax = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<ControlAcceptor>> ControlAcceptor::Listen(
    const HostPort& address, grpc::ServerBuilder& builder) {
  CKV_ASSIGN_OR_RETURN(PortListener listener,
                       PortListener::Bind(address, /*both_families=*/true, PortUse::kCalls));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus("eventfd");
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(kControlHandshakeMax / std::chrono::milliseconds(1)));
  auto door = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  return std::unique_ptr<ControlAcceptor>(
      new ControlAcceptor(std::move(listener), std::move(wake), std::move(door)));
}

void ControlAcceptor::Start() {
  thread_ = std::thread([this] { Run(); });
}

void ControlAcceptor::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
  thread_.join();
  listener_.Close();
}

void ControlAcceptor::Run() {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}};
  for (const UniqueFd& socket : listener_.sockets()) polled.push_back({socket.get(), POLLIN, 0});
  bool is_short = false;
  while (true) {
    const int pause_ms = static_cast<int>(PortListener::kShortPause / std::chrono::milliseconds(1));
    const nfds_t count = is_short ? 1 : polled.size();  // only the wake-up descriptor
    if (poll(polled.data(), count, is_short ? pause_ms : -1) < 0) continue;
    if (polled[0].revents != 0) return;
    if (std::exchange(is_short, false)) continue;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) is_short |= !AcceptFrom(listener_.sockets()[i - 1]);
    }
  }
}

bool ControlAcceptor::AcceptFrom(const UniqueFd& socket) {
  for (int i = 0; i < kAcceptBatchMax; ++i) {
    const PortListener::Accepted accepted = listener_.Accept(socket);
    if (accepted.outcome == PortListener::Outcome::kNone) return true;
    if (accepted.outcome == PortListener::Outcome::kShort) return false;
    if (accepted.outcome == PortListener::Outcome::kRefused) {
      refused_count_.fetch_add(1, std::memory_order_relaxed);
      rlimit limit = {};
      getrlimit(RLIMIT_NOFILE, &limit);
      Log().warn(
          "the control port refused a connection: of {} descriptors (ulimit -n, LimitNOFILE), all "
          "but the {} kept for other things are in use",
          limit.rlim_cur, DescriptorsKept(limit.rlim_cur, PortUse::kCalls));
      continue;
    }
    // As gRPC does for its own connections: unacknowledged bytes end the connection.
    const unsigned timeout_ms =
        static_cast<unsigned>(kKeepAliveTimeout / std::chrono::milliseconds(1));
    setsockopt(accepted.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
    Door::NewConnectionParameters connection;
    connection.fd = accepted.fd;
    door_->HandleNewConnection(&connection);  // it closes the descriptor
  }
  return true;
}

}  // namespace ckv
