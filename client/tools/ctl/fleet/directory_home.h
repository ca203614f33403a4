// Formats, for ckvctl status, where a directory keeps its state, what it contains, and which
// engines use it.

#pragma once

#include <string>
#include <vector>

#include "ckv/v1/directory.pb.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl {

// Returns, for example, "in /var/lib/ckv/directory: 12 corpora read at its start, 3 min 00 s ago".
// Also reports problems, for example holders that have not returned or a log that refuses changes.
std::string HomeText(const v1::DescribeDirectoryReply& home);
// Returns the whole reply.
Json HomeJson(const v1::DescribeDirectoryReply& home);

// Returns the engines that use the fleet, one per row; empty if there is none. Engines are not
// members, because they hold nothing: one that ends is not a finding.
std::string EnginesText(const std::vector<v1::EngineFacts>& engines);
Json EnginesJson(const std::vector<v1::EngineFacts>& engines);

}  // namespace ckv::ctl
