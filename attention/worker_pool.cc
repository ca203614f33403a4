// The threads of a pool and one run of tasks. The caller is worker 0. Run, in order:
//   1. Sets the task and its count under the lock, raises run_number, and wakes sleeping threads.
//   2. Every worker claims tasks by ascending index until none is left (Drain).
//   3. The caller spins, then sleeps, until no other worker runs a task.
// A worker spins on run_number for some time after each run, and then sleeps on a condition
// variable.

#include "attention/worker_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "proto/base/pause_cpu.h"
#include "proto/base/status.h"

namespace ckv {

using Task = absl::FunctionRef<void(uint32_t task, uint32_t worker)>;

namespace {

// How often a thread looks for work before it sleeps: 50 to 100 us, at the 25 to 50 ns of a pause.
// Waking a sleeper takes as long (60 us and more on a virtual machine). A call of 16 query rows
// over 2048 rows takes two threads 330 us. It gains 1.8 x and more from threads that are awake, and
// gained 1.3 x from sleepers. If a pause takes less, threads sleep sooner, which is slower but
// equally correct. A pool that gets no work is asleep within 100 us.
constexpr uint32_t kSpinPollMax = 2000;

template <typename Ready>
bool Spin(Ready ready) {
  for (uint32_t poll = 0; poll < kSpinPollMax; ++poll) {
    if (ready()) return true;
    PauseCpu();
  }
  return false;
}

}  // namespace

// One run at a time. Tasks are claimed under the mutex, by ascending index. A task takes tens of
// microseconds at least and a claim 20 ns, so a lock-free counter would gain nothing. A thread that
// wakes late finds no task left, instead of a task of the next run.
//
// std::mutex and not absl::Mutex: ThreadSanitizer cannot see into Debian's abseil, and tasks pass
// each other plain memory through this lock alone.
struct WorkerPool::State {
  using Lock = std::unique_lock<std::mutex>;

  explicit State(uint32_t thread_count_in) : thread_count(thread_count_in) {}

  // A thread holds the lock for about 20 ns, but one that finds it taken would sleep 60 us.
  void Acquire(Lock& lock) {
    if (!Spin([&lock] { return lock.try_lock(); })) lock.lock();
  }

  // Runs tasks until none is left to claim, releasing `lock` around each.
  void Drain(uint32_t worker, Lock& lock) {
    while (next_task < task_count) {
      const uint32_t index = next_task++;
      const Task* run = task;
      running_count.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      (*run)(index, worker);
      Acquire(lock);
      running_count.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  void WorkerLoop(uint32_t worker) {
    uint64_t seen = 0;
    for (;;) {
      // Without the lock, a spinning thread only sees that it should look. It reads the work under
      // the lock.
      const bool called = Spin([&] { return run_number.load(std::memory_order_relaxed) != seen; });
      Lock lock(mu, std::defer_lock);
      Acquire(lock);
      // Other threads took all tasks. The next run may follow as soon as this one did, so do not
      // sleep.
      if (called && !stopping && next_task >= task_count) {
        seen = run_number.load(std::memory_order_relaxed);
        continue;
      }
      ++sleeping_count;
      work.wait(lock, [this] { return stopping || next_task < task_count; });
      --sleeping_count;
      if (stopping) return;
      seen = run_number.load(std::memory_order_relaxed);
      Drain(worker, lock);
      if (running_count.load(std::memory_order_relaxed) == 0) done.notify_one();
    }
  }

  const uint32_t thread_count;
  std::byte* scratch = nullptr;
  std::vector<std::thread> threads;  // thread_count - 1; worker 0 is the caller

  std::mutex mu;                 // guards everything below
  std::condition_variable work;  // a run has begun, or the pool stops
  std::condition_variable done;  // the last claimed task of a run has returned
  const Task* task = nullptr;
  uint32_t task_count = 0;
  uint32_t next_task = 0;
  uint32_t sleeping_count = 0;
  bool stopping = false;

  // Written under `mu`, and looked at without it by threads that spin.
  std::atomic<uint64_t> run_number{0};
  std::atomic<uint32_t> running_count{0};
};

WorkerPool::WorkerPool(uint32_t thread_count) : state_(std::make_unique<State>(thread_count)) {
  CKV_CHECK(thread_count >= 1 && thread_count <= kThreadCountMax);
  const size_t bytes = thread_count * kScratchBytes;
  state_->scratch = static_cast<std::byte*>(std::aligned_alloc(kScratchBytes, bytes));
  CKV_CHECK(state_->scratch != nullptr);
  // A kernel walks 0.6 MB of it per tile: 150 pages of 4 KB, or one page of 2 MB. This is only a
  // hint.
  (void)madvise(state_->scratch, bytes, MADV_HUGEPAGE);
  std::memset(state_->scratch, 0, bytes);
  state_->threads.reserve(thread_count - 1);
  for (uint32_t worker = 1; worker < thread_count; ++worker) {
    state_->threads.emplace_back([state = state_.get(), worker] { state->WorkerLoop(worker); });
  }
}

WorkerPool::~WorkerPool() {
  {
    State::Lock lock(state_->mu);
    state_->stopping = true;
    state_->run_number.fetch_add(1, std::memory_order_relaxed);
  }
  state_->work.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
  std::free(state_->scratch);
}

uint32_t WorkerPool::thread_count() const { return state_->thread_count; }

void WorkerPool::Run(uint32_t task_count, Task task) noexcept {
  State& state = *state_;
  if (state.thread_count == 1 || task_count <= 1) {
    for (uint32_t i = 0; i < task_count; ++i) task(i, 0);
    return;
  }
  State::Lock lock(state.mu, std::defer_lock);
  state.Acquire(lock);
  const auto running = [&state] { return state.running_count.load(std::memory_order_relaxed); };
  CKV_CHECK(running() == 0 && state.next_task >= state.task_count);
  state.task = &task;
  state.task_count = task_count;
  state.next_task = 0;
  state.run_number.fetch_add(1, std::memory_order_relaxed);
  // Worker 0 takes one task itself. Spinning threads find tasks without a wake-up, and may leave
  // none for a woken thread.
  const uint32_t wake_count =
      std::min(std::min(task_count, state.thread_count) - 1, state.sleeping_count);
  for (uint32_t i = 0; i < wake_count; ++i) state.work.notify_one();
  state.Drain(0, lock);
  if (running() == 0) return;
  lock.unlock();
  Spin([&] { return running() == 0; });
  state.Acquire(lock);
  state.done.wait(lock, [&] { return running() == 0; });
}

std::span<std::byte> WorkerPool::scratch(uint32_t worker) {
  CKV_CHECK(worker < state_->thread_count);
  return {state_->scratch + worker * kScratchBytes, kScratchBytes};
}

}  // namespace ckv
