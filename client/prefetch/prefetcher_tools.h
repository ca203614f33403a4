// The options of the prefetcher, and the functions of its owner that need calls or holders.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/calls.h"
#include "client/context/local_rows.h"
#include "client/cost/profile_file.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"

namespace ckv {

// Microseconds of one step of a context: one call for each layer.
struct StepCost {
  double route_us = 0;
  double cached_us = 0;
  double prefetch_us = 0;  // once, for all its chunks
  // To recompute one token, all layers, according to a profile. Unset if no profile has it.
  std::optional<double> prefill_token_us;
};

// The functions that the prefetcher uses. Only its own threads call those that may wait.
struct PrefetcherTools {
  // Chunks of a corpus that a context attends with `query_rows` rows per call. Each row attends
  // `selected` rows, or all if `selected` is 0.
  struct Work {
    std::shared_ptr<const Corpus> corpus;
    std::vector<uint32_t> chunks;
    uint32_t query_rows = 0;
    uint32_t selected = 0;
  };
  // Returns the cost from the known constants. Does not wait.
  //   Any error           a constant is not known yet.
  std::function<absl::StatusOr<StepCost>(const Work& work)> cost;
  // Measures constants that are unknown or were not measured lately. Waits for holders.
  std::function<absl::Status(const Work& work, Instant deadline)> measure;
  // Whether all holders of a corpus have this process' kernel target. Does not wait; for any
  // thread.
  std::function<bool(const std::shared_ptr<const Corpus>& corpus)> same_target;
  // Identifies the holder that a chunk would be fetched from. Does not wait.
  std::function<const void*(const std::shared_ptr<const Corpus>& corpus, uint32_t chunk)> source;
  // Returns the memory for a run of rows.
  using Place = std::function<std::span<std::byte>(const RowRun&)>;
  // Fetches rows to where `place` puts them. Stops early once `wanted` returns false.
  std::function<absl::Status(const FetchCall& call, const Place& place,
                             const std::function<bool()>& wanted)>
      fetch;
  // Maps the copy of a chunk that a holder on this host made for all requesters of the host.
  //   Any error           no holder on this host has it, or none has room; the rows are fetched.
  std::function<absl::StatusOr<std::shared_ptr<const LocalRows>>(const MapCall& call)> map;
  // Makes the cache of this host store chunks of a corpus, by ordinal. Returns the corpus with
  // these chunks placed only there. Empty if the host has no cache.
  //   Any error           rows are fetched from their holders instead.
  std::function<absl::StatusOr<std::shared_ptr<const Corpus>>(
      const std::shared_ptr<const Corpus>& corpus, std::span<const uint32_t> chunks,
      Instant deadline)>
      keep;
  // Rows of this process' holder; null if there is none.
  LocalRowSource* here = nullptr;
};

// Copies at once without a measurement. The paper's link carries two flows as fast as one, and a
// third slows all (arXiv:2606.01502 section 6.3).
inline constexpr uint32_t kPrefetchFlowsDefault = 2;
// The most copies at once, the paper's elbow of fetches (figure 5). Each has a thread and a call
// context, whose lanes take up to 9 MB at each holder.
inline constexpr uint32_t kPrefetchFlowsMax = 8;

struct PrefetcherOptions {
  Clock* clock = Clock::Real();
  uint64_t local_cache_bytes = 0;  // capacity of the local row cache; 0 turns the prefetcher off
  // Whether cached rows can be attended here. If not, no policy prefetches any.
  bool reached = true;
  // Limits of one measurement and of one slice of a prefetch. The destructor waits for either.
  Duration measure_timeout = std::chrono::seconds(1);
  Duration slice_timeout = std::chrono::seconds(5);
  // Copies at once (PrefetchFlows).
  uint32_t flow_count = kPrefetchFlowsDefault;
};

// Returns how many copies to make at once: the highest fetch_elbow of the profile's lanes to other
// hosts, but at most kPrefetchFlowsMax. Without one, kPrefetchFlowsDefault. `profile` may be null.
// It counts only if it was measured on the host of `host_identity` (WhyNotFrom).
uint32_t PrefetchFlows(const Profile* profile, std::string_view host_identity);

}  // namespace ckv
