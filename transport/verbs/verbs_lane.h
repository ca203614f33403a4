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
// connection goes first. Its destructor may wait for the peer, so a thread that may not wait hands
// the end to VerbsSide::Retire. As a job (Run), it registers the segments of the store that replies
// need.
struct VerbsEnd final : VerbsJob {
  // Makes an end. At the requester only the window is not bound yet. At the holder the receives are
  // posted, so the peer may send as soon as it has the answer.
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
  // The slots' buffers. A holder's has kControlReceives request buffers more than slots.
  LaneMemory memory;
  std::optional<VerbsDomain> domain;
  std::optional<VerbsRegion> requests, replies;
  std::optional<VerbsGather> gather;  // at a holder, once the end belongs to a lane
  std::unique_ptr<VerbsConnection> connection;
  // At the requester: the landing region's key, and the window that the key will name. If `window`
  // is null, the key names the registration.
  uint32_t landing_key = 0;
  ibv_mw* window = nullptr;  // until the connection owns it
  ~VerbsEnd() override;
  void Run() noexcept override;
  void Hurry() noexcept override {
    if (connection != nullptr) connection->Hurry();
  }
};

// `end` is connected, and the holder has welcomed it; `segment_bytes` comes from the answer. `side`
// gets `end` when the lane is destroyed.
std::unique_ptr<RequestLane> NewVerbsRequestLane(std::unique_ptr<VerbsEnd> end,
                                                 uint32_t segment_bytes, VerbsSide side);

// `end` is connected and has sent its welcome; `peer` is the offer, checked. Runs of PostGather
// within `gather_regions` are copied, or refused if they are of a dmabuf, until `side` has
// registered that memory. Afterwards they are sent from where they lie.
std::unique_ptr<ServeLane> NewVerbsServeLane(std::unique_ptr<VerbsEnd> end,
                                             const VerbsEndFrame& peer,
                                             std::span<const MemoryRegion> gather_regions,
                                             VerbsSide side);

}  // namespace ckv
