// Describes in sentences why `explain` did not choose the other primitives.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckv/v1/requester.pb.h"

namespace ckv::ctl {

// Returns one sentence for each primitive that was not chosen. The sentence states by how much it
// loses over `steps`, and from or up to how many steps it would win. `steps` is the requested
// number, at least 1.
std::vector<std::string> DescribeAlternatives(const v1::ExplainReply& reply, uint32_t steps,
                                              bool selected);

}  // namespace ckv::ctl
