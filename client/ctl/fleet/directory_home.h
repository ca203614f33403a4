// Tells where a directory keeps its state, what it knows of it, and which engines use it, as ckvctl
// status does.

#pragma once

#include <string>
#include <vector>

#include "ckv/v1/directory.pb.h"
#include "client/ctl/output.h"

namespace ckv::ctl {

// "in /var/lib/ckv/directory: 12 corpora read at its start, 3 min 00 s ago". Also tells what is not
// as it should be, as holders that are not back and a log that refuses changes.
std::string HomeText(const v1::DescribeDirectoryReply& home);
// All of the reply.
Json HomeJson(const v1::DescribeDirectoryReply& home);

// The engines that use the fleet, one a row; empty if there is none. They are no members, because
// they hold nothing: one that ends is no finding.
std::string EnginesText(const std::vector<v1::EngineFacts>& engines);
Json EnginesJson(const std::vector<v1::EngineFacts>& engines);

}  // namespace ckv::ctl
