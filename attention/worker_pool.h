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
  // Sized for rows of kRowWidthMax values. 128 packed query rows in f32 take 524 KB, a tile of 72
  // cKV rows 295 KB. Its logits and what goes with them take 72 KB, and two sets of accumulators
  // 525 KB each. Together that is 1.95 MB, and one huge page. DeepSeek's 576 use 1.07 MB of it, a
  // quarter of that once per span.
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
