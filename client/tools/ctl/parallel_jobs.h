// Runs jobs that mostly wait for a peer, several at once.

#pragma once

#include <cstddef>
#include <functional>

namespace ckv::ctl {

// The most calls at once that wait for a peer. A silent peer then costs its own limit, and 16 of
// them no more.
inline constexpr size_t kParallelJobsMax = 16;

// Calls `job` with each index below `count`, in their order, on up to kParallelJobsMax threads.
// Returns when the last has returned. `job` runs on several threads at once.
void RunParallel(size_t count, const std::function<void(size_t index)>& job);

}  // namespace ckv::ctl
