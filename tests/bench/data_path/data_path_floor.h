// Floors for the data path's figures: the same bytes moved by nothing but memory, or nothing but
// the kernel's TCP.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "proto/base/clock.h"
#include "tests/bench/floor.h"
#include "transport/lane_memory.h"
#include "transport/socket.h"

namespace ckv::bench {

// The other end of a floor: a thread on kHolderCpu that spins while awake and sleeps otherwise, so
// that it takes no time from a dispatcher on the same CPU.
class PeerThread {
 public:
  // `step` is called again and again while awake; it never blocks for longer than a message takes.
  explicit PeerThread(std::function<void()> step);
  ~PeerThread();
  void Wake();
  void Park();

 private:
  enum State : int { kParked, kAwake, kStopped };
  const std::function<void()> step_;
  std::atomic<int> state_{kParked};
  std::thread thread_;
};

// The work of a ping-pong's peer for an arrived request: reads it and writes all of the reply. The
// reply's bytes are then in whatever caches that work leaves them.
using Serve = std::function<void(std::span<const std::byte> request, std::span<std::byte> reply)>;

// A round trip's time, and how much of it the peer served.
struct Trip {
  Duration all{0};
  Duration served{0};
};

// Each end writes what it sends once, and reads what it receives in place. One flag per direction
// signals it, in memory of the same kind as an shm lane's.
class FlagPingPong {
 public:
  FlagPingPong(uint32_t request_bytes, uint32_t reply_bytes, Serve serve);
  Trip Go();
  PeerThread& peer() { return peer_; }

 private:
  struct alignas(64) Flag {
    std::atomic<uint64_t> value{0};
  };
  void Step();

  const Serve serve_;
  const std::vector<std::byte> source_;
  const uint32_t request_bytes_, reply_bytes_;
  LaneMemory memory_;
  Flag request_, reply_;
  uint64_t turn_ = 0, served_turn_ = 0;
  std::atomic<int64_t> served_ns_{0};
  PeerThread peer_;
};

// The same by non-blocking sends and receives, with one buffer per direction and end; the kernel's
// default socket buffers, as in a tcp lane, and no delay.
class TcpPingPong {
 public:
  TcpPingPong(uint32_t request_bytes, uint32_t reply_bytes, Serve serve);
  Trip Go();
  PeerThread& peer() { return peer_; }

 private:
  void Step();

  const Serve serve_;
  const std::vector<std::byte> source_;
  std::vector<std::byte> request_, reply_;            // the driver's
  std::vector<std::byte> peer_request_, peer_reply_;  // the peer's
  UniqueFd driver_, peer_end_;
  size_t received_ = 0;  // by the peer, of one request
  std::atomic<int64_t> served_ns_{0};
  PeerThread peer_;
};

// kSendfile        a memfd over one connection; the sender copies nothing
// kTwoConnections  half each over two connections, by send and receive
// kChecked         send and receive over one connection, kFetchBodyBytesMax at a time; the driver
//                  takes the checksum of each stripe (proto/base/stripe.h) of 1152-byte rows
enum class BulkKind { kSendfile, kTwoConnections, kChecked };

// One way: moves bytes from a source in memory to the driver's memory.
class TcpBulk {
 public:
  TcpBulk(BulkKind kind, size_t source_bytes);
  // Takes `to.size()` bytes of the source, from `offset` on.
  void Take(size_t offset, std::span<std::byte> to);
  PeerThread& peer() { return peer_; }

 private:
  static constexpr size_t kLaneMax = 2;
  struct Progress {
    size_t offset = 0, end = 0;
  };
  void Step();
  size_t connections() const { return kind_ == BulkKind::kTwoConnections ? 2 : 1; }

  const BulkKind kind_;
  Buffer source_;
  UniqueFd file_;
  std::array<UniqueFd, kLaneMax> driver_, peer_end_;
  std::array<Progress, kLaneMax>
      todo_;  // the peer's while sent_ is behind asked_, else the driver's
  std::atomic<uint64_t> requested_{0}, sent_{0};
  PeerThread peer_;
};

}  // namespace ckv::bench
