// Learns from one holder's attends how fast its kernel is now and how far the cost model is off.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "client/decide/profile.h"
#include "client/decide/profile_seed.h"
#include "client/learn/live_error.h"
#include "client/learn/live_kernel.h"
#include "client/learn/ratio_histogram.h"
#include "proto/base/clock.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "proto/kernel_target.h"
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

  // The widths that are told apart. A holder serves one or two: bf16 and fp8 rows of one family.
  static constexpr size_t kWidthsMax = 8;

  // Returns the profile's constants of the holder over `fabric`. Returns null if the profile does
  // not cover `geometry`, the holder, its kernel target or the fabric.
  const LaneProfile* SeedOf(const Geometry& geometry, FabricKind fabric) const;
  // Sets the holder's kernel target, as the directory has it. Until then a profile's target is
  // believed.
  void SetTarget(KernelTargetId target) { target_.store(target, std::memory_order_relaxed); }
  KernelTargetId target() const { return target_.load(std::memory_order_relaxed); }

  // Returns kernel constants for the cost model: the profile's curve if `seed` has one, else
  // `measured`, what Explain measured for these widths. Either comes with the current slowdown of
  // the kernel.
  ComputeConstants ComputeFor(const RowWidths& widths,
                              const std::optional<ComputeConstants>& measured,
                              const LaneProfile* seed) const;
  // Takes what Explain measured. If it differs from the last for these widths, its live factors
  // start at 1 again. Widths beyond kWidthsMax have no live factors.
  void SetMeasured(const RowWidths& widths, const ComputeConstants& measured);

  // Learns from one answered frame. On the hot path: no lock and no allocation, except when
  // SeedProfile first sees a geometry. `fabric` and `queue_us` are those known before this answer.
  void Observe(const AnsweredFrame& frame, const std::optional<FabricConstants>& fabric,
               double queue_us, Clock& clock);

  // Returns LiveError's median over whole calls of one frame, from post to answer.
  std::optional<double> error() const { return error_.Median(); }
  // Returns measured / predicted of the same calls, all since the start.
  RatioCounts ratios() const { return ratios_.Read(); }
  // Returns the live factors of what ComputeFor gives, by a seed's curve or without; 1 at first.
  LiveFactors curve_factors() const { return of_curve_.Get(); }
  LiveFactors points_factors(const RowWidths& widths) const;

 private:
  // The constants that Explain measured for one key of widths, 0 while it is free. Keys are set
  // once.
  struct Fit {
    std::atomic<uint64_t> key{0};
    std::atomic<double> base_us{0}, per_row_token_us{0};
    std::atomic<double> floor_us_per_token{0}, floor_shown_share{0};
    LiveKernel live;

    KernelTime Time(double rows, double tokens) const;
  };
  static uint64_t KeyOf(const RowWidths& widths);
  // Returns the fit of these widths, or null.
  const Fit* Find(const RowWidths& widths) const;

  const SeedProfile* const seed_;
  const BusyPeriod* const requests_;
  std::array<const LaneProfile*, kFabricKindEnd> lanes_{};  // the seed's, or null
  std::atomic<KernelTargetId> target_{KernelTargetId::kUnknown};
  LiveKernel of_curve_;
  std::array<Fit, kWidthsMax> fits_;
  LiveError error_;
  RatioHistogram ratios_;
};

}  // namespace ckv
