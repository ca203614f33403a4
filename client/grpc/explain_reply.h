// Converts decisions to the replies of RequesterService::Explain and Estimate.

#pragma once

#include <span>

#include "ckv/v1/requester.pb.h"
#include "client/estimate.h"
#include "client/explanation.h"
#include "client/holder_view.h"
#include "proto/corpus.h"

namespace ckv {

// Fills in every cost with every term, each input with its nearest flip, and each holder. `holders`
// is from the requester (KnownHolders) and has the accuracy of its predictions.
void FillExplainReply(const Explanation& explanation, std::span<const HolderView> holders,
                      v1::ExplainReply& reply);

// Fills in the groups' costs and holders. `estimates` must be for chunks of `corpus`.
void FillEstimateReply(std::span<const GroupEstimate> estimates, const Corpus& corpus,
                       v1::EstimateReply& reply);

}  // namespace ckv
