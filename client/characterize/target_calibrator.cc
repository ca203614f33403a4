#include "client/characterize/target_calibrator.h"

#include <cstring>
#include <utility>

#include "proto/status.h"

namespace ckv {

uint64_t TokensOf(const CharacterizeTarget& target, uint32_t chunk) {
  return target.corpus->chunks[chunk].token_count;
}

RowView RowsHere(const PagedCache& cache, uint64_t tokens) {
  RowView rows = cache.layer_rows(0);
  rows.count = static_cast<uint32_t>(tokens);
  return rows;
}

absl::StatusOr<std::unique_ptr<PagedCache>> CacheFor(const CharacterizeTarget& target) {
  const uint64_t tokens = TokensOf(target, target.sizes.back());
  CKV_ASSIGN_OR_RETURN(
      std::unique_ptr<PagedCache> cache,
      PagedCache::Create(target.corpus->geometry,
                         {.block_count = static_cast<uint32_t>(tokens / kCacheBlockTokens + 2)}));
  // Every page is there before anything is timed: a page of zeros that was never written is one
  // page for all of them, and stays in the caches.
  CKV_ASSIGN_OR_RETURN(CacheReservation all, cache->Reserve(cache->Begin(), tokens));
  for (uint32_t layer = 0; layer < target.corpus->geometry.layers; ++layer)
    std::memset(all.layer(layer).data(), 0, all.layer(layer).size());
  return cache;
}

TargetCalibrator::TargetCalibrator(const CharacterizeTarget& target,
                                   const CharacterizeOptions& options, const PagedCache& cache,
                                   Clock& clock)
    : target_(target), options_(options), cache_(cache), clock_(clock) {
  here_ = CalibrateHere(target.corpus->geometry, clock);
  for (const CharacterizedLane& lane : target.lanes) {
    const CalibrationCall call = {.corpus = target.corpus,
                                  .few = target.sizes.front(),
                                  .many = target.sizes.back(),
                                  .query_rows = options.calibrate_query_rows,
                                  .merge_per_row_us = here_.merge_per_row_us};
    lanes_.push_back(std::make_unique<LaneCalibrator>(lane.requester, call, &clock));
  }
}

absl::Status TargetCalibrator::Round() {
  size_t next = 0;
  for (const uint32_t rows : options_.calibrate_query_rows) {
    for (const uint32_t chunk : {target_.sizes.front(), target_.sizes.back()}) {
      const uint64_t tokens = TokensOf(target_, chunk);
      const double us =
          TimeAttendHere(target_.corpus->geometry, rows, RowsHere(cache_, tokens), 1, clock_);
      if (next == attend_.size()) attend_.push_back({double(rows), double(tokens), {}});
      attend_[next++].us.push_back(us);
    }
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (absl::Status status = lanes_[i]->Round(); !status.ok())
      return Annotate(status, "calibrate over " + target_.lanes[i].fabric);
  }
  return absl::OkStatus();
}

absl::StatusOr<Profile> TargetCalibrator::Finish(const std::string& subject) {
  Profile profile;
  profile.subject = subject;
  profile.here = here_;
  std::vector<ComputeSample> attend;
  for (const Point& point : attend_)
    attend.push_back({point.rows, point.tokens, MedianOf(point.us)});
  profile.here.attend = FitComputeCurve(attend);
  const uint32_t few = target_.sizes.front();
  if (target_.prefill) {
    const uint64_t tokens = TokensOf(target_, few);
    CKV_ASSIGN_OR_RETURN(const double us, target_.prefill(tokens));
    profile.here.prefill_per_token_layer_us =
        us / (double(tokens) * target_.corpus->geometry.layers);
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const LaneCalibration lane = lanes_[i]->Fit();
    profile.lanes.push_back({.holder = target_.corpus->chunks[few].holders[0].name,
                             .fabric = target_.lanes[i].fabric,
                             .constants = lane.fabric,
                             .compute = lane.holder});
  }
  return profile;
}

}  // namespace ckv
