// A directory's durable state, and the records that it is written as.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/corpus_part.h"
#include "server/directory/log/change.h"

namespace ckv {

// The durable part of a directory's state, as it is between two changes.
struct DirectoryImage {
  std::vector<std::shared_ptr<const Corpus>> corpora;
  std::vector<VersionGap> gaps;                         // ascending
  std::vector<DroppedCorpus> dropped;                   // tombstones
  std::vector<std::pair<std::string, TenantKey>> keys;  // by tenant
  std::vector<HolderId> draining;                       // drained holders, by name
  uint64_t version = 0;                                 // the highest version or number of a change
  uint64_t epoch_max = 0;                               // no higher epoch was given
};

// Calls `take` with the image as changes: a kSnapshotBegin with this folder_id, gaps, tombstones,
// keys, drained holders and corpora, and a kSnapshotEnd. An error of `take` ends it and is
// returned.
absl::Status ForEachChange(const DirectoryImage& image, uint64_t folder_id,
                           absl::FunctionRef<absl::Status(const DirectoryChange&)> take);

}  // namespace ckv
