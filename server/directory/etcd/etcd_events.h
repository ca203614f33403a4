// Turns what a watch of etcd sees into the changes of a directory's state.

#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/directory/etcd/etcd_client.h"
#include "server/directory/etcd/etcd_keys.h"
#include "server/directory/etcd/etcd_state.h"
#include "server/directory/log/change.h"

namespace ckv {

// Reads the parts of the corpus's record, as of `revision`, one after the other.
using ReadEtcdParts = absl::FunctionRef<absl::StatusOr<std::string>(
    uint64_t version, uint32_t part_count, int64_t revision)>;

// Calls `mirror` with the changes that the events of whole transactions are, in order, and keeps
// `index` as they leave the keys. A corpus that is removed is a kForget whose removed_version is
// not 0. The end of a member is a kMemberGone without an epoch.
//   OutOfRange          a key was deleted that a directory never deletes so: read the state again.
//   DataLoss            a value is malformed; names the key.
//   Errors of `read_parts`.
absl::Status ApplyEtcdEvents(const EtcdLayout& layout, std::span<const EtcdEvent> events,
                             ReadEtcdParts read_parts,
                             absl::FunctionRef<void(const DirectoryChange&)> mirror,
                             EtcdIndex& index);

}  // namespace ckv
