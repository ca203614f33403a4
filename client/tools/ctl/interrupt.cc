#include "client/tools/ctl/interrupt.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

constexpr uint64_t kEnd = 1024;  // above every signal's number: the counter adds what is written

std::atomic<int> wake_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);  // or the handler could not read it

void Wake(uint64_t value) {
  while (write(wake_fd.load(), &value, sizeof(value)) < 0 && errno == EINTR) {
  }
}

void Handle(int signal) {
  const int saved = errno;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  Wake(static_cast<uint64_t>(signal));
  errno = saved;
}

void Install(int signal, struct sigaction& old) {
  struct sigaction action = {};
  action.sa_handler = Handle;
  action.sa_flags = SA_RESTART;
  CKV_CHECK(sigaction(signal, nullptr, &old) == 0);
  if (old.sa_handler != SIG_IGN) CKV_CHECK(sigaction(signal, &action, nullptr) == 0);
}

}  // namespace

OnInterrupt::OnInterrupt(std::function<void()> act) : act_(std::move(act)) {
  CKV_CHECK(wake_fd.load() == -1);
  wake_fd = eventfd(0, EFD_CLOEXEC);
  CKV_CHECK(wake_fd.load() >= 0);
  watcher_ = std::thread([this] { Watch(); });
  Install(SIGINT, old_int_);
  Install(SIGTERM, old_term_);
}

OnInterrupt::~OnInterrupt() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  Wake(kEnd);
  watcher_.join();
  close(wake_fd.exchange(-1));
}

void OnInterrupt::Watch() const {
  uint64_t value = 0;
  while (read(wake_fd.load(), &value, sizeof(value)) < 0 && errno == EINTR) {
  }
  const auto signal = static_cast<int>(value % kEnd);
  if (signal == 0) return;
  act_();
  // By the signal, and not by an exit code: a shell then ends its loop around the command.
  std::signal(signal, SIG_DFL);
  kill(getpid(), signal);
  _exit(128 + signal);
}

}  // namespace ckv::ctl
