// Lanes over a connected pair of queues, and the memory and queues that one end needs.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "transport/fabric.h"
#include "transport/lane_memory.h"
#include "transport/verbs/verbs_connection.h"
#include "transport/verbs/verbs_region.h"
#include "transport/verbs/verbs_side_thread.h"

namespace ckv {

// One end of a lane, with everything it owns. Members are destroyed in reverse order: the
// connection first. Its destructor may wait for the peer, so a thread that must not wait passes the
// end to VerbsSide::Retire. Run, the end's job, registers the segments of the store that replies
// need.
struct VerbsEnd final : VerbsJob {
  // Creates an end. A requester's end is complete, except that its window is not bound yet. A
  // holder's end has posted its receives, so the peer may send as soon as it has the answer.
  //   InvalidArgument     a request is larger than the device sends at once, or there are too many
  //                       slots.
  //   ResourceExhausted   a limit is reached, or memory ran out.
  static absl::StatusOr<std::unique_ptr<VerbsEnd>> ForRequester(std::shared_ptr<VerbsDevice> device,
                                                                Clock* clock,
                                                                const LaneShape& shape);
  static absl::StatusOr<std::unique_ptr<VerbsEnd>> ForHolder(std::shared_ptr<VerbsDevice> device,
                                                             Clock* clock, const LaneShape& shape,
                                                             VerbsAccount account,
                                                             std::shared_ptr<MemoryPinner> pinner);

  VerbsEnd(LaneMemory memory_in, const LaneShape& shape_in)
      : shape(shape_in), memory(std::move(memory_in)) {}

  // Returns this end's part of an offer or answer.
  VerbsEndFrame Describe() const;

  const LaneShape shape;
  // The slots' buffers. A holder has kControlReceives more request buffers than slots.
  LaneMemory memory;
  std::optional<VerbsDomain> domain;
  std::optional<VerbsRegion> requests, replies;
  std::optional<VerbsGather> gather;  // at a holder, once the end belongs to a lane
  std::unique_ptr<VerbsConnection> connection;
  // At the requester: the landing region's key, and the window to which the key will be bound. If
  // ForRequester leaves `window` null, the key is that of the registration.
  uint32_t landing_key = 0;
  ibv_mw* window = nullptr;  // until the connection owns it
  ~VerbsEnd() override;
  void Run() noexcept override;
  void Hurry() noexcept override {
    if (connection != nullptr) connection->Hurry();
  }
};

// Returns a lane over `end`, which is connected and was welcomed by the holder. `segment_bytes` is
// from the answer. `side` receives `end` when the lane is destroyed.
std::unique_ptr<RequestLane> NewVerbsRequestLane(std::unique_ptr<VerbsEnd> end,
                                                 uint32_t segment_bytes, VerbsSide side);

// Returns a lane over `end`, which is connected and has sent its welcome. `peer` is the checked
// offer. Until `side` has registered the memory, PostGather copies spans within `gather_regions`,
// or refuses those of a dmabuf. Afterwards they are sent in place.
std::unique_ptr<ServeLane> NewVerbsServeLane(std::unique_ptr<VerbsEnd> end,
                                             const VerbsEndFrame& peer,
                                             std::span<const MemoryRegion> gather_regions,
                                             VerbsSide side);

}  // namespace ckv
