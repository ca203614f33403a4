#include "server/services/replica_ids.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/ids.h"

namespace ckv {

absl::StatusOr<ReplicaCall> ReplicaCallOfIds(const v1::ReplicateRequest& request,
                                             Requester& requester, Instant deadline) {
  if (!request.corpus().empty() || request.chunks_size() > 0)
    return absl::InvalidArgumentError(
        "ids: together with a corpus or its chunks; set one of the two");
  if (request.ids_size() > static_cast<int>(kIdsPerCallMax)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ids: %d of them, limit %d", request.ids_size(), kIdsPerCallMax));
  }
  std::vector<ChunkId> ids;
  for (const std::string& bytes : request.ids()) {
    CKV_ASSIGN_OR_RETURN(const ChunkId id, ChunkId::FromBytes(bytes));
    ids.push_back(id);
  }
  CKV_RETURN_IF_ERROR(ValidateName("tenant", request.tenant()));
  CKV_ASSIGN_OR_RETURN(const Geometry geometry, FromProto(request.geometry()));
  CKV_ASSIGN_OR_RETURN(auto corpus,
                       requester.ResolveChunks(ids, geometry, request.tenant(), deadline));
  CKV_ASSIGN_OR_RETURN(std::vector<uint32_t> chunks, ChunksOrAll(*corpus, {}));
  return ReplicaCall{std::move(corpus), std::move(chunks), deadline};
}

}  // namespace ckv
