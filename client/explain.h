// Fills the predicate's inputs for some chunks: probes holders and measures what is not known yet.

#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// The input of the slowest of the holders of these chunks: all of them answer a query side by side,
// so the slowest tells its time. Measured once a holder: T_probe and BW by a probe of the engine's
// lane; the compute constants by routing 1 and 16 rows over its first chunk. `here` is the
// caller's.
//   InvalidArgument     the range or the rows.
//   Unavailable         a holder is gone, or its bandwidth cannot be told from its probe.
absl::StatusOr<DecisionInput> MeasureDecisionInput(const ExplainCall& call,
                                                   const RequesterConstants& here, Router& router,
                                                   Clock& clock);

}  // namespace ckv
