#include "attention/worker_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "proto/status.h"

namespace ckv {

using Task = absl::FunctionRef<void(uint32_t task, uint32_t worker)>;

// One run at a time: tasks are claimed under the mutex, by ascending index. A task is tens of
// microseconds at least and a claim 20 ns, so a lock-free counter would gain nothing; and a thread
// that wakes late finds no task left instead of one of the next run.
//
// std::mutex, not absl::Mutex: ThreadSanitizer cannot see into Debian's abseil, and tasks hand
// each other plain memory through this lock alone.
struct WorkerPool::State {
  using Lock = std::unique_lock<std::mutex>;

  explicit State(uint32_t thread_count_in) : thread_count(thread_count_in) {}

  // Runs tasks until none is left to claim, releasing `lock` around each.
  void Drain(uint32_t worker, Lock& lock) {
    while (next_task < task_count) {
      const uint32_t index = next_task++;
      const Task* run = task;
      ++running_count;
      lock.unlock();
      (*run)(index, worker);
      lock.lock();
      --running_count;
    }
  }

  void WorkerLoop(uint32_t worker) {
    Lock lock(mu);
    for (;;) {
      work.wait(lock, [this] { return stopping || next_task < task_count; });
      if (stopping) return;
      Drain(worker, lock);
      if (running_count == 0) done.notify_one();
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
  uint32_t running_count = 0;
  bool stopping = false;
};

WorkerPool::WorkerPool(uint32_t thread_count) : state_(std::make_unique<State>(thread_count)) {
  CKV_CHECK(thread_count >= 1 && thread_count <= kThreadCountMax);
  const size_t bytes = thread_count * kScratchBytes;
  state_->scratch = static_cast<std::byte*>(std::aligned_alloc(kScratchBytes, bytes));
  CKV_CHECK(state_->scratch != nullptr);
  // A kernel walks 0.6 MB of it per tile: 150 pages of 4 KB against one of 2 MB. Only a hint.
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
  State::Lock lock(state.mu);
  CKV_CHECK(state.running_count == 0 && state.next_task >= state.task_count);
  state.task = &task;
  state.task_count = task_count;
  state.next_task = 0;
  // Worker 0 takes one task itself: no thread is woken that would find nothing.
  const uint32_t wake_count = std::min(task_count, state.thread_count) - 1;
  for (uint32_t i = 0; i < wake_count; ++i) state.work.notify_one();
  state.Drain(0, lock);
  state.done.wait(lock, [&state] { return state.running_count == 0; });
}

std::span<std::byte> WorkerPool::scratch(uint32_t worker) {
  CKV_CHECK(worker < state_->thread_count);
  return {state_->scratch + worker * kScratchBytes, kScratchBytes};
}

}  // namespace ckv
