#include "server/services/directory_service.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "server/directory/local_directory.h"

namespace ckv {
namespace {

// How long a watch may not notice that its peer has gone or that the server drains.
constexpr Duration kWatchSlice = std::chrono::milliseconds(200);

uint32_t ToMilliseconds(Duration duration) {
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

absl::Status CheckKey(const std::string& name, const std::string& tenant) {
  if (name.size() <= kCorpusNameBytesMax && tenant.size() <= kCorpusNameBytesMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("a corpus or tenant has at most %d characters", kCorpusNameBytesMax));
}

absl::StatusOr<std::vector<ChunkId>> IdsFrom(
    const google::protobuf::RepeatedPtrField<std::string>& messages) {
  const auto count = static_cast<size_t>(messages.size());
  if (count > DirectoryState::kReplicaIdCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("%d chunk ids, limit %d a call", count,
                                                      DirectoryState::kReplicaIdCountMax));
  }
  std::vector<ChunkId> ids;
  ids.reserve(count);
  for (const std::string& bytes : messages) {
    CKV_ASSIGN_OR_RETURN(const ChunkId id, ChunkId::FromBytes(bytes));
    ids.push_back(id);
  }
  return ids;
}

v1::CorpusSummary Summarise(const Corpus& corpus) {
  v1::CorpusSummary summary;
  summary.set_name(corpus.name);
  summary.set_tenant(corpus.tenant);
  summary.set_version(corpus.version);
  summary.set_chunk_count(static_cast<uint32_t>(corpus.chunks.size()));
  summary.set_token_count(corpus.token_count());
  summary.set_model(corpus.geometry.model);
  return summary;
}

v1::WatchEvent EventToProto(const DirectoryEvent& event) {
  v1::WatchEvent message;
  switch (event.kind) {
    case DirectoryEvent::Kind::kMemberUp:
      *message.mutable_member_up() = ToProto(event.member);
      break;
    case DirectoryEvent::Kind::kMemberGone:
      *message.mutable_member_gone() = ToProto(event.member);
      break;
    case DirectoryEvent::Kind::kCorpusPublished:
      *message.mutable_corpus_published() = Summarise(*event.corpus);
      break;
    case DirectoryEvent::Kind::kCorpusDropped:
      *message.mutable_corpus_dropped() = Summarise(*event.corpus);
      break;
    case DirectoryEvent::Kind::kReplicasChanged:
      *message.mutable_replicas_changed() = Summarise(*event.corpus);
      break;
    case DirectoryEvent::Kind::kSynced:
      message.set_synced(true);
      break;
  }
  return message;
}

}  // namespace

grpc::Status DirectoryServiceImpl::Register(grpc::ServerContext* context,
                                            const v1::RegisterRequest* request,
                                            v1::RegisterReply* reply) {
  const auto member = FromProto(request->member());
  if (!member.ok()) return ToGrpc(member.status());
  const auto grant = state_.Register(*member, std::chrono::milliseconds(request->lease_ttl_ms()));
  if (const auto left = LeaseEndOf(grant.status())) {
    context->AddTrailingMetadata(kLeaseEndKey, std::to_string(ToMilliseconds(*left)));
  }
  if (!grant.ok()) return ToGrpc(grant.status());
  reply->set_lease_id(grant->lease_id);
  reply->set_epoch(grant->epoch.value);
  reply->set_lease_ttl_ms(ToMilliseconds(grant->ttl));
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::KeepAlive(grpc::ServerContext* /*context*/,
                                             const v1::KeepAliveRequest* request,
                                             v1::KeepAliveReply* reply) {
  const auto ttl = state_.KeepAlive(request->lease_id());
  if (!ttl.ok()) return ToGrpc(ttl.status());
  reply->set_lease_ttl_ms(ToMilliseconds(*ttl));
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::Deregister(grpc::ServerContext* /*context*/,
                                              const v1::DeregisterRequest* request,
                                              v1::DeregisterReply* /*reply*/) {
  return ToGrpc(state_.Deregister(request->lease_id()));
}

grpc::Status DirectoryServiceImpl::ListMembers(grpc::ServerContext* /*context*/,
                                               const v1::ListMembersRequest* /*request*/,
                                               v1::ListMembersReply* reply) {
  for (const Member& member : state_.Members()) *reply->add_members() = ToProto(member);
  for (const EndedLease& ended : state_.Ended()) {
    v1::EndedLease* message = reply->add_ended();
    *message->mutable_member() = ToProto(ended.member);
    message->set_ago_ms(static_cast<uint64_t>(std::max(clock_.Now() - ended.ended, Duration(0)) /
                                              std::chrono::milliseconds(1)));
    message->set_ran_out(ended.ran_out);
  }
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::PublishCorpus(grpc::ServerContext* /*context*/,
                                                 const v1::PublishCorpusRequest* request,
                                                 v1::PublishCorpusReply* reply) {
  auto corpus = FromProto(request->corpus());
  if (!corpus.ok()) return ToGrpc(corpus.status());
  DirectoryState::Orphans orphans;
  const auto version =
      state_.Publish(*std::move(corpus), request->replace(), request->expected_version(), &orphans);
  if (!version.ok()) return ToGrpc(version.status());
  reply->set_version(*version);
  for (const ChunkPlacement& orphan : orphans) *reply->add_orphans() = ToProto(orphan);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::GetCorpus(grpc::ServerContext* /*context*/,
                                             const v1::GetCorpusRequest* request,
                                             v1::GetCorpusReply* reply) {
  if (auto status = CheckKey(request->name(), request->tenant()); !status.ok()) {
    return ToGrpc(status);
  }
  const auto corpus = state_.Get(request->name(), request->tenant());
  if (!corpus.ok()) return ToGrpc(corpus.status());
  *reply->mutable_corpus() = ToProto(**corpus);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::ListCorpora(grpc::ServerContext* /*context*/,
                                               const v1::ListCorporaRequest* request,
                                               v1::ListCorporaReply* reply) {
  if (auto status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  for (const auto& corpus : state_.List(request->tenant())) {
    *reply->add_corpora() = Summarise(*corpus);
  }
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::DropCorpus(grpc::ServerContext* /*context*/,
                                              const v1::DropCorpusRequest* request,
                                              v1::DropCorpusReply* reply) {
  if (auto status = CheckKey(request->name(), request->tenant()); !status.ok()) {
    return ToGrpc(status);
  }
  DirectoryState::Orphans orphans;
  const auto corpus = state_.Drop(request->name(), request->tenant(), &orphans);
  if (!corpus.ok()) return ToGrpc(corpus.status());
  *reply->mutable_corpus() = ToProto(**corpus);
  for (const ChunkPlacement& orphan : orphans) *reply->add_orphans() = ToProto(orphan);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::LocateChunk(grpc::ServerContext* /*context*/,
                                               const v1::LocateChunkRequest* request,
                                               v1::LocateChunkReply* reply) {
  const auto id = ChunkId::FromBytes(request->id());
  if (!id.ok()) return ToGrpc(id.status());
  if (auto status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  for (const LocatedChunk& place : state_.Locate(*id, request->tenant())) {
    v1::LocateChunkReply::Place* message = reply->add_places();
    message->set_corpus(place.corpus->name);
    message->set_ordinal(place.ordinal);
    *message->mutable_chunk() = ToProto(place.chunk);
  }
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::LocateChunks(grpc::ServerContext* /*context*/,
                                                const v1::LocateChunksRequest* request,
                                                v1::LocateChunksReply* reply) {
  const auto ids = IdsFrom(request->ids());
  if (!ids.ok()) return ToGrpc(ids.status());
  if (auto status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  const auto geometry = FromProto(request->geometry());
  if (!geometry.ok()) return ToGrpc(geometry.status());
  LocalDirectory directory(&state_);
  const auto placements =
      directory.LocateChunks(*ids, *geometry, request->tenant(), /*deadline=*/kInstantMax);
  if (!placements.ok()) return ToGrpc(placements.status());
  for (const ChunkPlacement& chunk : *placements) *reply->add_chunks() = ToProto(chunk);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::CountReferences(grpc::ServerContext* /*context*/,
                                                   const v1::CountReferencesRequest* request,
                                                   v1::CountReferencesReply* reply) {
  const auto ids = IdsFrom(request->ids());
  if (!ids.ok()) return ToGrpc(ids.status());
  if (absl::Status status = CheckKey(request->holder(), ""); !status.ok()) return ToGrpc(status);
  for (const uint32_t count : state_.CountReferences(*ids, request->holder()))
    reply->add_counts(count);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::AnnounceReplicas(grpc::ServerContext* /*context*/,
                                                    const v1::AnnounceReplicasRequest* request,
                                                    v1::AnnounceReplicasReply* reply) {
  const auto ids = IdsFrom(request->ids());
  if (!ids.ok()) return ToGrpc(ids.status());
  if (absl::Status status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  const auto accepted = state_.AnnounceReplicas(request->lease_id(), request->tenant(), *ids);
  if (!accepted.ok()) return ToGrpc(accepted.status());
  for (const bool one : *accepted) reply->add_accepted(one);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::WithdrawReplicas(grpc::ServerContext* /*context*/,
                                                    const v1::WithdrawReplicasRequest* request,
                                                    v1::WithdrawReplicasReply* /*reply*/) {
  const auto ids = IdsFrom(request->ids());
  if (!ids.ok()) return ToGrpc(ids.status());
  std::optional<std::string_view> tenant;
  if (request->has_tenant()) tenant = request->tenant();
  return ToGrpc(state_.WithdrawReplicas(request->lease_id(), tenant, *ids));
}

grpc::Status DirectoryServiceImpl::Watch(grpc::ServerContext* context,
                                         const v1::WatchRequest* request,
                                         grpc::ServerWriter<v1::WatchEvent>* writer) {
  if (auto status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  const auto stream = gate_.Enter(EndCall(context));
  if (!stream.ok()) return ToGrpc(stream.status());
  const auto watcher = state_.Watch(request->tenant(), request->all_tenants());
  if (!watcher.ok()) return ToGrpc(watcher.status());
  while (!context->IsCancelled()) {
    if (gate_.closed()) return ToGrpc(ServiceGate::ClosedError());
    const auto event = state_.Next(**watcher, clock_.Now() + kWatchSlice);
    if (!event.ok()) return ToGrpc(event.status());
    if (event->has_value() && !writer->Write(EventToProto(**event))) break;
  }
  return grpc::Status::CANCELLED;
}

}  // namespace ckv
