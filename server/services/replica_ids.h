// Resolves chunk ids in calls to the replica keeper.

#pragma once

#include "absl/status/statusor.h"
#include "ckv/v1/requester.pb.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "server/upkeep/replica_keeper.h"

namespace ckv {

// Returns the call for the chunk ids of a request, resolved for its tenant.
//   InvalidArgument     the request has a corpus or ordinals in addition to ids, more than
//                       kIdsPerCallMax ids, an id twice, no geometry, or an invalid tenant name.
//   else                the errors of Requester::ResolveChunks.
absl::StatusOr<ReplicaCall> ReplicaCallOfIds(const v1::ReplicateRequest& request,
                                             Requester& requester, Instant deadline);

}  // namespace ckv
