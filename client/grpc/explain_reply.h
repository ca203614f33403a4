// An explained decision as RequesterService::Explain answers it.

#pragma once

#include <span>

#include "ckv/v1/requester.pb.h"
#include "client/decide/explanation.h"
#include "client/holders/holder_view.h"

namespace ckv {

// Fills in every cost with every term, each input with its nearest flip, and each holder. `holders`
// comes from the requester (KnownHolders) and tells how accurate its predictions are.
void FillExplainReply(const Explanation& explanation, std::span<const HolderView> holders,
                      v1::ExplainReply& reply);

}  // namespace ckv
