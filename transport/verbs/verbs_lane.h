// Lanes over a connected verbs link, and the memory and queues that one end needs.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "transport/fabric.h"
#include "transport/lane_memory.h"
#include "transport/verbs_link.h"
#include "transport/verbs_region.h"
#include "transport/verbs_side_thread.h"

namespace ckv {

// What one end of a lane owns. The order of the members is the order in which it must go: the link
// first, from its end. That may wait for the peer, so whoever may not wait has it done beside
// (VerbsSide::Retire); what is run beside is the registration of the store's pieces.
struct VerbsEnd final : VerbsJob {
  // Requester: everything but the window's binding. Holder: receives are posted, so the peer may
  // send as soon as it knows the answer.
  //   InvalidArgument     a request is larger than what the device sends at once, or too many
  //   slots. ResourceExhausted   a limit, or memory.
  static absl::StatusOr<std::unique_ptr<VerbsEnd>> ForRequester(std::shared_ptr<VerbsDevice> device,
                                                                Clock* clock,
                                                                const LaneShape& shape);
  static absl::StatusOr<std::unique_ptr<VerbsEnd>> ForHolder(std::shared_ptr<VerbsDevice> device,
                                                             Clock* clock, const LaneShape& shape,
                                                             VerbsAccount account);

  VerbsEnd(LaneMemory memory_in, const LaneShape& shape_in)
      : shape(shape_in), memory(std::move(memory_in)) {}

  // This end's part of an offer or answer.
  VerbsEndFrame Describe() const;

  const LaneShape shape;
  LaneMemory memory;  // a holder's has kControlReceives request buffers more than slots
  std::optional<VerbsDomain> domain;
  std::optional<VerbsRegion> requests, replies;
  std::optional<VerbsGather> gather;  // a holder's, once it is a lane
  std::unique_ptr<VerbsLink> link;
  // Requester: the landing region's key, and the window it will name (else null, and it names the
  // registration).
  uint32_t landing_key = 0;
  ibv_mw* window = nullptr;  // until the link owns it
  ~VerbsEnd() override;
  void Run() noexcept override;
  void Hurry() noexcept override {
    if (link != nullptr) link->Hurry();
  }
};

// `end` is connected, and the holder has welcomed it; `segment_bytes` is the answer's. `side` gets
// `end` when the lane is destroyed.
std::unique_ptr<RequestLane> NewVerbsRequestLane(std::unique_ptr<VerbsEnd> end,
                                                 uint32_t segment_bytes, VerbsSide side);

// `end` is connected and has said welcome; `peer` is the offer, checked. Runs of PostGather within
// `gather_memory` are sent from where they lie as soon as `side` has registered that, and copied
// until then.
std::unique_ptr<ServeLane> NewVerbsServeLane(std::unique_ptr<VerbsEnd> end,
                                             const VerbsEndFrame& peer,
                                             std::span<const std::byte> gather_memory,
                                             VerbsSide side);

}  // namespace ckv
