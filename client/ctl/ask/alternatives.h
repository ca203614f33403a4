// Says in sentences what an explained choice was chosen against.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckv/v1/requester.pb.h"

namespace ckv::ctl {

// Returns one sentence for each primitive that was not chosen. It says by what that loses over
// `steps`, and from or up to how many steps it would win instead. `steps` is the number that was
// asked for, and at least 1.
std::vector<std::string> DescribeAlternatives(const v1::ExplainReply& reply, uint32_t steps,
                                              bool selected);

}  // namespace ckv::ctl
