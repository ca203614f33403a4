#include "client/tools/ctl/parallel_jobs.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace ckv::ctl {

void RunParallel(size_t count, const std::function<void(size_t index)>& job) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) job(i);
  };
  std::vector<std::thread> workers(std::min(kParallelJobsMax, count));
  for (std::thread& worker : workers) worker = std::thread(work);
  for (std::thread& worker : workers) worker.join();
}

}  // namespace ckv::ctl
