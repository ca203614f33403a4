#include "server/rpc/request_corpora.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "server/rpc/attend_request.h"

namespace ckv {

absl::StatusOr<std::shared_ptr<const Corpus>> RequestCorpora::Resolve(const std::string& name,
                                                                      const std::string& tenant,
                                                                      uint64_t version,
                                                                      Instant deadline) {
  if (name.empty()) return absl::InvalidArgumentError("corpus: name one");
  CKV_ASSIGN_OR_RETURN(auto corpus, requester_.Resolve(name, tenant, deadline));
  if (version == 0 || corpus->version == version) return corpus;
  // The corpus kept here may be older or newer than what the caller resolved. Queries the
  // directory.
  requester_.Invalidate(name);
  CKV_ASSIGN_OR_RETURN(corpus, requester_.Resolve(name, tenant, deadline));
  if (corpus->version == version) return corpus;
  return absl::FailedPreconditionError(absl::StrFormat(
      "corpus '%s' is at version %d, the request is for version %d: resolve it again", name,
      corpus->version, version));
}

absl::StatusOr<std::shared_ptr<const Corpus>> RequestCorpora::CorpusOf(
    const v1::AttendRequest& request, Instant deadline) {
  if (!request.corpus().empty()) {
    CKV_ASSIGN_OR_RETURN(auto corpus, Resolve(request.corpus(), request.tenant(),
                                              request.corpus_version(), deadline));
    if (!request.has_geometry()) return corpus;
    CKV_ASSIGN_OR_RETURN(const Geometry geometry, FromProto(request.geometry()));
    if (geometry == corpus->geometry) return corpus;
    return absl::FailedPreconditionError(
        absl::StrFormat("corpus '%s' has another geometry: %s", corpus->name,
                        DescribeDifference(geometry, corpus->geometry)));
  }
  if (!request.has_geometry() || request.chunks().empty()) {
    return absl::InvalidArgumentError("attend: name a corpus, or a geometry and chunks");
  }
  CKV_ASSIGN_OR_RETURN(const Geometry geometry, FromProto(request.geometry()));
  std::vector<ChunkId> ids;
  ids.reserve(request.chunks_size());
  for (const v1::ChunkRef& chunk : request.chunks()) {
    CKV_ASSIGN_OR_RETURN(const ChunkId id, ChunkId::FromBytes(chunk.id()));
    ids.push_back(id);
  }
  return requester_.ResolveChunks(ids, geometry, request.tenant(), deadline);
}

absl::StatusOr<RequestChunks> RequestCorpora::ChunksOf(const v1::AttendRequest& request,
                                                       Instant deadline) {
  for (bool again = false;; again = true) {
    CKV_ASSIGN_OR_RETURN(auto corpus, CorpusOf(request, deadline));
    auto uses = UsesOf(request, corpus, ordinals_);
    if (uses.ok()) return RequestChunks{std::move(corpus), *std::move(uses)};
    if (again || request.corpus().empty() || !absl::IsNotFound(uses.status())) return uses.status();
    // The chunk may be of a version published since. Queries the directory before denying the
    // chunk.
    requester_.Invalidate(request.corpus());
  }
}

}  // namespace ckv
