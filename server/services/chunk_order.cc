#include "server/services/chunk_order.h"

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/corpus.h"

namespace ckv {

absl::StatusOr<ChunkOrder> ChunkOrderFrom(
    std::string_view what, const google::protobuf::RepeatedPtrField<std::string>& ids,
    const v1::Geometry& geometry, const std::string& tenant) {
  ChunkOrder order;
  if (ids.size() > kOrderIdCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d ids, limit %d a request", what, ids.size(), kOrderIdCountMax));
  }
  if (tenant.size() > kCorpusNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: the tenant's name has %d bytes, limit %d", what, tenant.size(), kCorpusNameBytesMax));
  }
  CKV_ASSIGN_OR_RETURN(order.geometry, FromProto(geometry));
  order.tenant = tenant;
  for (const std::string& bytes : ids) {
    CKV_ASSIGN_OR_RETURN(const ChunkId id, ChunkId::FromBytes(bytes));
    order.ids.push_back(id);
  }
  return order;
}

}  // namespace ckv
