// Fills the predicate's inputs for some chunks: probes holders and measures what is not known yet.

#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/holder_peer.h"
#include "client/requester.h"
#include "client/route.h"

namespace ckv {

struct ExplainCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk_begin = 0;
  uint32_t chunk_end = 0;
  uint32_t query_rows = 0;
  uint32_t steps = 1;
  uint32_t select = 0;
  Instant deadline = kInstantMax;
};

// Older constants of a fabric are measured anew: under load no live request tells them.
inline constexpr Duration kFabricConstantsAgeMax = std::chrono::seconds(60);

// The input of the slowest of the holders of these chunks: all of them answer a query side by side,
// so the slowest tells its time. T_probe and BW come from a probe of the engine's lane, the compute
// constants (once a holder) from routing 1 and 16 rows over its first chunk. A holder whose
// constants are known is asked for one echo all the same, so that no dead one is recommended. With
// a holder that is not a member of the directory `fabric` is absent and `gone_holder` names it.
// `here` is the caller's.
//   InvalidArgument     the range or the rows.
//   Unavailable         a member does not answer, or its bandwidth cannot be told from its probe.
absl::StatusOr<DecisionInput> MeasureDecisionInput(const ExplainCall& call,
                                                   const RequesterConstants& here, PeerTable& peers,
                                                   Router& router, Clock& clock);

}  // namespace ckv
