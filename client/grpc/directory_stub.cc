// One method for each call that a requester makes to the directory. Each makes the call on the
// caller's thread and validates the reply.

#include "client/grpc/directory_stub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {

DirectoryStub::DirectoryStub(std::string_view addresses, Clock* clock, bool for_calls)
    : for_calls_(for_calls), directory_(addresses, clock, {.convert = FromPeer}) {}

absl::StatusOr<Corpus> DirectoryStub::GetCorpus(std::string_view name, std::string_view tenant,
                                                Instant deadline) {
  v1::GetCorpusRequest request;
  request.set_name(std::string(name));
  request.set_tenant(std::string(tenant));
  request.set_for_calls(for_calls_);
  v1::GetCorpusReply reply;
  CKV_RETURN_IF_ERROR(directory_.Call(&Stub::GetCorpus, "GetCorpus", request, &reply, deadline));
  auto corpus = FromProto(reply.corpus());
  if (!corpus.ok()) return Annotate(corpus.status(), Context("GetCorpus"));
  return corpus;
}

absl::StatusOr<std::vector<Member>> DirectoryStub::ListMembers(Instant deadline) {
  v1::ListMembersRequest request;
  request.set_as_known(true);  // a holder that is not back yet is queried where it was
  v1::ListMembersReply reply;
  CKV_RETURN_IF_ERROR(
      directory_.Call(&Stub::ListMembers, "ListMembers", request, &reply, deadline));
  if (reply.members_size() > static_cast<int>(kMemberCountMax)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d members, limit %d", Context("ListMembers"), reply.members_size(), kMemberCountMax));
  }
  std::vector<Member> members;
  for (const v1::Member& message : reply.members()) {
    auto member = FromProto(message);
    if (!member.ok()) return Annotate(member.status(), Context("ListMembers"));
    members.push_back(*std::move(member));
  }
  return members;
}

absl::StatusOr<std::vector<Corpus>> DirectoryStub::LocateChunk(const ChunkId& id,
                                                               std::string_view tenant,
                                                               Instant deadline) {
  v1::LocateChunkRequest request;
  request.set_id(std::string(id.AsBytes()));
  request.set_tenant(std::string(tenant));
  v1::LocateChunkReply reply;
  CKV_RETURN_IF_ERROR(
      directory_.Call(&Stub::LocateChunk, "LocateChunk", request, &reply, deadline));
  std::vector<Corpus> corpora;
  for (const v1::LocateChunkReply::Place& place : reply.places()) {
    auto chunk = FromProto(place.chunk());
    if (!chunk.ok()) return Annotate(chunk.status(), Context("LocateChunk"));
    auto geometry = GeometryOf(place, id, tenant, deadline);
    if (absl::IsNotFound(geometry.status())) continue;  // dropped since it was located
    if (!geometry.ok()) return geometry.status();
    corpora.push_back({.name = place.corpus(),
                       .tenant = std::string(tenant),
                       .geometry = *std::move(geometry),
                       .chunks = {*std::move(chunk)},
                       .version = 0});
  }
  if (corpora.empty()) {
    return absl::NotFoundError(absl::StrFormat("no corpus has chunk %s", id.ToHex()));
  }
  return corpora;
}

absl::StatusOr<std::vector<ChunkPlacement>> DirectoryStub::LocateChunks(
    std::span<const ChunkId> ids, const Geometry& geometry, std::string_view tenant,
    Instant deadline) {
  std::vector<ChunkPlacement> placements;
  placements.reserve(ids.size());
  v1::LocateChunksRequest request;
  *request.mutable_geometry() = ToProto(geometry);
  request.set_tenant(std::string(tenant));
  request.set_for_calls(for_calls_);
  while (!ids.empty()) {
    const std::span<const ChunkId> some = ids.first(std::min(ids.size(), kIdsPerCallMax));
    ids = ids.subspan(some.size());
    request.clear_ids();
    for (const ChunkId& id : some) request.add_ids(std::string(id.AsBytes()));
    v1::LocateChunksReply reply;
    CKV_RETURN_IF_ERROR(
        directory_.Call(&Stub::LocateChunks, "LocateChunks", request, &reply, deadline));
    if (reply.chunks_size() != static_cast<int>(some.size())) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: %d chunks, asked for %d",
                                                        Context("LocateChunks"),
                                                        reply.chunks_size(), some.size()));
    }
    for (const v1::ChunkPlacement& message : reply.chunks()) {
      auto chunk = FromProto(message);
      if (!chunk.ok()) return Annotate(chunk.status(), Context("LocateChunks"));
      placements.push_back(*std::move(chunk));
    }
  }
  return placements;
}

