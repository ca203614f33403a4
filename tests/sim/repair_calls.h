// Damaged chunks of a simulated holder: found by its scrubber, and restored from other holders.

#pragma once

#include <memory>
#include <vector>

#include "server/upkeep/repairer.h"
#include "server/upkeep/scrubber.h"
#include "tests/sim/stubs.h"
#include "tests/sim/upkeep_calls.h"

namespace ckv::sim {

// For the holder of `life`, in place of server/upkeep/repair_stub.cc. It reads the rows itself and
// puts them: a peer's push (chunk_push.h) needs gRPC.
class RepairCalls final : public RepairSource {
 public:
  RepairCalls(const Directories* directories, Life* life, std::vector<std::unique_ptr<Node>>* nodes)
      : directory_(directories, life),
        copies_(directories, life, nodes),
        network_(*directories->network),
        life_(*life),
        self_{(*nodes)[life->process.node]->name} {}
  absl::StatusOr<Restored> Restore(const LostChunk& lost, Instant deadline) override;
  void Cancel() override { copies_.Cancel(); }

 private:
  // Restores a chunk from a holder that `place` lists.
  absl::Status RestoreFor(const Corpus& place, const std::vector<Member>& members,
                          Instant deadline);
  absl::Status CopyFrom(const Member& from, const CopyOrder& order, Instant deadline);
  DirectoryCalls directory_;
  CopyCalls copies_;
  Network& network_;
  Life& life_;
  const HolderId self_;
};

// As DaemonScrub of server/daemon, with shorter times.
class HolderScrub {
 public:
  // All must outlive it; the holder has started.
  HolderScrub(const Directories* directories, Life* life,
              std::vector<std::unique_ptr<Node>>* nodes);

 private:
  RepairCalls source_;
  Repairer repairer_;
  Scrubber scrubber_;
};

}  // namespace ckv::sim
