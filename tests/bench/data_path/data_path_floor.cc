#include "tests/bench/data_path/data_path_floor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "benchmark/benchmark.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/bench/lanes/tcp_floor.h"
#include "transport/wire.h"

namespace ckv::bench {
namespace {

// The two ends of a connection that never blocks: sendfile has no flag for it.
void Connect(UniqueFd& driver, UniqueFd& peer) {
  TcpPair pair = ConnectTcp();
  for (const int fd : {pair.a.get(), pair.b.get()}) {
    CKV_CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
  }
  driver = std::move(pair.a);
  peer = std::move(pair.b);
}

// How many bytes a non-blocking call moved.
size_t Moved(ssize_t result) {
  if (result > 0) return static_cast<size_t>(result);
  CKV_CHECK(result < 0 && (errno == EAGAIN || errno == EINTR));
  return 0;
}
size_t SendSome(int fd, std::span<const std::byte> bytes) {
  return Moved(send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
}
size_t ReceiveSome(int fd, std::span<std::byte> bytes) {
  return Moved(recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT));
}

LaneMemory SharedMemory() {
  auto memory = LaneMemory::Create(LaneShape{});
  CKV_CHECK(memory.ok());
  return *std::move(memory);
}

int64_t NowNs() { return Clock::Real()->Now().ns; }

}  // namespace

PeerThread::PeerThread(std::function<void()> step) : step_(std::move(step)) {
  // Started on that CPU rather than moved there later: on the CPU of a driver that spins with a
  // real-time priority, it would never run to move itself.
  const OnCpu cpu(kHolderCpu);
  thread_ = std::thread([this] {
    while (state_.load(std::memory_order_acquire) != kStopped) {
      state_.wait(kParked);
      while (state_.load(std::memory_order_relaxed) == kAwake) step_();
    }
  });
}

PeerThread::~PeerThread() {
  state_.store(kStopped);
  state_.notify_one();
  thread_.join();
}

// Sequentially consistent with the check for waiters inside notify_one. gcc 12's check could
// otherwise pass the store and find no waiter, while the peer goes to sleep on the previous value.
void PeerThread::Wake() {
  state_.store(kAwake);
  state_.notify_one();
}

void PeerThread::Park() { state_.store(kParked, std::memory_order_release); }

FlagPingPong::FlagPingPong(uint32_t request_bytes, uint32_t reply_bytes, Serve serve)
    : serve_(std::move(serve)),
      source_(request_bytes, std::byte{3}),
      request_bytes_(request_bytes),
      reply_bytes_(reply_bytes),
      memory_(SharedMemory()),
      peer_([this] { Step(); }) {}

void FlagPingPong::Step() {
  if (request_.value.load(std::memory_order_acquire) == served_turn_) return;
  const int64_t begin = NowNs();
  serve_(memory_.request(0).first(request_bytes_), memory_.reply(0).first(reply_bytes_));
  served_ns_.store(NowNs() - begin, std::memory_order_relaxed);
  reply_.value.store(++served_turn_, std::memory_order_release);
}

Trip FlagPingPong::Go() {
  const int64_t begin = NowNs();
  std::memcpy(memory_.request(0).data(), source_.data(), request_bytes_);
  request_.value.store(++turn_, std::memory_order_release);
  while (reply_.value.load(std::memory_order_acquire) != turn_) {
  }
  Read(memory_.reply(0).first(reply_bytes_));
  return {Duration(NowNs() - begin), Duration(served_ns_.load(std::memory_order_relaxed))};
}

TcpPingPong::TcpPingPong(uint32_t request_bytes, uint32_t reply_bytes, Serve serve)
    : serve_(std::move(serve)),
      source_(request_bytes, std::byte{3}),
      request_(request_bytes),
      reply_(reply_bytes),
      peer_request_(request_bytes),
      peer_reply_(reply_bytes),
      peer_([this] { Step(); }) {
  Connect(driver_, peer_end_);
}

void TcpPingPong::Step() {
  received_ += ReceiveSome(peer_end_.get(), std::span(peer_request_).subspan(received_));
  if (received_ != peer_request_.size()) return;
  received_ = 0;
  const int64_t begin = NowNs();
  serve_(peer_request_, peer_reply_);
  served_ns_.store(NowNs() - begin, std::memory_order_relaxed);
  for (std::span<const std::byte> rest = peer_reply_; !rest.empty();) {
    rest = rest.subspan(SendSome(peer_end_.get(), rest));
  }
}

Trip TcpPingPong::Go() {
  const int64_t begin = NowNs();
  std::memcpy(request_.data(), source_.data(), request_.size());
  for (std::span<const std::byte> rest = request_; !rest.empty();) {
    rest = rest.subspan(SendSome(driver_.get(), rest));
  }
  for (std::span<std::byte> rest = reply_; !rest.empty();) {
    rest = rest.subspan(ReceiveSome(driver_.get(), rest));
  }
  Read(reply_);
  return {Duration(NowNs() - begin), Duration(served_ns_.load(std::memory_order_relaxed))};
}

TcpBulk::TcpBulk(BulkKind kind, size_t source_bytes)
    : kind_(kind), source_(source_bytes), peer_([this] { Step(); }) {
  for (size_t i = 0; i < connections(); ++i) Connect(driver_[i], peer_end_[i]);
  if (kind_ != BulkKind::kSendfile) return;
  file_ = UniqueFd(memfd_create("source", MFD_CLOEXEC));
  CKV_CHECK(file_.valid());
  for (std::span<const std::byte> rest = source_.bytes(); !rest.empty();) {
    rest = rest.subspan(Moved(write(file_.get(), rest.data(), rest.size())));
  }
}

void TcpBulk::Step() {
  const uint64_t requested = requested_.load(std::memory_order_acquire);
  if (requested == sent_.load(std::memory_order_relaxed)) return;
  bool more = false;
  for (size_t i = 0; i < connections(); ++i) {
    Progress& todo = todo_[i];
    if (todo.offset == todo.end) continue;
    const size_t left = todo.end - todo.offset;
    if (kind_ == BulkKind::kSendfile) {
      auto offset = static_cast<off_t>(todo.offset);
      todo.offset += Moved(sendfile(peer_end_[i].get(), file_.get(), &offset, left));
    } else {
      const size_t piece = kind_ == BulkKind::kChecked ? kFetchBodyBytesMax : left;
      todo.offset +=
          SendSome(peer_end_[i].get(), source_.bytes().subspan(todo.offset, std::min(piece, left)));
    }
    more = more || todo.offset != todo.end;
  }
  if (!more) sent_.store(requested, std::memory_order_release);
}

void TcpBulk::Take(size_t offset, std::span<std::byte> to) {
  constexpr size_t kStripeBytes = size_t{kStripeTokens} * 1152;
  std::span<const std::byte> unchecked = kind_ == BulkKind::kChecked ? to : to.first(0);
  std::array<std::span<std::byte>, kLaneMax> rest;
  const size_t share = to.size() / connections();
  for (size_t i = 0; i < connections(); ++i) {
    const size_t begin = i * share;
    const size_t end = i + 1 == connections() ? to.size() : begin + share;
    rest[i] = to.subspan(begin, end - begin);
    todo_[i] = {offset + begin, offset + end};
  }
  const uint64_t requested = requested_.load(std::memory_order_relaxed) + 1;
  requested_.store(requested, std::memory_order_release);
  while (!rest[0].empty() || !rest[1].empty()) {
    for (size_t i = 0; i < connections(); ++i) {
      if (!rest[i].empty()) rest[i] = rest[i].subspan(ReceiveSome(driver_[i].get(), rest[i]));
    }
    while (!unchecked.empty() &&
           (unchecked.size() - rest[0].size() >= kStripeBytes || rest[0].empty())) {
      const auto stripe = unchecked.first(std::min(kStripeBytes, unchecked.size()));
      benchmark::DoNotOptimize(StripeChecksum(stripe));
      unchecked = unchecked.subspan(stripe.size());
    }
  }
  // The last bytes may be here before the send that moved them has returned.
  while (sent_.load(std::memory_order_acquire) != requested) {
  }
}

}  // namespace ckv::bench
