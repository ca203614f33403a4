// Learns from one holder's attends how fast its kernel is now and how far the cost model is off.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "client/decide/live_compute.h"
#include "client/decide/live_error.h"
#include "client/decide/profile.h"
#include "client/decide/profile_seed.h"
#include "proto/base/clock.h"
#include "proto/ids.h"
#include "transport/fabric.h"

namespace ckv {

// The answer to a frame of dense attention, just ended in the requester's BusyPeriod. It borrows
// `geometry`.
struct AnsweredFrame {
  const Geometry& geometry;
  FabricKind fabric = FabricKind::kTcp;  // the fabric of its lane
  uint32_t rows = 0;                     // query rows
  uint64_t tokens = 0;                   // tokens of the attended chunks, repeats included
  uint64_t bytes = 0;                    // both ways
  uint32_t compute_ns = 0;               // as the reply told
  Instant posted = {};
  // The frame was all that its call posted, to any holder.
  bool whole = false;
};

// The model of one holder; thread-safe. It learns only from frames that had the requester to
// themselves, as LiveFabric does. Frames that share a kernel call each carry its whole time.
class LiveModel {
 public:
  // `seed`, which may be null, and `requests` must outlive it.
  LiveModel(const HolderId& holder, const SeedProfile* seed, const BusyPeriod* requests);

  // Returns the profile's constants of the holder over `fabric`. Returns null if the profile does
  // not cover `geometry`, the holder or the fabric.
  const LaneProfile* SeedOf(const Geometry& geometry, FabricKind fabric) const;

  // Returns kernel constants for the cost model: the profile's curve if `seed` has one, else
  // `measured`, Explain's two-point fit. Either is scaled by the current slowdown of the kernel.
  ComputeConstants ComputeFor(const std::optional<ComputeConstants>& measured,
                              const LaneProfile* seed) const;
  // Takes a new two-point fit. If it differs from the last one, its live factor starts at 1 again.
  void SetMeasured(const ComputeConstants& measured);

  // Learns from one answered frame. On the hot path: no lock and no allocation, except when
  // SeedProfile first sees a geometry. `fabric` and `queue_us` are those known before this answer.
  void Observe(const AnsweredFrame& frame, const std::optional<FabricConstants>& fabric,
               double queue_us, Clock& clock);

  // Returns LiveError's median over whole calls of one frame, from post to answer.
  std::optional<double> error() const { return error_.Median(); }
  // Returns the live factor of what ComputeFor gives, with a seed's curve or without; 1 at first.
  double factor(bool seeded) const { return (seeded ? of_curve_ : of_points_).Get(); }

 private:
  // Predicts from the curve or the fit, without the live factor. It returns 0 if neither is known.
  double PredictUs(const LaneProfile* seed, double rows, double tokens) const;

  const SeedProfile* const seed_;
  const BusyPeriod* const requests_;
  std::array<const LaneProfile*, kFabricKindEnd> lanes_{};  // the seed's, or null
  std::atomic<double> base_us_{0}, per_row_token_us_{0};    // measured
  LiveCompute of_curve_, of_points_;
  LiveError error_;
};

}  // namespace ckv
