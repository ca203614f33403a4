// Bounds untimed waits of an absl::Mutex by the monotonic clock. AwaitMonotonic, in order:
// evaluates the condition; registers the wait with the alarm; waits without a time limit for the
// condition or the wait's end. The alarm's thread ends waits whose deadline has passed, by locking
// and unlocking their mutex; if it is held, it tries again later. If there is no alarm thread, a
// wait looks at the time every 10 ms. The second half replaces a function of abseil before 2023-08,
// whose timed waits use the wall clock.

#include "proto/host/monotonic_wait.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <vector>

#include "absl/base/config.h"
#include "absl/base/internal/thread_identity.h"
#include "absl/synchronization/internal/kernel_timeout.h"
#include "absl/synchronization/internal/per_thread_sem.h"
#include "absl/synchronization/internal/waiter.h"
#include "proto/host/platform.h"

namespace ckv {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

// A mutex that is held at a wait's deadline is tried again after this, then after twice as long. An
// unlock evaluates the condition too, so this is only for one that did so before.
constexpr int64_t kTryAgainNs = 1'000'000;
constexpr int64_t kTryAgainNsMax = 64'000'000;
// How often a wait looks at the time if there is no thread for alarms.
constexpr absl::Duration kLook = absl::Milliseconds(10);

int64_t ReadNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * kSecondNs + now.tv_nsec;
}

// One call of AwaitMonotonic that blocks.
struct Wait {
  bool Ends() const { return is_over.load(std::memory_order_acquire) || condition->Eval(); }

  absl::Mutex* mu;
  const absl::Condition* condition;
  std::atomic<bool> is_over = false;  // its deadline has passed

  // The alarm's; under its mutex.
  int64_t look_at_ns;
  int64_t pause_ns = kTryAgainNs;
  bool is_reported_now = false;  // the alarm uses `mu`
  size_t place = 0;
};

// The thread that ends waits. It starts with the first one and ends with the process. Its own mutex
// is a std one, because libstdc++ waits on it by CLOCK_MONOTONIC.
class Alarm {
 public:
  static Alarm& OfProcess() {
    static Alarm* const alarm = new Alarm;  // threads may outlive the static objects
    return *alarm;
  }

  // Returns false if there is no thread and none can be had: in the child of a fork, or at the
  // limit of threads.
  bool Add(Wait& wait) {
    if (process_ != getpid()) return false;
    const std::lock_guard lock(mu_);
    if (!has_thread_ && !StartThread()) return false;
    wait.place = waits_.size();
    waits_.push_back(&wait);
    if (wait.look_at_ns < sleeps_until_ns_) wake_.notify_one();
    return true;
  }

  // The caller holds the wait's mutex.
  void Remove(Wait& wait) {
    std::unique_lock lock(mu_);
    reported_.wait(lock, [&wait] { return !wait.is_reported_now; });
    waits_[wait.place] = waits_.back();
    waits_[wait.place]->place = wait.place;
    waits_.pop_back();
  }

