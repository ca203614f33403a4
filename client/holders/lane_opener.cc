#include "client/holders/lane_opener.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/holders/lane_pinning.h"
#include "proto/base/status.h"
#include "transport/wire.h"

namespace ckv {
namespace {

// A holder ends a session by itself once its lane is gone; this only spares it the wait.
constexpr Duration kCloseTimeout = std::chrono::milliseconds(100);

SessionOffer OfferOf(const LaneRequest& request) {
  SessionOffer offer;
  offer.wire_version_min = kWireVersionMin;
  offer.wire_version_max = kWireVersion;
  offer.geometry = *request.geometry;
  offer.tenant = request.tenant;
  offer.requester = request.options->requester;
  offer.host_identity = request.options->host_identity;
  offer.shape = request.options->shape;
  return offer;
}

}  // namespace

LaneAttempt OpenLane(const LaneRequest& request, std::span<Fabric* const> fabrics,
                     Instant connect_by) {
  LaneAttempt attempt;
  attempt.taken = fabrics.size();
  SessionOffer offer = OfferOf(request);
  std::vector<std::unique_ptr<Dialer>> dialers(fabrics.size());
  attempt.status = absl::UnavailableError("no fabric is left to offer");
  for (size_t i = 0; i < fabrics.size(); ++i) {
    auto dialer = fabrics[i]->Dial(request.options->shape);
    attempt.dialed.push_back(dialer.status());
    if (!dialer.ok()) {
      attempt.status = Annotate(dialer.status(), FabricName(fabrics[i]->kind()));
      continue;
    }
    offer.fabrics.push_back({fabrics[i]->kind(), {(*dialer)->offer()}});
    dialers[i] = *std::move(dialer);
  }
  if (offer.fabrics.empty()) return attempt;
  auto answer = request.control->OpenSession(offer, request.deadline);
  if (!answer.ok()) {
    attempt.status = Annotate(answer.status(), "opening a session");
    return attempt;
  }
  size_t taken = 0;
  while (taken < fabrics.size() &&
         (dialers[taken] == nullptr || fabrics[taken]->kind() != answer->fabric)) {
    ++taken;
  }
  if (taken == fabrics.size() || answer->answers.size() != 1) {
    attempt.status = absl::InvalidArgumentError(
        absl::StrFormat("opening a session: answered with %d lanes of %s, which was not offered",
                        answer->answers.size(), FabricName(answer->fabric)));
    return attempt;
  }
  if (std::count(answer->fabrics.begin(), answer->fabrics.end(), answer->fabric) == 0) {
    attempt.status = absl::InvalidArgumentError(
        absl::StrFormat("opening a session: answered with a lane of %s, which is not among the "
                        "holder's fabrics",
                        FabricName(answer->fabric)));
    return attempt;
  }
  attempt.taken = taken;
  attempt.holder_fabrics = std::move(answer->fabrics);
  attempt.opened = {answer->session, answer->epoch, nullptr, answer->host};
  auto lane = dialers[taken]->Connect(answer->answers[0], std::min(connect_by, request.deadline));
  if (lane.ok() && request.options->slot_pinner != nullptr) {
    attempt.status = PinLane(**lane, request.options->slot_pinner);
    if (!attempt.status.ok()) {
      CloseLane(*request.control, *request.options->clock, attempt.opened);
      return attempt;
    }
  }
  if (!lane.ok()) {
    CloseLane(*request.control, *request.options->clock, attempt.opened);
    attempt.status =
        Annotate(lane.status(), absl::StrFormat("%s lane", FabricName(answer->fabric)));
    return attempt;
  }
  attempt.opened.lane = *std::move(lane);
  attempt.status = absl::OkStatus();
  return attempt;
}

void CloseLane(HolderControl& control, Clock& clock, OpenedLane& opened) {
  // If the lane is broken, no one may be left to notify, and the control call would only time out.
  if (opened.lane == nullptr || opened.lane->status().ok())
    control.CloseSession(opened.session, clock.Now() + kCloseTimeout).IgnoreError();
  opened.lane.reset();
}

}  // namespace ckv
