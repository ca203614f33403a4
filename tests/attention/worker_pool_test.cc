// Goal: every task runs exactly once, on a worker whose scratch no other thread touches, for any
// number of tasks, threads and runs.
// Method: many runs that count their tasks and write to their scratch all the time; tsan detects
// two tasks that share one.

#include "attention/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <vector>

namespace ckv {
namespace {

TEST(WorkerPool, EachTaskOnceInManyRuns) {
  for (const uint32_t threads : {1u, 2u, 3u, 8u}) {
    WorkerPool pool(threads);
    ASSERT_EQ(pool.thread_count(), threads);
    for (uint32_t run = 0; run < 400; ++run) {
      const uint32_t count = run % 23;
      std::vector<std::atomic<uint32_t>> runs(count);
      pool.Run(count, [&](uint32_t task, uint32_t worker) {
        EXPECT_LT(worker, threads);
        // Not atomic on purpose: only this worker may touch it.
        uint64_t* word = reinterpret_cast<uint64_t*>(pool.scratch(worker).data());
        for (int i = 0; i < 20; ++i) *word = *word + task;
        runs[task].fetch_add(1, std::memory_order_relaxed);
      });
      for (uint32_t task = 0; task < count; ++task) {
        ASSERT_EQ(runs[task].load(), 1u) << "run " << run << " task " << task;
      }
    }
  }
}

// What tasks wrote is visible to the caller after Run, and to the next run's tasks.
TEST(WorkerPool, ResultsAreVisibleAfterRun) {
  WorkerPool pool(4);
  std::vector<uint32_t> values(64, 0);
  for (uint32_t run = 1; run <= 300; ++run) {
    pool.Run(64, [&](uint32_t task, uint32_t) { values[63 - task] += 1; });
    for (const uint32_t value : values) ASSERT_EQ(value, run);
  }
}

// As many tasks as threads that wait for each other: they end only if all threads take part.
TEST(WorkerPool, AllThreadsWorkAtOnce) {
  constexpr uint32_t kThreads = 4;
  WorkerPool pool(kThreads);
  for (int run = 0; run < 20; ++run) {
    std::barrier barrier(kThreads);
    std::vector<std::atomic<uint32_t>> tasks_of(kThreads);
    pool.Run(kThreads, [&](uint32_t, uint32_t worker) {
      tasks_of[worker].fetch_add(1, std::memory_order_relaxed);
      barrier.arrive_and_wait();
    });
    for (const auto& count : tasks_of) EXPECT_EQ(count.load(), 1u);
  }
}

TEST(WorkerPool, ScratchIsAlignedAndDisjoint) {
  WorkerPool pool(3);
  for (uint32_t worker = 0; worker < 3; ++worker) {
    const std::span<std::byte> scratch = pool.scratch(worker);
    EXPECT_EQ(scratch.size(), WorkerPool::kScratchBytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch.data()) % 64, 0u);
    std::memset(scratch.data(), static_cast<int>(worker + 1), scratch.size());
  }
  for (uint32_t worker = 0; worker < 3; ++worker) {
    EXPECT_EQ(pool.scratch(worker).front(), std::byte(worker + 1));
    EXPECT_EQ(pool.scratch(worker).back(), std::byte(worker + 1));
  }
}

TEST(WorkerPool, StopsWithoutEverRunning) {
  for (int i = 0; i < 20; ++i) WorkerPool pool(5);
}

}  // namespace
}  // namespace ckv