 private:
  bool StartThread() {
    // The program's signals are for its own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    const auto run = [](void* alarm) -> void* {
      static_cast<Alarm*>(alarm)->Run();
      return nullptr;
    };
    has_thread_ = pthread_create(&thread, nullptr, run, this) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (has_thread_) {
      pthread_setname_np(thread, "ckv-alarm");
      pthread_detach(thread);
    }
    return has_thread_;
  }

  void Run() {
    std::unique_lock lock(mu_);
    while (true) {
      const int64_t now_ns = MonotonicNs();
      Wait* due = nullptr;
      int64_t next_ns = INT64_MAX;
      for (Wait* const wait : waits_) {
        if (wait->look_at_ns <= now_ns) due = wait;
        next_ns = std::min(next_ns, wait->look_at_ns);
      }
      if (due != nullptr) {
        Tell(*due, lock);
        continue;
      }
      sleeps_until_ns_ = next_ns;
      using Time = std::chrono::steady_clock::time_point;
      if (next_ns == INT64_MAX) {
        wake_.wait(lock);
      } else {
        wake_.wait_until(lock, Time(std::chrono::nanoseconds(next_ns)));
      }
      sleeps_until_ns_ = INT64_MIN;
    }
  }

  // Unlocking the wait's mutex evaluates its condition. Conditions run in this thread then, so the
  // alarm's own mutex is released meanwhile. The wait exists until Remove has seen
  // `is_reported_now` end.
  void Tell(Wait& wait, std::unique_lock<std::mutex>& lock) {
    wait.is_reported_now = true;
    wait.is_over.store(true, std::memory_order_release);
    lock.unlock();
    const bool reported = TryLockOnce(*wait.mu);
    lock.lock();
    wait.is_reported_now = false;
    wait.look_at_ns = reported ? INT64_MAX : MonotonicNs() + wait.pause_ns;
    wait.pause_ns = std::min(2 * wait.pause_ns, kTryAgainNsMax);
    reported_.notify_all();
  }

  static bool TryLockOnce(absl::Mutex& mu) {
    if (!mu.TryLock()) return false;
    mu.Unlock();
    return true;
  }

  const pid_t process_ = getpid();
  std::mutex mu_;
  std::condition_variable wake_, reported_;
  std::vector<Wait*> waits_;
  bool has_thread_ = false;
  int64_t sleeps_until_ns_ = INT64_MIN;
};

}  // namespace

int64_t MonotonicNs() noexcept { return ReadNs(CLOCK_MONOTONIC); }

bool AwaitMonotonic(absl::Mutex& mu, const absl::Condition& condition, int64_t deadline_ns) {
  if (condition.Eval()) return true;
  if (deadline_ns == INT64_MAX) {
    mu.Await(condition);
    return true;
  }
  if (MonotonicNs() >= deadline_ns) return false;
  Wait wait = {.mu = &mu, .condition = &condition, .look_at_ns = deadline_ns};
  if (Alarm& alarm = Alarm::OfProcess(); alarm.Add(wait)) {
    mu.Await(absl::Condition(&wait, &Wait::Ends));
    alarm.Remove(wait);
    return condition.Eval();
  }
  while (!mu.AwaitWithTimeout(condition, kLook)) {
    if (MonotonicNs() >= deadline_ns) return condition.Eval();
  }
  return true;
}

