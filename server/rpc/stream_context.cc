#include "server/rpc/stream_context.h"

#include <algorithm>

namespace ckv {
namespace {

bool SameRef(const v1::ChunkRef& a, const v1::ChunkRef& b) {
  return a.id() == b.id() && a.offset() == b.offset();
}

size_t CountOf(const RequestChunks& chunks) {
  return chunks.uses.empty() ? chunks.corpus->chunks.size() : chunks.uses.size();
}
ChunkUse UseOf(const RequestChunks& chunks, uint32_t i) {
  return chunks.uses.empty() ? ChunkUse{i, 0} : chunks.uses[i];
}

}  // namespace

bool NamesChunks(const v1::AttendRequest& request) {
  return !request.corpus().empty() || request.has_geometry() || !request.chunks().empty();
}

absl::Status CheckUnnamed(const v1::AttendRequest& request, const v1::AttendRequest& naming) {
  const bool range = request.chunk_begin() != 0 || request.chunk_end() != 0;
  if ((!range || (request.chunk_begin() == naming.chunk_begin() &&
                  request.chunk_end() == naming.chunk_end())) &&
      (request.tenant().empty() || request.tenant() == naming.tenant()) &&
      (request.corpus_version() == 0 || request.corpus_version() == naming.corpus_version())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "attend: a tenant, range or version other than the stream's: name the corpus, too");
}

bool NamesSameChunks(const v1::AttendRequest& a, const v1::AttendRequest& b) {
  return a.corpus() == b.corpus() && a.tenant() == b.tenant() &&
         a.corpus_version() == b.corpus_version() && a.chunk_begin() == b.chunk_begin() &&
         a.chunk_end() == b.chunk_end() && a.has_geometry() == b.has_geometry() &&
         a.geometry().SerializeAsString() == b.geometry().SerializeAsString() &&
         std::equal(a.chunks().begin(), a.chunks().end(), b.chunks().begin(), b.chunks().end(),
                    SameRef);
}

v1::AttendRequest NamingOf(const v1::AttendRequest& request) {
  v1::AttendRequest naming;
  naming.set_corpus(request.corpus());
  naming.set_tenant(request.tenant());
  naming.set_corpus_version(request.corpus_version());
  if (request.has_geometry()) *naming.mutable_geometry() = request.geometry();
  *naming.mutable_chunks() = request.chunks();
  naming.set_chunk_begin(request.chunk_begin());
  naming.set_chunk_end(request.chunk_end());
  naming.set_policy(request.policy());
  naming.set_expect_steps(request.expect_steps());
  return naming;
}

absl::StatusOr<ContextPolicy> PolicyOf(const v1::AttendRequest& request) {
  switch (request.policy()) {
    case v1::CONTEXT_POLICY_UNSPECIFIED:
    case v1::CONTEXT_POLICY_AUTO:
      return ContextPolicy::kAuto;
    case v1::CONTEXT_POLICY_ROUTE:
      return ContextPolicy::kRoute;
    case v1::CONTEXT_POLICY_CACHE:
      return ContextPolicy::kCache;
    default:
      return absl::InvalidArgumentError("policy: unknown");
  }
}

bool SameChunks(const RequestChunks& a, const RequestChunks& b) {
  const size_t count = CountOf(a);
  if (CountOf(b) != count) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const ChunkUse x = UseOf(a, i), y = UseOf(b, i);
    if (x.offset != y.offset || a.corpus->chunks[x.ordinal].id != b.corpus->chunks[y.ordinal].id)
      return false;
  }
  return true;
}

}  // namespace ckv
