// Runs jobs that mostly wait for a peer, several at once.

#pragma once

#include <cstddef>
#include <functional>

namespace ckv::ctl {

// Calls that wait for one peer, or each for its own, at once. A silent one then costs its own
// limit, and 16 of them no more.
inline constexpr size_t kAtOnceMax = 16;

// Calls `job` with each index below `count`, in their order, on up to kAtOnceMax threads. Returns
// when the last has returned. `job` runs on several threads at once.
void AtOnce(size_t count, const std::function<void(size_t index)>& job);

}  // namespace ckv::ctl
