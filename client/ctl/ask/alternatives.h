// What an explained choice was chosen against, in sentences.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckv/v1/requester.pb.h"

namespace ckv::ctl {

// One sentence for each primitive that was not chosen: by what it loses over `steps`, the steps
// that were asked for and at least 1, and from or up to how many it would win instead.
std::vector<std::string> DescribeAlternatives(const v1::ExplainReply& reply, uint32_t steps,
                                              bool selected);

}  // namespace ckv::ctl
