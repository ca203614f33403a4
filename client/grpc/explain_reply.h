// An explained decision as RequesterService::Explain answers it.

#pragma once

#include <span>

#include "ckv/v1/requester.pb.h"
#include "client/requester.h"

namespace ckv {

// Every cost with every term, each input with what would flip the choice, each holder. `holders`
// are the requester's (KnownHolders): what it knows of how well its predictions hold.
void FillExplainReply(const Requester::Explanation& explanation,
                      std::span<const HolderView> holders, v1::ExplainReply& reply);

}  // namespace ckv
