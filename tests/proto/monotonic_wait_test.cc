#include "proto/host/monotonic_wait.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace ckv {
namespace {

constexpr int64_t kMillisecondNs = 1'000'000;
constexpr int64_t kHourNs = 3'600'000 * kMillisecondNs;

TEST(AwaitMonotonic, EndsAtItsDeadlineAndNotBefore) {
  absl::Mutex mu;
  absl::MutexLock lock(&mu);
  const bool never = false;
  for (const int64_t wait_ns : {-kHourNs, int64_t{0}, kMillisecondNs / 10, 20 * kMillisecondNs}) {
    const int64_t deadline_ns = MonotonicNs() + wait_ns;
    EXPECT_FALSE(AwaitMonotonic(mu, absl::Condition(&never), deadline_ns));
    EXPECT_GE(MonotonicNs(), deadline_ns);
  }
}

TEST(AwaitMonotonic, ConditionThatHoldsNeedsNoTime) {
  absl::Mutex mu;
  absl::MutexLock lock(&mu);
  const bool always = true;
  EXPECT_TRUE(AwaitMonotonic(mu, absl::Condition(&always), MonotonicNs() - kHourNs));
  EXPECT_TRUE(AwaitMonotonic(mu, absl::Condition(&always), INT64_MAX));
}

// Goal: a wait ends even if its mutex is in use at its deadline. Method: the mutex is held across
// the deadline, and is released only once that has passed.
TEST(AwaitMonotonic, EndsAfterAMutexThatWasHeldAcrossItsDeadline) {
  absl::Mutex mu;
  std::atomic<int64_t> deadline_ns = 0;
  std::atomic<bool> ended = false;
  std::thread waiter([&] {
    const bool never = false;
    absl::MutexLock lock(&mu);
    deadline_ns = MonotonicNs() + 30 * kMillisecondNs;
    EXPECT_FALSE(AwaitMonotonic(mu, absl::Condition(&never), deadline_ns));
    ended = true;
  });
  while (deadline_ns == 0) std::this_thread::yield();
  {
    absl::MutexLock lock(&mu);
    SleepMonotonic(deadline_ns + 10 * kMillisecondNs);
    EXPECT_FALSE(ended);
  }
  waiter.join();
}

// Goal: waits of one process do not end each other's, and none is lost. Method: threads wait on a
// few mutexes for 1 to 4 ms, many times, while others make some of the conditions hold.
TEST(AwaitMonotonic, ManyWaitsOfManyThreadsEachEndByTheirOwn) {
  constexpr int kThreads = 8, kWaits = 60, kMutexes = 3;
  struct Shared {
    absl::Mutex mu;
    int count = 0;
  };
  std::vector<Shared> shared(kMutexes);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&shared, t] {
      for (int i = 0; i < kWaits; ++i) {
        Shared& one = shared[(t + i) % kMutexes];
        absl::MutexLock lock(&one.mu);
        const int before = ++one.count;
        const auto moved = [&one, before] { return one.count != before; };
        const int64_t deadline_ns = MonotonicNs() + (1 + i % 4) * kMillisecondNs;
        if (!AwaitMonotonic(one.mu, absl::Condition(&moved), deadline_ns)) {
          EXPECT_EQ(one.count, before);
          EXPECT_GE(MonotonicNs(), deadline_ns);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The thread that ends waits is not in the child, and its mutex may have been held at the fork.
TEST(AwaitMonotonic, EndsInAChildToo) {
  absl::Mutex mu;
  const bool never = false;
  mu.Lock();
  EXPECT_FALSE(AwaitMonotonic(mu, absl::Condition(&never), MonotonicNs() + kMillisecondNs));
  mu.Unlock();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    absl::Mutex own;
    own.Lock();
    const int64_t deadline_ns = MonotonicNs() + 20 * kMillisecondNs;
    const bool held = AwaitMonotonic(own, absl::Condition(&never), deadline_ns);
    _exit(!held && MonotonicNs() >= deadline_ns ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(SleepMonotonic, EndsAtItsDeadline) {
  const int64_t deadline_ns = MonotonicNs() + 5 * kMillisecondNs;
  SleepMonotonic(deadline_ns);
  EXPECT_GE(MonotonicNs(), deadline_ns);
  SleepMonotonic(deadline_ns - kHourNs);
}

// tests/e2e/clock_steps_e2e.py steps a clock; this shows that programs take the way that it tries.
TEST(Abseil, WaitsByTheMonotonicClockInPrograms) {
  EXPECT_TRUE(AbseilWaitsAreMonotonic());
  absl::Mutex mu;
  absl::MutexLock lock(&mu);
  const bool never = false;
  const int64_t begin_ns = MonotonicNs();
  EXPECT_FALSE(mu.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(20)));
  EXPECT_GE(MonotonicNs(), begin_ns + 19 * kMillisecondNs);
}

}  // namespace
}  // namespace ckv
