// An explained decision as RequesterService::Explain answers it.

#pragma once

#include "ckv/v1/requester.pb.h"
#include "client/requester.h"

namespace ckv {

// Every cost with every term, each input with what would flip the choice, each holder.
void FillExplainReply(const Requester::Explanation& explanation, v1::ExplainReply& reply);

}  // namespace ckv
