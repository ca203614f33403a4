// A pool of resident threads and their scratch memory: no call starts a thread or allocates.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"

namespace ckv {

// The caller of the kernels owns the pool. One thread uses it at a time, so two threads that
// compute concurrently need a pool each. If thread_count is 1, no thread is started and everything
// runs on the caller's thread.
class WorkerPool {
 public:
  // `thread_count` includes the calling thread; it is 1 to kThreadCountMax. The constructor
  // allocates and touches kScratchBytes of scratch for every thread.
  explicit WorkerPool(uint32_t thread_count);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  static constexpr uint32_t kThreadCountMax = 256;
  // Sized for the matrix kernels at rows of kRowWidthMax values. They take 3.9 MB with fp8 rows, of
  // which 2.1 MB are staged rows (attention/matrix/span_layout.h). The vector kernel takes 1.95 MB.
  // At DeepSeek's 576 values they take 1.7 and 1.07 MB.
  static constexpr size_t kScratchBytes = size_t{4} << 20;

  uint32_t thread_count() const;

  // Calls task(i, worker) exactly once for every i in [0, task_count), on any of the threads.
  // `worker`, in [0, thread_count), is the index of the scratch that the task may use. Returns when
  // all tasks have returned. Tasks must not call Run.
  void Run(uint32_t task_count,
           absl::FunctionRef<void(uint32_t task, uint32_t worker)> task) noexcept;

  // Returns kScratchBytes of 64-byte aligned memory that only `worker` touches while Run is in
  // progress.
  std::span<std::byte> scratch(uint32_t worker);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ckv
