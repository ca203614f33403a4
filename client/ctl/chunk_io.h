// Putting chunks on holders, and taking away those that no corpus names any more.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/fleet.h"
#include "client/ctl/load_source.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// What a put or a drop did on one holder.
struct HolderTally {
  uint32_t chunks_new = 0;
  uint32_t chunks_reused = 0;
  uint32_t chunks_dropped = 0;
  uint64_t bytes_sent = 0;
  // Of them, rows of reused chunks: a put streams until the holder says that it has the chunk.
  uint64_t bytes_sent_reused = 0;
};

// Puts every chunk on its holders, one thread a holder. `on_bytes` is told of rows sent or found
// there already; it is called from those threads.
//   the first error of any holder, with how many chunks are put.
absl::StatusOr<std::map<std::string, HolderTally>> PutChunks(
    const LoadSource& source, const std::vector<std::vector<HolderId>>& placement,
    std::span<const Member> holders, const std::string& tenant, Clock& clock,
    const std::function<void(uint64_t bytes)>& on_bytes);

//   AlreadyExists       there is one, and not `replace`; else the directory's error.
absl::StatusOr<v1::PublishCorpusReply> PublishCorpus(Fleet& fleet, const Corpus& corpus,
                                                     bool replace);
// Of the fleet's tenant, with the chunks that no other corpus uses; `warnings` as in DropOrphans.
//   the directory's error.
absl::StatusOr<std::map<std::string, HolderTally>> DropCorpus(Fleet& fleet, const std::string& name,
                                                              std::vector<std::string>& warnings);

// Drops the copies that a dropped or replaced corpus left behind, as the directory told them: only
// it knows what other tenants' corpora share. `warnings` gets a line for every holder that could
// not be asked: its chunks stay until it restarts.
//   the directory's error.
absl::StatusOr<std::map<std::string, HolderTally>> DropOrphans(
    Fleet& fleet, const google::protobuf::RepeatedPtrField<v1::ChunkPlacement>& orphans,
    std::vector<std::string>& warnings);

}  // namespace ckv::ctl
