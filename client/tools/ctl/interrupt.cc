#include "client/tools/ctl/interrupt.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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

// Waits for a signal from its construction to its destruction.
class SignalWatcher {
 public:
  SignalWatcher();
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  static void Watch();

  struct sigaction old_int_ = {}, old_term_ = {};
  std::thread watcher_;
};

// Shared by all OnInterrupts that live.
struct Acts {
  absl::Mutex mu;
  std::vector<const std::function<void()>*> acts ABSL_GUARDED_BY(mu);
  std::unique_ptr<SignalWatcher> watcher ABSL_GUARDED_BY(mu);  // while there are acts
};
Acts& TheActs() {
  static auto* acts = new Acts;
  return *acts;
}

SignalWatcher::SignalWatcher() {
  wake_fd = eventfd(0, EFD_CLOEXEC);
  CKV_CHECK(wake_fd.load() >= 0);
  watcher_ = std::thread(Watch);
  Install(SIGINT, old_int_);
  Install(SIGTERM, old_term_);
}

SignalWatcher::~SignalWatcher() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  Wake(kEnd);
  watcher_.join();
  close(wake_fd.exchange(-1));
}

void SignalWatcher::Watch() {
  uint64_t value = 0;
  while (read(wake_fd.load(), &value, sizeof(value)) < 0 && errno == EINTR) {
  }
  const auto signal = static_cast<int>(value % kEnd);
  if (signal == 0) return;
  Acts& all = TheActs();
  absl::MutexLock lock(&all.mu);
  for (auto act = all.acts.rbegin(); act != all.acts.rend(); ++act) (**act)();
  // By the signal, and not by an exit code: a shell then ends its loop around the command.
  std::signal(signal, SIG_DFL);
  kill(getpid(), signal);
  _exit(128 + signal);
}

}  // namespace

OnInterrupt::OnInterrupt(std::function<void()> act) : act_(std::move(act)) {
  Acts& all = TheActs();
  absl::MutexLock lock(&all.mu);
  all.acts.push_back(&act_);
  if (all.watcher == nullptr) all.watcher = std::make_unique<SignalWatcher>();
}

OnInterrupt::~OnInterrupt() {
  Acts& all = TheActs();
  std::unique_ptr<SignalWatcher> ended;
  {
    absl::MutexLock lock(&all.mu);  // held while the acts run, and then until the process ends
    if (all.acts.size() == 1) ended = std::move(all.watcher);
  }
  ended.reset();  // does not return if a signal came
  absl::MutexLock lock(&all.mu);
  std::erase(all.acts, &act_);
}

}  // namespace ckv::ctl