void SleepMonotonic(int64_t deadline_ns) {
  const timespec until = {deadline_ns / kSecondNs, deadline_ns % kSecondNs};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

#if defined(ABSL_LTS_RELEASE_VERSION) && ABSL_LTS_RELEASE_VERSION < 20230802

namespace {

// The wall clock counts as stepped if it moved by this much against the monotonic one. NTP slews by
// at most 0.5 ms a second.
constexpr int64_t kStepNs = 50'000'000;
// For this long after a step was seen, a wait ends after this at the latest. Abseil computed its
// end from the wall clock, perhaps just before the step. Callers check their own time and wait
// again.
constexpr int64_t kAfterStepNs = kSecondNs;

std::atomic<int64_t> g_wall_ahead_ns = 0;
std::atomic<int64_t> g_stepped_at_ns = 0;

// The monotonic time at which a wait ends whose end in abseil is `wall` of the wall clock.
int64_t MonotonicEnd(const timespec& wall) {
  const int64_t now_ns = MonotonicNs();
  const int64_t wall_now_ns = ReadNs(CLOCK_REALTIME);
  int64_t left_ns = int64_t{wall.tv_sec} * kSecondNs + wall.tv_nsec - wall_now_ns;
  const int64_t ahead_ns = wall_now_ns - now_ns;
  const int64_t before_ns = g_wall_ahead_ns.load(std::memory_order_relaxed);
  if (std::abs(ahead_ns - before_ns) > kStepNs) {
    g_wall_ahead_ns.store(ahead_ns, std::memory_order_relaxed);
    if (before_ns != 0) g_stepped_at_ns.store(now_ns, std::memory_order_relaxed);
  }
  const int64_t stepped_at_ns = g_stepped_at_ns.load(std::memory_order_relaxed);
  if (stepped_at_ns != 0 && now_ns - stepped_at_ns < kAfterStepNs) {
    left_ns = std::min(left_ns, kAfterStepNs);
  }
  return now_ns + std::max<int64_t>(left_ns, 0);
}

static_assert(ABSL_WAITER_MODE == ABSL_WAITER_MODE_FUTEX);

// Blocks until the count of `waiter` is above 0 and takes one from it, or until the end. This is
// absl::synchronization_internal::Waiter::Wait with another clock; Waiter has only its count.
bool WaitForPost(absl::synchronization_internal::Waiter& waiter,
                 absl::synchronization_internal::KernelTimeout timeout) {
  auto& count = reinterpret_cast<std::atomic<int32_t>&>(waiter);
  if (Platform* const simulated = Platform::Simulated()) return simulated->WaitForPost(count);
  timespec end = {};
  if (timeout.has_timeout()) {
    const int64_t end_ns = MonotonicEnd(timeout.MakeAbsTimespec());
    end = {end_ns / kSecondNs, end_ns % kSecondNs};
  }
  while (true) {
    int32_t seen = count.load(std::memory_order_relaxed);
    while (seen != 0) {
      if (count.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire,
                                      std::memory_order_relaxed))
        return true;
    }
    const auto outcome =
        syscall(SYS_futex, &count, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0,
                timeout.has_timeout() ? &end : nullptr, nullptr, FUTEX_BITSET_MATCH_ANY);
    if (outcome != 0 && errno == ETIMEDOUT) return false;
  }
}

}  // namespace
}  // namespace ckv

// Abseil has this as a weak symbol, to be replaced. Programs export it, so that the shared library
// calls this one; shared libraries of ours hide it.
extern "C" bool ABSL_INTERNAL_C_SYMBOL(AbslInternalPerThreadSemWait)(
    absl::synchronization_internal::KernelTimeout timeout) {
  using absl::synchronization_internal::Waiter;
  auto* const identity = absl::base_internal::CurrentThreadIdentityIfPresent();
  const int ticker = identity->ticker.load(std::memory_order_relaxed);
  identity->wait_start.store(ticker == 0 ? 1 : ticker, std::memory_order_relaxed);
  identity->is_idle.store(false, std::memory_order_relaxed);
  std::atomic<int>* const blocked = identity->blocked_count_ptr;
  if (blocked != nullptr) blocked->fetch_add(1, std::memory_order_relaxed);
  const bool posted = ckv::WaitForPost(*Waiter::GetWaiter(identity), timeout);
  if (blocked != nullptr) blocked->fetch_sub(1, std::memory_order_relaxed);
  identity->is_idle.store(false, std::memory_order_relaxed);
  identity->wait_start.store(0, std::memory_order_relaxed);
  return posted;
}

// The same, of a thread that was not posted in time and cannot leave the mutex's queue while the
// mutex is held. In a simulation its holder waits for the turn.
extern "C" void ABSL_INTERNAL_C_SYMBOL(AbslInternalMutexYield)() { ckv::YieldProcessor(); }

namespace ckv {

#define CKV_NAME_OF(symbol) CKV_TEXT(symbol)
#define CKV_TEXT(symbol) #symbol
bool AbseilWaitsAreMonotonic() {
  const void* const called =
      dlsym(RTLD_DEFAULT, CKV_NAME_OF(ABSL_INTERNAL_C_SYMBOL(AbslInternalPerThreadSemWait)));
  return called ==
         reinterpret_cast<const void*>(&ABSL_INTERNAL_C_SYMBOL(AbslInternalPerThreadSemWait));
}
#undef CKV_TEXT
#undef CKV_NAME_OF

#else

bool AbseilWaitsAreMonotonic() { return true; }

#endif

}  // namespace ckv
