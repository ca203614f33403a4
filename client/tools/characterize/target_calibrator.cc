// Calibrates this host and all lanes of a target, on one thread. In order:
//   constructor  measures merge and splice here, then lists the parts. Each attention here is next
//                to the same part of each lane. Then follow the fetches and the prefill
//   Part(i)      measures one part once more. Round measures all; Disagrees compares the rounds
//   Finish       fits the curve of this host and the constants of each lane

#include "client/tools/characterize/target_calibrator.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "client/paged/calibrate_here.h"
#include "client/requester.h"
#include "client/tools/characterize/findings.h"
#include "proto/base/status.h"

namespace ckv {

uint64_t TokensOf(const CharacterizeTarget& target, uint32_t chunk) {
  return target.corpus->chunks[chunk].token_count;
}

bool RoundsDisagree(const std::vector<double>& us) {
  if (us.size() < 4) return false;
  std::vector<double> sorted = us;
  std::sort(sorted.begin(), sorted.end());
  const size_t quarter = sorted.size() / 4;
  const double width = sorted[sorted.size() - 1 - quarter] - sorted[quarter];
  return width > kTieBand * TrimmedMean(sorted);
}

namespace {

// The target that the directory reports.
KernelTargetId TargetOf(const Requester& requester, const HolderId& holder) {
  for (const HolderView& view : requester.KnownHolders()) {
    if (view.member.id == holder) return view.member.kernel_target;
  }
  return KernelTargetId::kUnknown;
}

// Returns 0 if the system does not report it. Holders elsewhere are taken to be like this machine.
double SecondLevelCacheBytes() {
  return std::max(0.0, static_cast<double>(sysconf(_SC_LEVEL2_CACHE_SIZE)));
}

}  // namespace

TargetCalibrator::TargetCalibrator(const CharacterizeTarget& target,
                                   const CharacterizeOptions& options, const PagedCache& cache,
                                   Clock& clock)
    : target_(target), options_(options), cache_(cache), clock_(clock) {
  const auto here = CalibrateHere(target.corpus->geometry, clock);
  CKV_CHECK(here.ok());  // this processor's never fails
  here_ = *here;
  for (const CharacterizedLane& lane : target.lanes) AddLane(lane);
  // Measurements that are compared are made next to each other: rounds alternate between small and
  // large chunks of the grid. A processor that has just computed for long runs slower.
  size_t part = 0;
  for (const uint32_t rows : options.calibrate_query_rows) {
    for (const RowCaching caching : CachingsOf(!target.push_out.empty())) {
      for (const uint32_t chunk : {target.sizes.front(), target.sizes.back()}) {
        AddAttend(rows, chunk, caching);
        AddPartOfLanes(part++);
      }
    }
  }
  AddPartOfLanes(part);  // the fetches
  if (target.prefill) AddPrefill();
}

void TargetCalibrator::AddAttend(uint32_t rows, uint32_t chunk, RowCaching caching) {
  const uint64_t tokens = TokensOf(target_, chunk);
  attend_.push_back({double(rows), double(tokens), caching, parts_.size()});
  parts_.push_back(
      {[this, rows, tokens, caching](std::vector<double>& us) {
         us.push_back(TimeAttendHere(cache_, tokens, rows, caching, {1, kTimingMin}, clock_));
         return absl::OkStatus();
       },
       {}});
}

void TargetCalibrator::AddLane(const CharacterizedLane& lane) {
  const CalibrationCall call = {.corpus = target_.corpus,
                                .few = target_.sizes.front(),
                                .many = target_.sizes.back(),
                                .push_out = target_.push_out,
                                .query_rows = options_.calibrate_query_rows,
                                .merge_per_row_us = here_.merge_per_row_us,
                                .splice_per_token_layer_us = here_.splice_per_token_layer_us,
                                .splice_per_layer_us = here_.splice_per_layer_us,
                                .cache_bytes = SecondLevelCacheBytes()};
  lanes_.push_back(std::make_unique<LaneCalibrator>(lane.requester, call, &clock_));
}

// The same part of each lane's calibration.
void TargetCalibrator::AddPartOfLanes(size_t part) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    parts_.push_back({[this, i, part](std::vector<double>& us) -> absl::Status {
                        if (absl::Status status = lanes_[i]->Part(part); !status.ok())
                          return Annotate(status, "calibrate over " + target_.lanes[i].fabric);
                        us.push_back(lanes_[i]->LastUs(part));
                        return absl::OkStatus();
                      },
                      {}});
  }
}

void TargetCalibrator::AddPrefill() {
  prefill_ = parts_.size();
  parts_.push_back({[this](std::vector<double>& us) -> absl::Status {
                      const uint64_t tokens = TokensOf(target_, target_.sizes.front());
                      CKV_ASSIGN_OR_RETURN(const double one_us, target_.prefill(tokens));
                      us.push_back(one_us);
                      return absl::OkStatus();
                    },
                    {}});
}

absl::Status TargetCalibrator::Round() {
  for (size_t i = 0; i < parts_.size(); ++i) CKV_RETURN_IF_ERROR(Part(i));
  return absl::OkStatus();
}

absl::Status TargetCalibrator::Part(size_t i) { return parts_[i].measure(parts_[i].us); }

bool TargetCalibrator::Disagrees(size_t part) const {
  size_t begin = part, end = part + 1;
  const size_t width = 1 + lanes_.size();
  if (part < attend_.size() * width) {
    begin = part / width * width;
    end = begin + width;
  }
  return std::any_of(parts_.begin() + std::ptrdiff_t(begin), parts_.begin() + std::ptrdiff_t(end),
                     [](const Measured& one) { return RoundsDisagree(one.us); });
}

Profile TargetCalibrator::Finish(const std::string& subject) const {
  Profile profile;
  profile.subject = subject;
  profile.here = here_;
  profile.kernel_target = KernelTargetIdOf(KernelTarget());
  profile.kernel = ChosenKernelRecord();
  std::vector<ComputeSample> attend;
  for (const Point& point : attend_)
    attend.push_back({point.rows, point.tokens, TrimmedMean(parts_[point.part].us),
                      point.caching == RowCaching::kCold});
  profile.here.attend = FitComputeCurve(attend);
  const uint32_t few = target_.sizes.front();
  if (prefill_) {
    profile.here.prefill_per_token_layer_us =
        TrimmedMean(parts_[*prefill_].us) /
        (double(TokensOf(target_, few)) * target_.corpus->geometry.layers);
  }
  const HolderId& holder = target_.corpus->chunks[few].holders()[0];
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const LaneCalibration lane = lanes_[i]->Fit();
    profile.lanes.push_back({.holder = holder.name,
                             .fabric = target_.lanes[i].fabric,
                             .constants = lane.fabric,
                             .compute = lane.holder,
                             .wire_share = lane.wire_share,
                             .burst_bytes = lane.burst_bytes,
                             .splice_share = lane.splice_share,
                             .cold_exchange = lane.cold_exchange,
                             .kernel_target = TargetOf(*target_.lanes[i].requester, holder)});
  }
  return profile;
}

}  // namespace ckv
