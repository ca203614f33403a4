// Fills the predicate's input for some chunks: probes their holders and measures unknown constants.

#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/call/route.h"
#include "client/calls.h"
#include "client/cost/live_calls.h"
#include "client/cost/network_oracle.h"
#include "client/explanation.h"
#include "client/holders/holder_peer.h"

namespace ckv {

// Fabric constants older than this are measured again, because under load no live request updates
// them.
inline constexpr Duration kFabricConstantsAgeMax = std::chrono::seconds(60);

// The objects that MeasureDecisionInput works with. All must outlive the call.
struct ExplainTools {
  PeerTable& peers;
  LinkTable& links;
  Router& router;
  Clock& clock;
  NetworkOracle* oracle = nullptr;  // if null, no path costs are known
};

struct MeasuredInput {
  DecisionInput input;
  std::vector<HolderId> holders;  // the holder of each of input.candidates
};

// Returns the input of the decision for these chunks. Chunks with the same list of holders form one
// group; each of these holders is a candidate of it. A candidate's token_share is the group's share
// of the tokens. A holder in two groups is a candidate in both, each time only for that group's
// share.
//
// T_probe and BW are measured by a probe of the call context's lane. Compute constants are measured
// once per holder, by routing 1 and 64 query rows over its first chunk, and 1 over one row of it.
// Each attend uses another layer, so that its rows are where calls find them and not in a processor
// cache. Under selection, 16 query rows are also routed over rows selected from that chunk. Doubted
// constants are measured again (DoubtCount, client/cost/live_window.h).
//
// A holder with known constants still gets one echo, so that a dead one is not recommended. A
// replica that cannot be measured is omitted if another of its group can be measured. If no holder
// of a group is a member of the directory, there are no candidates. `gone_holder` then names the
// first of them. `here` is copied into the result unchanged.
//   InvalidArgument     the chunks or the number of query rows are not valid.
//   Unavailable         no member of a group answers, or its probe does not show its bandwidth.
absl::StatusOr<MeasuredInput> MeasureDecisionInput(ExplainCall call, const RequesterConstants& here,
                                                   const ExplainTools& tools);

// Completes the result. Rows for which `is_cached` returns true are cached locally, so they are
// neither fetched nor recomputed.
Explanation ExplanationOf(const ExplainCall& call, MeasuredInput measured, PeerTable& peers,
                          const LiveCalls& calls,
                          absl::FunctionRef<bool(const ChunkPlacement&)> is_cached);

// Measures a holder's doubted constants within one call context.
using Remeasure = absl::FunctionRef<absl::Status(const ExplainTools& tools, Instant deadline)>;
// Measures the doubted constants of one holder again, with the same chunks as before. `run` calls
// `measure` with a call context of `corpus`.
//   NotFound            the corpus of these chunks is no longer in use.
//   else                errors of `run`.
absl::Status MeasureDoubted(
    HolderPeer& peer,
    absl::FunctionRef<absl::Status(const Corpus& corpus, const Remeasure& measure)> run);

}  // namespace ckv
