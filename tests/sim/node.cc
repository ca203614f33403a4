#include "tests/sim/node.h"

namespace ckv::sim {

void Serve(Life* life, absl::AnyInvocable<void()> call) {
  life->calls.push_back(std::move(call));
  if (life->idle_count >= life->calls.size()) return;
  Sim().StartIn(&life->process, [life] {
    while (true) {
      ++life->idle_count;
      Sim().Block(kNever, [life] { return !life->calls.empty(); });
      --life->idle_count;
      absl::AnyInvocable<void()> next = std::move(life->calls.front());
      life->calls.pop_front();
      ++life->call_count;
      next();
      --life->call_count;
    }
  });
}

}  // namespace ckv::sim
