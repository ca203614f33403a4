// Drops a corpus, and the copies that a dropped or replaced corpus leaves behind.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/ctl/fleet.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// Number of dropped copies, by holder.
using DropCounts = std::map<std::string, uint32_t>;

// Drops the copies of `orphans`, as reported by the directory: only it knows which chunks other
// tenants' corpora share. A copy that is pinned or still being requested is kept until ckvctl gc.
// Adds a line to `warnings` for every holder that keeps copies or could not be queried.
//   the directory's error.
absl::StatusOr<DropCounts> DropOrphans(
    Fleet& fleet, const google::protobuf::RepeatedPtrField<v1::ChunkPlacement>& orphans,
    std::vector<std::string>& warnings);

// Drops a corpus of the fleet's tenant, and the chunks that no other corpus uses. Adds `warnings`
// like DropOrphans.
//   the directory's error.
absl::StatusOr<DropCounts> DropCorpus(Fleet& fleet, const std::string& name,
                                      std::vector<std::string>& warnings);

}  // namespace ckv::ctl
