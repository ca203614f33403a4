// Dropping a corpus, and the copies that a dropped or replaced one leaves behind.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/fleet.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// Copies dropped, by holder.
using DropCounts = std::map<std::string, uint32_t>;

// Drops the copies of `orphans`, as the directory told them: only it knows what other tenants'
// corpora share. A copy that is pinned or that somebody goes on asking for stays, until ckvctl gc.
// `warnings` gets a line for every holder where copies stay, or that could not be asked.
//   the directory's error.
absl::StatusOr<DropCounts> DropOrphans(
    Fleet& fleet, const google::protobuf::RepeatedPtrField<v1::ChunkPlacement>& orphans,
    std::vector<std::string>& warnings);

// Drops a corpus of the fleet's tenant, with the chunks that no other corpus uses. It fills
// `warnings` as DropOrphans does.
//   the directory's error.
absl::StatusOr<DropCounts> DropCorpus(Fleet& fleet, const std::string& name,
                                      std::vector<std::string>& warnings);

}  // namespace ckv::ctl
