// The chunks that a request to push or to verify names.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ckv/v1/types.pb.h"
#include "proto/geometry.h"
#include "proto/ids.h"

namespace ckv {

// The ids that one request to push or to verify may name: 128 KiB of them.
inline constexpr int kOrderIdCountMax = 4096;

// The chunks that an operator's request names, checked.
struct ChunkOrder {
  std::vector<ChunkId> ids;
  Geometry geometry;
  std::string tenant;  // the tenant that may read them
};

// Reads them from a request. `what` begins the error messages.
//   InvalidArgument   too many ids, an id of another length, a bad geometry, or a tenant's name
//                     over kCorpusNameBytesMax
absl::StatusOr<ChunkOrder> ChunkOrderFrom(
    std::string_view what, const google::protobuf::RepeatedPtrField<std::string>& ids,
    const v1::Geometry& geometry, const std::string& tenant);

}  // namespace ckv