absl::StatusOr<TenantKey> ReadTenantKey(DirectoryCaller& directory, std::string_view tenant,
                                        bool make, Instant deadline, CallEnd* end) {
  if (tenant.empty()) return TenantKey();
  v1::GetTenantKeyRequest request;
  request.set_tenant(std::string(tenant));
  request.set_make(make);
  v1::GetTenantKeyReply reply;
  CKV_RETURN_IF_ERROR(directory.Call(&DirectoryCaller::Stub::GetTenantKey, "GetTenantKey", request,
                                     &reply, deadline, end));
  if (reply.key().empty()) return TenantKey();
  return TenantKey::FromBytes(reply.key());
}

absl::StatusOr<TenantKey> DirectoryStub::TenantKeyOf(std::string_view tenant, Instant deadline) {
  return ReadTenantKey(directory_, tenant, /*make=*/false, deadline);
}

absl::StatusOr<PromptChunks> DirectoryStub::FindPrompt(std::span<const uint64_t> heads,
                                                       const std::optional<ChunkId>& model,
                                                       std::string_view tenant, Instant deadline) {
  PromptChunks found;
  while (!heads.empty()) {
    const auto some = heads.first(std::min(heads.size(), kHeadsPerCallMax));
    heads = heads.subspan(some.size());
    v1::FindPromptRequest request;
    request.set_tenant(std::string(tenant));
    request.set_heads(some.data(), some.size_bytes());
    if (model) request.set_model(std::string(model->AsBytes()));
    v1::FindPromptReply reply;
    CKV_RETURN_IF_ERROR(
        directory_.Call(&Stub::FindPrompt, "FindPrompt", request, &reply, deadline));
    if (reply.models_size() > static_cast<int>(kPromptModelCountMax) ||
        reply.chunks_size() > static_cast<int>(kPromptChunkCountMax)) {
      return absl::InvalidArgumentError(Context("FindPrompt") + ": more chunks than it may send");
    }
    for (const v1::Geometry& message : reply.models()) {
      CKV_ASSIGN_OR_RETURN(const Geometry geometry, FromProto(message));
      if (std::find(found.models.begin(), found.models.end(), geometry) == found.models.end())
        found.models.push_back(geometry);
    }
    for (const v1::ChunkPlacement& message : reply.chunks()) {
      CKV_ASSIGN_OR_RETURN(const ChunkPlacement chunk, FromProto(message));
      found.chunks.push_back(
          {chunk.id, chunk.parent(), chunk.token_count, chunk.position, chunk.token_hash()});
    }
    found.truncated |= reply.truncated();
  }
  return found;
}

absl::StatusOr<Geometry> DirectoryStub::GeometryOf(const v1::LocateChunkReply::Place& place,
                                                   const ChunkId& id, std::string_view tenant,
                                                   Instant deadline) {
  const auto has_chunk = [&](const Corpus& corpus) {
    return corpus.name == place.corpus() && place.ordinal() < corpus.chunks.size() &&
           corpus.chunks[place.ordinal()].id == id;
  };
  {
    absl::MutexLock lock(&mu_);
    for (const auto& corpus : remembered_) {
      if (has_chunk(*corpus)) return corpus->geometry;
    }
  }
  CKV_ASSIGN_OR_RETURN(Corpus fresh, GetCorpus(place.corpus(), tenant, deadline));
  auto corpus = std::make_shared<const Corpus>(std::move(fresh));
  absl::MutexLock lock(&mu_);
  remembered_.push_front(corpus);
  if (remembered_.size() > kRememberedCorpusCountMax) remembered_.pop_back();
  if (!has_chunk(*corpus)) return absl::NotFoundError("replaced since it was located");
  return corpus->geometry;
}

std::string DirectoryStub::Context(std::string_view call) const {
  return absl::StrFormat("directory %s: %s", directory_.addresses(), call);
}

}  // namespace ckv
