// Learns from one holder's attends how fast its kernel is now and how large the cost model's error
// is.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "client/cost/live_error.h"
#include "client/cost/live_kernel.h"
#include "client/cost/profile.h"
#include "client/cost/profile_seed.h"
#include "client/cost/ratio_histogram.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "proto/kernel_target.h"
#include "transport/fabric.h"

namespace ckv {

// The answer to a frame of dense attention. Borrows `geometry` and `runs`.
struct AnsweredFrame {
  const Geometry& geometry;
  FabricKind fabric = FabricKind::kTcp;  // the fabric of its lane
  uint32_t rows = 0;                     // query rows
  std::span<const SharedRun> runs = {};  // as the holder's kernel makes them of this frame alone
  // As the reply reported: the kernel time of its batch, and this frame's share of the batch in
  // 255ths. A share of 0 was not reported, and counts as all.
  uint32_t compute_ns = 0;
  uint8_t batch_share = 255;
};

// The model of one holder; thread-safe.
//
// A reply reports the holder's own time, whatever else the call did. So every reply updates the
// kernel's speed. A shared batch gives a range. The frame alone would have taken at least its share
// of the work, and at most the whole batch. Rows that requesters share are read once. A prediction
// within the range is right as far as can be measured.
//
// The round trip of a call depends on what else its caller does. JudgeRound is for round trips that
// had the holder to themselves.
class LiveModel {
 public:
  // `seed`, which may be null, must outlive it.
  LiveModel(const HolderId& holder, const SeedProfile* seed);

  // The most widths that are tracked separately. A holder serves one or two: bf16 and fp8 rows of
  // one family.
  static constexpr size_t kWidthsMax = 8;

  // Returns the profile's constants of the holder over `fabric`. Returns null if the profile does
  // not cover `geometry`, the holder, its kernel target or the fabric.
  const LaneProfile* SeedOf(const Geometry& geometry, FabricKind fabric) const;
  // Sets the holder's kernel target, as the directory reports it. Until then a profile's target is
  // trusted.
  void SetTarget(KernelTargetId target) { target_.store(target, std::memory_order_relaxed); }
  KernelTargetId target() const { return target_.load(std::memory_order_relaxed); }

  // Returns kernel constants for the cost model: the profile's curve if `seed` has one, else
  // `measured`, which Explain measured for these widths. Both include the current slowdown of the
  // kernel.
  ComputeConstants ComputeFor(const RowWidths& widths,
                              const std::optional<ComputeConstants>& measured,
                              const LaneProfile* seed) const;
  // Takes what Explain measured. If it differs from the last for these widths, its live factors
  // start at 1 again. It is no longer doubted. Widths beyond kWidthsMax have no live factors.
  void SetMeasured(const RowWidths& widths, const ComputeConstants& measured);
  // Returns true if replies have disagreed with what was measured for these widths (DoubtCount). It
  // must then be measured again: a factor cannot repair a base that was measured under load. A
  // profile's curve is corrected by its factors alone.
  bool doubted(const RowWidths& widths) const;
  // Doubts what was measured for these widths for another reason. Returns true if it was not
  // doubted before.
  bool Doubt(const RowWidths& widths);

  struct Learned {
    // The kernel time that was expected of the frame; 0 if it is unknown.
    double expected_us = 0;
    bool doubted_now = false;  // this reply made the measured constants doubted
  };
  // Learns from one answered frame. On the hot path: no lock and no allocation, except when
  // SeedProfile first sees a geometry. Takes some 50 ns.
  Learned Observe(const AnsweredFrame& frame);
  // Takes a whole round trip, from post to answer, that had the holder to itself.
  void JudgeRound(double expected_us, double took_us) {
    error_.Observe(expected_us, took_us);
    ratios_.Observe(expected_us, took_us);
  }

  // Returns LiveError's median over the round trips that JudgeRound took.
  std::optional<double> error() const { return error_.Median(); }
  // Returns measured / predicted of the same round trips, all since the start.
  RatioCounts ratios() const { return ratios_.Read(); }
  // Return the live factors that ComputeFor includes: of a seed's curve, or of measured points; 1
  // at first.
  LiveFactors curve_factors() const { return of_curve_.Get(); }
  LiveFactors points_factors(const RowWidths& widths) const;

 private:
  // The constants that Explain measured for one key of widths. The key is 0 while the entry is
  // free, and is set once.
  struct Fit {
    std::atomic<uint64_t> key{0};
    std::atomic<double> base_us{0}, per_row_token_us{0};
    std::atomic<double> floor_us_per_token{0}, floor_shown_share{0};
    LiveKernel live;
    DoubtCount doubts;
    std::atomic<bool> doubted{false};

    KernelTime Time(std::span<const SharedRun> runs) const;
  };
  static uint64_t KeyOf(const RowWidths& widths);
  // Returns the fit of these widths, or null.
  const Fit* Find(const RowWidths& widths) const;

  const SeedProfile* const seed_;
  std::array<const LaneProfile*, kFabricKindEnd> lanes_{};  // the seed's, or null
  std::atomic<KernelTargetId> target_{KernelTargetId::kUnknown};
  LiveKernel of_curve_;
  std::array<Fit, kWidthsMax> fits_;
  LiveError error_;
  RatioHistogram ratios_;
};

}  // namespace ckv
