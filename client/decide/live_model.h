// What one holder's attends teach about it: how fast its kernel is now, and how far the cost model
// is off.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "client/attend_plan.h"
#include "client/live_compute.h"
#include "client/live_error.h"
#include "client/profile.h"
#include "client/profile_seed.h"
#include "proto/clock.h"
#include "proto/ids.h"
#include "transport/fabric.h"

namespace ckv {

// The answer to a frame of dense attention, just ended in the requester's BusyPeriod. Borrowed.
struct AnsweredFrame {
  const Geometry& geometry;
  FabricKind fabric = FabricKind::kTcp;  // of its lane
  uint32_t rows = 0;                     // query rows
  // It asked for pieces[sent[i]], and attended their tokens.
  std::span<const PlannedPiece> pieces = {};
  std::span<const uint32_t> sent = {};
  uint64_t bytes = 0;       // both ways
  uint32_t compute_ns = 0;  // as the reply told
  Instant posted = {};
  bool whole = false;  // it was all that its call posted, to any holder
};

// Of one holder; thread-safe. Learns only from frames that had the requester to themselves, as
// LiveFabric does: frames that share a kernel call carry its whole time each.
class LiveModel {
 public:
  // `seed`, which may be null, and `requests` must outlive it.
  LiveModel(const HolderId& holder, const SeedProfile* seed, const BusyPeriod* requests);

  // What the profile has of the holder over `fabric`; null where it does not speak of `geometry`,
  // the holder or the fabric.
  const LaneProfile* SeedOf(const Geometry& geometry, FabricKind fabric) const;

  // `measured` are those of two points that Explain measured, if it did. The profile's curve stands
  // before them; either is times what the kernel takes now.
  ComputeConstants ComputeFor(const std::optional<ComputeConstants>& measured,
                              const LaneProfile* seed) const;
  // The two points were measured anew.
  void SetMeasured(const ComputeConstants& measured);

  // On the hot path: no lock and no allocation (but for SeedProfile's first sight of a geometry).
  // `fabric` and `queue_us` are those known before this answer.
  void Observe(const AnsweredFrame& frame, const std::optional<FabricConstants>& fabric,
               double queue_us, Clock& clock);

  // Of whole calls of one frame, from post to answer: LiveError's median.
  std::optional<double> error() const { return error_.Median(); }
  // Of what ComputeFor gives with a seed, or without one; 1 before anything was learnt.
  double factor(bool seeded) const { return (seeded ? of_curve_ : of_points_).Get(); }

 private:
  static constexpr size_t kFabricCount = static_cast<size_t>(FabricKind::kVerbs) + 1;

  // As measured or calibrated, without the live factor; 0: nobody knows.
  double PredictUs(const LaneProfile* seed, double rows, double tokens) const;

  const SeedProfile* const seed_;
  const BusyPeriod* const requests_;
  std::array<const LaneProfile*, kFabricCount> lanes_{};  // of the seed; null: none
  std::atomic<double> base_us_{0}, per_row_token_us_{0};  // measured
  LiveCompute of_curve_, of_points_;
  LiveError error_;
};

}  // namespace ckv
