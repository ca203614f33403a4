#include "transport/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "proto/base/log.h"

namespace ckv {
namespace {

// The largest number of new connections per call: a flood must not keep the accepting thread from
// its other work.
constexpr int kAcceptBatchMax = 64;

bool Watch(int epoll_fd, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<Acceptor> Acceptor::Create(UniqueFd listener, std::string name, const Clock* clock) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus("epoll_create1");
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer.valid()) return ErrnoStatus("timerfd_create");
  if (!Watch(epoll.get(), listener.get()) || !Watch(epoll.get(), timer.get())) {
    return ErrnoStatus("epoll_ctl");
  }
  return Acceptor(std::move(listener), std::move(epoll), std::move(timer), std::move(name), clock);
}

std::optional<Acceptor::Knock> Acceptor::Next() {
  AcceptNew();
  const Instant now = clock_->Now();
  std::optional<Knock> knock;
  for (auto it = pending_.begin(); it != pending_.end() && !knock;) {
    const Progress progress = Read(*it);
    if (progress == Progress::kWaiting && it->deadline > now) {
      ++it;
      continue;
    }
    if (progress == Progress::kWaiting) Drop("no hello in time");
    if (progress == Progress::kWhole) {
      HelloFrame hello;
      std::memcpy(&hello, it->hello.data(), sizeof(hello));
      if (hello.magic != kHelloMagic || hello.version != kHandshakeVersion || hello.reserved != 0) {
        Drop("not a hello of this version");
      } else {
        // The lane will watch it by itself.
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->fd.get(), nullptr);
        knock = Knock{std::move(it->fd), {hello.invitation, hello.token}};
      }
    }
    it = pending_.erase(it);
  }
  SetTimer();
  return knock;
}

void Acceptor::AcceptNew() {
  for (int i = 0; i < kAcceptBatchMax; ++i) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // Out of descriptors: the connection waits in the backlog and Accept is called again.
      if (errno == EMFILE || errno == ENFILE) Log().warn("{}: {}", name_, ErrnoText("accept"));
      return;
    }
    if (pending_.size() == kPendingHandshakeCountMax) {
      Drop("too many half-open connections");
      pending_.pop_front();
    }
    if (!Watch(epoll_.get(), fd.get())) {
      Drop("cannot be watched");
      continue;
    }
    pending_.push_back({std::move(fd), clock_->Now() + kHandshakeMax, 0, {}});
  }
}

Acceptor::Progress Acceptor::Read(Pending& pending) {
  while (pending.got_bytes < pending.hello.size()) {
    const std::span<std::byte> rest = std::span(pending.hello).subspan(pending.got_bytes);
    const ssize_t got = recv(pending.fd.get(), rest.data(), rest.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Progress::kWaiting;
    if (got <= 0) {
      Drop("hung up before its hello");
      return Progress::kDropped;
    }
    pending.got_bytes += static_cast<size_t>(got);
  }
  return Progress::kWhole;
}

void Acceptor::Drop(const char* why) { Log().warn("{}: dropped a connection: {}", name_, why); }

void Acceptor::SetTimer() {
  itimerspec when = {};
  if (!pending_.empty()) {
    const auto left = pending_.front().deadline - clock_->Now();
    const int64_t ns = std::max<int64_t>(left.count(), 1);  // 0 would disarm
    when.it_value.tv_sec = ns / 1'000'000'000;
    when.it_value.tv_nsec = ns % 1'000'000'000;
  }
  // Setting it also clears an expiry that was not read.
  timerfd_settime(timer_.get(), 0, &when, nullptr);
}

}  // namespace ckv
