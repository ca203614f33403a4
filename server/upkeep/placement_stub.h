// A PlacementSource for a directory in another process, over gRPC.

#pragma once

#include <string>
#include <string_view>

#include "client/grpc/directory_caller.h"
#include "server/upkeep/placement_keeper.h"

namespace ckv {

class PlacementStub final : public PlacementSource {
 public:
  // `addresses` as for DirectoryCaller. `clock` must outlive this object.
  PlacementStub(std::string_view addresses, Clock* clock) : directory_(addresses, clock) {}

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
  using Stub = DirectoryCaller::Stub;
  std::string Context(std::string_view call) const;

  DirectoryCaller directory_;
};

}  // namespace ckv
