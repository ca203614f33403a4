// The costs of routing, pulling and attending at this requester now: constants that probes and
// calls have told, put into the predicate's terms.

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
#include "client/decide/network_oracle.h"
#include "client/decide/predicate.h"
#include "client/decide/profile.h"
#include "client/decide/quote.h"
#include "client/holders/chunk_groups.h"
#include "client/holders/holder_peer.h"
#include "client/learn/live_calls.h"
#include "client/learn/live_here.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv {

// Thread-safe.
class LiveCosts {
 public:
  // Corpora whose groups are kept. Beyond them, all are forgotten and made again as they are used.
  static constexpr size_t kCorpusCountMax = 256;
  static constexpr Duration kHereAgeMax = std::chrono::seconds(60);

  // All must outlive it; `oracle` may be null.
  LiveCosts(PeerTable* peers, NetworkOracle* oracle, Clock* clock, Backend* backend,
            const LaneShape& lane_shape)
      : peers_(*peers),
        oracle_(oracle),
        clock_(*clock),
        backend_(*backend),
        lane_shape_(lane_shape) {}

  // Returns the constants of this requester for rows of these widths. Unless a profile has them, it
  // measures for about 10 ms, the first time and then once in kHereAgeMax. Load only makes a
  // measurement slower, so the minimum of each constant is kept. Calls of near rows show whether
  // this host has become slower (LiveHere).
  //   Errors of CalibrateHere.
  absl::StatusOr<RequesterConstants> Here(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);
  // The same, but null if they would have to be measured.
  std::optional<RequesterConstants> KnownHere(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the groups of a corpus' chunks, made once.
  //   ResourceExhausted   as PeerTable::Find.
  absl::StatusOr<std::shared_ptr<const ChunkGroups>> GroupsOf(
      const std::shared_ptr<const Corpus>& corpus) ABSL_LOCKS_EXCLUDED(mu_);

  // Answers a question, a group of chunks each, in the order of their first chunks. Asks nobody.
  // `is_near` tells whether a chunk's rows are near.
  //   InvalidArgument     there is no corpus, an ordinal is past its last chunk, or there are more
  //                       than kAttendRowCountMax query rows, or none.
  absl::StatusOr<std::vector<GroupQuote>> Quote(const QuoteCall& call,
                                                const std::function<bool(uint32_t)>& is_near)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the input of one decision over all chunks of the call: a group of candidates for each
  // group of chunks.
  //   Unavailable         a constant is not known yet; says which.
  //   else                as Quote.
  absl::StatusOr<DecisionInput> KnownInput(const QuoteCall& call) ABSL_LOCKS_EXCLUDED(mu_);

  // Is told the times of attends of near rows.
  LiveHere& live_here() { return live_here_; }
  // Is told what whole attends take.
  LiveCalls& live_calls() { return live_calls_; }
  // Notes the time of a pull for the holders that it may have come from.
  void ObservePull(const FetchCall& call, Duration took) ABSL_LOCKS_EXCLUDED(mu_);
  // As ObservePull, of a chunk that was mapped instead. Its holder copies it, unless it has for
  // another requester.
  void ObserveMap(const MapCall& call, Duration took) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether every holder of these chunks has `target`. Members tell theirs to the directory. One
  // that did not counts as another.
  bool HaveTarget(const std::shared_ptr<const Corpus>& corpus, KernelTargetId target)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Grouped {
    std::weak_ptr<const Corpus> corpus;  // the same address may be another's later
    std::shared_ptr<const ChunkGroups> groups;
  };

  absl::Status CheckCall(const QuoteCall& call) const;
  DecisionInput InputOf(const QuoteCall& call, const RequesterConstants& here) const;
  // Takes the candidates from `begin` on, those of one group, into account.
  void HopeForHere(const ChunkGroups& groups, uint32_t group, size_t begin,
                   DecisionInput& input) const;
  // Adds the candidates of a group. Returns whether the constants of one of them are known.
  bool AddCandidates(const ChunkGroups& groups, uint32_t group, uint32_t ordinal,
                     DecisionInput& input) const;
  struct MeasuredHere {
    RequesterConstants constants;
    Instant at;
  };

  absl::Status MeasureHere(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the constants of these widths were last measured more than kHereAgeMax ago.
  bool IsOldHere(const RowWidths& widths) const ABSL_LOCKS_EXCLUDED(mu_);

  PeerTable& peers_;
  NetworkOracle* const oracle_;
  Clock& clock_;
  Backend& backend_;
  const LaneShape lane_shape_;
  LiveHere live_here_;
  LiveCalls live_calls_;
  mutable absl::Mutex mu_;
  std::map<RowWidths, MeasuredHere> here_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const Corpus*, Grouped> groups_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
