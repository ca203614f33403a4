// The directory and the other holders, as the upkeep of a simulated holder calls them.

#pragma once

#include <set>
#include <string>
#include <vector>

#include "server/upkeep/copy_maker.h"
#include "server/upkeep/placement_keeper.h"
#include "tests/sim/directories.h"
#include "tests/sim/node.h"

namespace ckv::sim {

// For the holder of `life`. Never destroyed before its CopyMaker.
class CopyCalls final : public CopySource {
 public:
  CopyCalls(const Directories* directories, Life* life, std::vector<std::unique_ptr<Node>>* nodes)
      : directories_(*directories), life_(*life), nodes_(*nodes) {}
  absl::StatusOr<std::vector<CopyOrder>> ListOrders(uint64_t lease_id, uint32_t count_max,
                                                    Instant deadline) override;
  absl::Status Report(uint64_t lease_id, std::span<const CopyReport> reports,
                      Instant deadline) override;
  absl::StatusOr<ChunkInfo> GetInfo(const Member& holder, const CopyOrder& order,
                                    Instant deadline) override;
  absl::Status ReadRows(const Member& holder, const CopyOrder& order, TakeRows take,
                        Instant deadline) override;
  void Cancel() override { cancelled_ = true; }

 private:
  // Calls `handler` on the holder, whose control address is its node's number.
  template <typename R>
  R CallHolder(const Member& holder, Instant deadline, std::function<R(Holder&)> handler);
  const Directories& directories_;
  Life& life_;
  std::vector<std::unique_ptr<Node>>& nodes_;
  bool cancelled_ = false;
  std::set<ChunkId> leased_;  // ordered as leased copies
};

// For the holder of `life`.
class PlacementCalls final : public PlacementSource {
 public:
  PlacementCalls(const Directories* directories, Life* life)
      : directories_(*directories), life_(*life) {}
  absl::StatusOr<Placed> ListPlacedCorpora(const HolderId& holder, const SeenDirectory& seen,
                                           Instant deadline) override;
  absl::StatusOr<CorpusPart> GetPart(const HolderId& holder, const CorpusParts::Key& key,
                                     Instant deadline) override;
  absl::StatusOr<bool> ReportPart(uint64_t lease_id, const CorpusPart& part,
                                  Instant deadline) override;
  absl::StatusOr<bool> ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                                     std::span<const DroppedCorpus> dropped,
                                     Instant deadline) override;
  absl::Status ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                             Instant deadline) override;
  absl::StatusOr<std::vector<uint32_t>> CountReferences(const HolderId& holder,
                                                        std::span<const ChunkId> ids,
                                                        Instant deadline) override;
  absl::Status FinishReport(uint64_t lease_id, Instant deadline) override;

 private:
  template <typename R>
  R Call(Instant deadline, std::function<R(PlacementSource&)> handler);
  const Directories& directories_;
  Life& life_;
};

// Runs two parts of the daemon's upkeep for a holder that has started: copies and placement. A
// holder that is about to end may get no keeper of its placement.
class HolderUpkeep {
 public:
  // All must outlive it.
  HolderUpkeep(const Directories* directories, Life* life,
               std::vector<std::unique_ptr<Node>>* nodes, SimDisk* disk);
  void Note(const LeaseGrant& grant, const LeaseRenewal& renewal);
  // Call it when no more Note comes.
  void End();

 private:
  CopyCalls copy_calls_;
  PlacementCalls placement_calls_;
  std::unique_ptr<CorpusParts> parts_;
  std::unique_ptr<CopyMaker> copies_;
  std::unique_ptr<PlacementKeeper> keeper_;
};

// Returns a holder's report of itself. Its device has room. A batch takes no virtual time, so it is
// past its elbow if a fault says so.
MemberHealth HealthOf(const Holder& holder, const Life& life);

}  // namespace ckv::sim
