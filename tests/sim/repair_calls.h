// Damaged chunks of a simulated holder: found by its scrubber, and restored from other holders.

#pragma once

#include <memory>
#include <vector>

#include "server/upkeep/copy_search.h"
#include "server/upkeep/scrubber.h"
#include "tests/sim/stubs.h"
#include "tests/sim/upkeep_calls.h"

namespace ckv::sim {

// For the holder of `life`, in place of server/upkeep/repair_stub.cc. It reads the rows itself and
// puts them: a peer's push (chunk_push.h) needs gRPC.
class RepairCalls final : public CopySearch {
 public:
  RepairCalls(const Directories* directories, Life* life, std::vector<std::unique_ptr<Node>>* nodes)
      : CopySearch({(*nodes)[life->process.node]->name}, &life->clock),
        directory_(directories, life),
        copies_(directories, life, nodes),
        network_(*directories->network),
        life_(*life) {}
  void Cancel() override {
    Stop();
    copies_.Cancel();
  }

 private:
  absl::StatusOr<std::vector<std::string>> AllTenants(Instant /*deadline*/) override {
    return std::vector<std::string>{"", "t1"};
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant deadline) override {
    return directory_.ListMembers(deadline);
  }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId& id, const std::string& tenant,
                                                  Instant deadline) override {
    return directory_.LocateChunk(id, tenant, deadline);
  }
  absl::Status CopyFrom(const Member& from, const Corpus& place, Instant deadline) override;
  DirectoryCalls directory_;
  CopyCalls copies_;
  Network& network_;
  Life& life_;
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
