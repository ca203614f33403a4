// Chunks that a call to the keeper of replicas names by their ids.

#pragma once

#include "absl/status/statusor.h"
#include "ckv/v1/requester.pb.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "server/upkeep/replica_keeper.h"

namespace ckv {

// Resolves the ids of a request, for its tenant.
//   InvalidArgument     a corpus or ordinals beside ids, too many ids or one twice, no geometry, a
//                       tenant that is no name.
//   else                as Requester::ResolveChunks.
absl::StatusOr<ReplicaCall> ReplicaCallOfIds(const v1::ReplicateRequest& request,
                                             Requester& requester, Instant deadline);

}  // namespace ckv
