// A PlacementSource for a directory in another process, over gRPC.

#pragma once

#include <memory>
#include <string>

#include "ckv/v1/directory.grpc.pb.h"
#include "server/upkeep/placement_keeper.h"

namespace ckv {

class PlacementStub final : public PlacementSource {
 public:
  // `clock` must outlive this object.
  PlacementStub(std::string address, Clock* clock);

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
  absl::Status FinishReport(uint64_t lease_id, Instant deadline) override;

 private:
  std::string Context(std::string_view call) const;

  const std::string address_;
  Clock* const clock_;
  const std::unique_ptr<v1::DirectoryService::Stub> stub_;
};

}  // namespace ckv
