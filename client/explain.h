// Fills the predicate's inputs for some chunks: probes holders and measures what is not known yet.

#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "client/holder_peer.h"
#include "client/network_oracle.h"
#include "client/requester.h"
#include "client/route.h"

namespace ckv {

// Older constants of a fabric are measured anew: under load no live request tells them.
inline constexpr Duration kFabricConstantsAgeMax = std::chrono::seconds(60);

// What answers the questions of a call; all must outlive it.
struct ExplainTools {
  PeerTable& peers;
  Router& router;
  Clock& clock;
  NetworkOracle* oracle = nullptr;  // null: none is told of
};

struct MeasuredInput {
  DecisionInput input;
  std::vector<HolderId> holders;  // of input.candidates, one each
};

// The input of these chunks: a group of candidates for each list of holders, with the share of the
// tokens that these have; a holder in two groups is a candidate of both, each as if it were asked
// for that share alone. T_probe and BW come from a probe of the engine's lane, the
// compute constants (once a holder) from routing 1 and 16 rows over its first chunk, and under
// selection 16 rows over rows picked out of it. A holder whose constants are known is asked for one
// echo all the same, so that no dead one is recommended; a replica that cannot be measured is left
// out while another of its group can. Where nobody of a group is a member of the directory, there
// are no candidates and `gone_holder` names the first. `here` is the caller's.
//   InvalidArgument     the range or the rows.
//   Unavailable         no member of a group answers, or its bandwidth cannot be told from its
//                       probe.
absl::StatusOr<MeasuredInput> MeasureDecisionInput(const ExplainCall& call,
                                                   const RequesterConstants& here,
                                                   const ExplainTools& tools);

// What is known of a holder without asking anybody: to rank replicas that were measured before, or
// that only the oracle knows the way to. Its group is 0 and its token_share 1. `oracle` may be
// null. `geometry` is that of the corpus in question; without it a profile's constants are left
// out, for they are of one geometry.
Candidate CandidateOf(const HolderPeer& peer, const PeerTable& peers, NetworkOracle* oracle,
                      const Geometry* geometry = nullptr);

}  // namespace ckv
