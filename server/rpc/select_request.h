// Validates SelectRowsRequest before any memory is sized by its fields.

#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ckv/v1/requester.pb.h"
#include "client/calls.h"
#include "proto/geometry.h"

namespace ckv {

// Returns the fields by which a request names its chunks, as a request that RequestCorpora takes.
v1::AttendRequest ChunkNamesOf(const v1::SelectRowsRequest& request);

// Memory that a call needs in addition to the request.
struct SelectMemory {
  std::vector<float> weights;
  std::vector<float> own_scores;
};
// Returns the call of a request, without its context, trace and deadline. Borrowed from the request
// and `memory`, which it fills.
//   InvalidArgument     the queries, weights or scores do not have the size of the tokens, or there
//                       are too many tokens or rows for the reply.
//   FailedPrecondition  the geometry has no index.
absl::StatusOr<SelectRowsCall> SelectCallOf(const v1::SelectRowsRequest& request,
                                            const Geometry& geometry, SelectMemory& memory);

}  // namespace ckv
