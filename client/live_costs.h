// The current costs of routing, fetching and attending at this requester: constants learned from
// probes and calls, as inputs of the predicate.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "attention/backend.h"
#include "client/calls.h"
#include "client/cost/live_calls.h"
#include "client/cost/live_here.h"
#include "client/cost/network_oracle.h"
#include "client/cost/predicate.h"
#include "client/cost/profile.h"
#include "client/estimate.h"
#include "client/holders/chunk_groups.h"
#include "client/holders/holder_peer.h"
#include "client/live_prefill.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv {

// Thread-safe.
class LiveCosts {
 public:
  // The most corpora whose groups are kept. At the limit, all are dropped and rebuilt as they are
  // used.
  static constexpr size_t kCorpusCountMax = 256;
  static constexpr Duration kHereAgeMax = std::chrono::seconds(60);

  // All must outlive it. `oracle` may be null.
  LiveCosts(PeerTable* peers, NetworkOracle* oracle, Clock* clock, Backend* backend,
            const LaneShape& lane_shape)
      : peers_(*peers),
        oracle_(oracle),
        clock_(*clock),
        backend_(*backend),
        lane_shape_(lane_shape) {}

  // Returns the constants of this requester for rows of these widths. Unless a profile has them,
  // measures for about 10 ms, the first time and then once per kHereAgeMax. Load only makes a
  // measurement slower, so the minimum of each constant is kept. Calls over local rows show whether
  // this host has become slower (LiveHere).
  //   Errors of CalibrateHere.
  absl::StatusOr<RequesterConstants> Here(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, but returns nothing if the constants would have to be measured.
  std::optional<RequesterConstants> KnownHere(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the groups of a corpus's chunks. They are made once.
  //   ResourceExhausted   as PeerTable::Find.
  absl::StatusOr<std::shared_ptr<const ChunkGroups>> GroupsOf(
      const std::shared_ptr<const Corpus>& corpus) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns an estimate for each group of chunks, in the order of their first chunks. Sends
  // nothing. `is_cached` returns whether a chunk's rows are cached locally.
  //   InvalidArgument     there is no corpus, an ordinal is beyond its last chunk, or there are no
  //                       query rows or more than kAttendRowCountMax.
  absl::StatusOr<std::vector<GroupEstimate>> Estimate(
      const EstimateCall& call, const std::function<bool(uint32_t)>& is_cached)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the input of one decision over all chunks of the call: a group of candidates for each
  // group of chunks.
  //   Unavailable         a constant is not known yet; names it.
  //   otherwise           as for Estimate.
  absl::StatusOr<DecisionInput> KnownInput(const EstimateCall& call) ABSL_LOCKS_EXCLUDED(mu_);

  // Receives the engine's prefills. Their median replaces the profile's cost of prefill.
  LivePrefill& prefill() { return prefill_; }
  // Receives the times of attends over local rows.
  LiveHere& live_here() { return live_here_; }
  // Receives the times of whole attends.
  LiveCalls& live_calls() { return live_calls_; }
  // Records the time of a fetch for each holder that the rows may have come from.
  void ObservePrefetch(const FetchCall& call, Duration took) ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a chunk that was mapped instead, for its holders on this host. The time includes
  // the holder's copy, unless the holder already made one for another requester.
  void ObserveMap(const MapCall& call, Duration took) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether every holder of these chunks has `target`. Members report their targets to the
  // directory. An unreported target counts as a different one.
  bool HaveTarget(const std::shared_ptr<const Corpus>& corpus, KernelTargetId target)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Grouped {
    std::weak_ptr<const Corpus> corpus;  // the address may be reused by another corpus
    std::shared_ptr<const ChunkGroups> groups;
  };

  absl::Status CheckCall(const EstimateCall& call) const;
  DecisionInput InputOf(const EstimateCall& call, const RequesterConstants& here) const;
  // Lowers input.here to the costs of the fastest candidate from `begin` on, all of one group, that
  // has this host's kernel target. Does nothing if local rows have been attended (LiveHere), or if
  // a profile has the costs.
  void HopeForHere(const ChunkGroups& groups, uint32_t group, size_t begin,
                   DecisionInput& input) const;
  // Adds the candidates of a group. Returns whether any of them has known constants.
  bool AddCandidates(const ChunkGroups& groups, uint32_t group, uint32_t ordinal,
                     DecisionInput& input) const;
  struct MeasuredHere {
    RequesterConstants constants;
    Instant at;
  };

  absl::Status MeasureHere(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the last measurement for these widths is older than kHereAgeMax.
  bool IsOldHere(const RowWidths& widths) const ABSL_LOCKS_EXCLUDED(mu_);

  PeerTable& peers_;
  NetworkOracle* const oracle_;
  Clock& clock_;
  Backend& backend_;
  const LaneShape lane_shape_;
  LiveHere live_here_;
  LiveCalls live_calls_;
  LivePrefill prefill_;
  mutable absl::Mutex mu_;
  std::map<RowWidths, MeasuredHere> here_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const Corpus*, Grouped> groups_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
