// Resident threads and their scratch memory: nothing is spawned or allocated per call.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"

namespace ckv {

// Owned by the caller of the kernels, used by one thread at a time (the dispatcher's, an engine's);
// two threads that compute at once have a pool each. With thread_count 1 no thread is started and
// everything runs on the caller.
class WorkerPool {
 public:
  // `thread_count` counts the calling thread; 1 to kThreadCountMax. Scratch for every thread is
  // allocated and touched here: kScratchBytes each.
  explicit WorkerPool(uint32_t thread_count);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  static constexpr uint32_t kThreadCountMax = 256;
  // For rows of kRowWidthMax values: 128 packed query rows in f32 (524 KB), a tile of 72 cKV rows
  // (295 KB), its logits (72 KB with what goes with them), two sets of accumulators (525 KB each) =
  // 1.95 MB; and one huge page. DeepSeek's 576 use 1.07 MB of it, a quarter of that once a span.
  static constexpr size_t kScratchBytes = size_t{2} << 20;

  uint32_t thread_count() const;

  // Calls task(i, worker) for every i in [0, task_count), each exactly once, on any of the threads;
  // worker in [0, thread_count) says which scratch is free to use. Returns when all have returned.
  // The tasks must not call Run.
  void Run(uint32_t task_count,
           absl::FunctionRef<void(uint32_t task, uint32_t worker)> task) noexcept;

  // kScratchBytes of 64-byte aligned memory that only `worker` touches while Run is in progress.
  std::span<std::byte> scratch(uint32_t worker);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ckv
