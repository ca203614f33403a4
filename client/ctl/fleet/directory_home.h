// Tells where a directory keeps its state, and what it knows of it, as ckvctl status does.

#pragma once

#include <string>

#include "ckv/v1/directory.pb.h"
#include "client/ctl/output.h"

namespace ckv::ctl {

// "in /var/lib/ckv/directory: 12 corpora read at its start, 3 min 00 s ago". Also tells what is not
// as it should be, as holders that are not back and a log that refuses changes.
std::string HomeText(const v1::DescribeDirectoryReply& home);
// All of the reply.
Json HomeJson(const v1::DescribeDirectoryReply& home);

}  // namespace ckv::ctl
