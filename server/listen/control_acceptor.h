// The port of a daemon's gRPC server. ckvd accepts by itself and hands the connections to gRPC.
//
// gRPC 1.51 stops to listen after the first accept that finds no descriptor, for the rest of its
// life. Here a connection is refused while descriptors run out, and the next one is accepted once
// there is room again.

#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "proto/base/host_port.h"
#include "server/listen/listener.h"
#include "transport/socket.h"

namespace ckv {

// A connection that has not begun to speak HTTP/2 after this time is closed. A good peer does so
// within a round trip.
inline constexpr Duration kControlHandshakeMax = std::chrono::seconds(10);

// Call the functions in order, from one thread.
class ControlAcceptor {
 public:
  // Listens on `address`, and lets the server that `builder` makes take what is accepted there.
  // Connections wait in the backlog until Start.
  //   Unavailable         says why it cannot be bound.
  static absl::StatusOr<std::unique_ptr<ControlAcceptor>> Listen(const HostPort& address,
                                                                 grpc::ServerBuilder& builder);
  ~ControlAcceptor() { Stop(); }
  ControlAcceptor(const ControlAcceptor&) = delete;
  ControlAcceptor& operator=(const ControlAcceptor&) = delete;

  // Accepts from here on. The server runs.
  void Start();
  // Accepts no more. Call it before the server's Shutdown. It gives the port up.
  void Stop();

  uint16_t port() const { return listener_.port(); }
  // Connections that were refused for want of descriptors. Any thread may call it.
  uint64_t refused_count() const { return refused_count_.load(std::memory_order_relaxed); }

 private:
  using Door = grpc::experimental::ExternalConnectionAcceptor;
  ControlAcceptor(PortListener listener, UniqueFd wake, std::unique_ptr<Door> door)
      : listener_(std::move(listener)), wake_(std::move(wake)), door_(std::move(door)) {}

  void Run();
  // Returns false if no descriptor is left to accept or refuse with.
  bool AcceptFrom(const UniqueFd& socket);

  PortListener listener_;
  const UniqueFd wake_;
  const std::unique_ptr<Door> door_;
  std::atomic<uint64_t> refused_count_ = 0;
  std::thread thread_;
};

}  // namespace ckv
