// Resident threads and their scratch memory: nothing is spawned or allocated per call.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"

namespace ckv {

// The caller of the kernels owns the pool, and one thread uses it at a time. Two threads that
// compute at once have a pool each. If thread_count is 1, no thread is started and everything runs
// on the caller.
class WorkerPool {
 public:
  // `thread_count` counts the calling thread; it is 1 to kThreadCountMax. The constructor allocates
  // and touches kScratchBytes of scratch for every thread.
  explicit WorkerPool(uint32_t thread_count);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  static constexpr uint32_t kThreadCountMax = 256;
  // Sized for rows of kRowWidthMax values, by what the matrix kernels take: 3.9 MB with fp8 rows,
  // of which 2.1 MB are staged rows (attention/matrix/span_layout.h). The vector kernel takes 1.95
  // MB. DeepSeek's 576 use 1.7 and 1.07 MB.
  static constexpr size_t kScratchBytes = size_t{4} << 20;

  uint32_t thread_count() const;

  // Calls task(i, worker) for every i in [0, task_count), each exactly once, on any of the threads.
  // `worker`, in [0, thread_count), says which scratch is free to use. Returns when all have
  // returned. The tasks must not call Run.
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
