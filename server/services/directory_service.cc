// One handler for each call of DirectoryService (directory_copies.cc has those of copies), on
// gRPC's threads. Each validates and converts the request, calls DirectoryState, and converts the
// result. DirectoryState has the locks, and waits until a change is durable. Watch is the only
// handler that stays: it returns events until the peer cancels, for which it looks every second, or
// the server drains, which ends the wait.

#include "server/services/directory_service.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "client/grpc/health_convert.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/utf8.h"
#include "server/directory/local_directory.h"

namespace ckv {
namespace {

// How long a watch may not notice that its peer has gone. Each look wakes three threads, and a
// fleet has a watch per member.
constexpr Duration kWatchSlice = std::chrono::seconds(1);
// The most missing holders, and unproven corpora, in one answer.
constexpr size_t kDescribedMax = 64;
constexpr size_t kReportersMax = 8;
// The path of the directory's folder, and an error that contains it.
constexpr size_t kDescribedTextBytesMax = 4096;
// The most corpora in one page of those on a holder: at most 600 bytes each.
constexpr size_t kPlacedCorporaPerCallMax = 4096;

uint64_t WholeMilliseconds(Duration duration) {
  return static_cast<uint64_t>(std::max(duration, Duration(0)) / std::chrono::milliseconds(1));
}

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
  summary.set_expires_at_ms(corpus.policy.expires_at_ms);
  return summary;
}

void DescribeUnproven(const UnprovenCorpus& unproven, v1::UnprovenCorpus& message) {
  message.set_name(unproven.name);
  message.set_tenant(unproven.tenant);
  message.set_version(unproven.version);
  message.set_chunk_count(unproven.chunk_count);
  message.set_missing_count(unproven.missing_count);
  message.set_conflict(unproven.conflict);
  message.set_version_count(unproven.version_count);
  message.set_why(Utf8Text(unproven.why, kDescribedTextBytesMax));
  for (size_t i = 0; i < std::min(unproven.reporters.size(), kReportersMax); ++i)
    message.add_reporters(unproven.reporters[i].name);
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

absl::Status DirectoryServiceImpl::CatchUp(const grpc::ServerContext& context) const {
  if (!catch_up_) return absl::OkStatus();
  return catch_up_(DeadlineOf(context, clock_, kControlTimeoutMax));
}

grpc::Status DirectoryServiceImpl::Register(grpc::ServerContext* context,
                                            const v1::RegisterRequest* request,
                                            v1::RegisterReply* reply) {
  auto member = FromProto(request->member());
  if (!member.ok()) return ToGrpc(member.status());
  member->epoch = {request->last_epoch()};
  const auto grant = state_.Register(*member, std::chrono::milliseconds(request->lease_ttl_ms()),
                                     DeadlineOf(*context, clock_, kControlTimeoutMax),
                                     request->reports_parts(), request->continues());
  if (const auto left = LeaseEndOf(grant.status())) {
    context->AddTrailingMetadata(kLeaseEndKey, std::to_string(ToMilliseconds(*left)));
  }
  if (!grant.ok()) return ToGrpc(grant.status());
  reply->set_lease_id(grant->lease_id);
  reply->set_epoch(grant->epoch.value);
  reply->set_lease_ttl_ms(ToMilliseconds(grant->ttl));
  reply->set_directory_incarnation(grant->directory_incarnation);
  reply->set_folder_id(grant->folder_id);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::KeepAlive(grpc::ServerContext* context,
                                             const v1::KeepAliveRequest* request,
                                             v1::KeepAliveReply* reply) {
  std::optional<MemberHealth> health;
  if (request->has_health()) health = FromProto(request->health());
  const auto renewal = state_.KeepAlive(request->lease_id(), health ? &*health : nullptr);
  if (const auto incarnation = DirectoryIncarnationOf(renewal.status()))
    context->AddTrailingMetadata(kDirectoryIncarnationKey, std::to_string(*incarnation));
  if (!renewal.ok()) return ToGrpc(renewal.status());
  reply->set_lease_ttl_ms(ToMilliseconds(renewal->ttl));
  reply->set_placed_change_count(renewal->placed_change_count);
  reply->set_copy_order_count(renewal->copy_order_count);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::Deregister(grpc::ServerContext* /*context*/,
                                              const v1::DeregisterRequest* request,
                                              v1::DeregisterReply* /*reply*/) {
  return ToGrpc(state_.Deregister(request->lease_id()));
}

grpc::Status DirectoryServiceImpl::ListMembers(grpc::ServerContext* context,
                                               const v1::ListMembersRequest* request,
                                               v1::ListMembersReply* reply) {
  if (auto status = CatchUp(*context); !status.ok()) return ToGrpc(status);
  if (!request->as_known()) {
    if (const absl::Status status = state_.CheckReturned(); !status.ok()) return ToGrpc(status);
  }
  for (const Member& member : state_.Members()) *reply->add_members() = ToProto(member);
  for (const EndedLease& ended : state_.Ended()) {
    v1::EndedLease* message = reply->add_ended();
    *message->mutable_member() = ToProto(ended.member);
    message->set_ago_ms(WholeMilliseconds(clock_.Now() - ended.ended));
    message->set_ran_out(ended.ran_out);
  }
  // The rest is for display. A requester lists members whenever it meets an unknown holder.
  if (!request->as_known()) return grpc::Status::OK;
  for (const EngineFacts& engine : engines_.At(clock_.Now()))
    *reply->add_engines() = ToProto(engine);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::Describe(grpc::ServerContext* /*context*/,
                                            const v1::DescribeDirectoryRequest* /*request*/,
                                            v1::DescribeDirectoryReply* reply) {
  if (process_) *reply->mutable_process() = ToProto(process_());
  AddFacts(facts_ ? facts_() : state_.health().Facts(), *reply);
  const std::vector<HolderId> missing = state_.MissingHolders();
  reply->set_missing_holder_count(static_cast<uint32_t>(missing.size()));
  for (size_t i = 0; i < std::min<size_t>(missing.size(), kMemberCountMax); ++i)
    reply->add_missing_holders(missing[i].name);
  const HolderReports::Rebuilt rebuilt = state_.reports().rebuilt(kDescribedMax);
  reply->set_rebuilt_corpus_count(rebuilt.rebuilt_count);
  reply->set_unproven_corpus_count(rebuilt.unproven_count);
  for (const UnprovenCorpus& unproven : rebuilt.unproven)
    DescribeUnproven(unproven, *reply->add_unproven_corpora());
  reply->set_old_copy(rebuilt.old_copy);
  reply->set_redropped_corpus_count(rebuilt.redropped_count);
  if (home_ == nullptr) return grpc::Status::OK;
  const DurableDirectory::Found& found = home_->found();
  reply->set_path(Utf8Text(found.path, kDescribedTextBytesMax));
  reply->set_started_ago_ms(WholeMilliseconds(clock_.Now() - found.started));
  reply->set_read_corpus_count(found.corpus_count);
  reply->set_read_record_count(found.record_count);
  reply->set_read_ms(WholeMilliseconds(found.took));
  reply->set_refusal(Utf8Text(home_->Refusal(), kDescribedTextBytesMax));
  if (const auto leader = state_.changes().leader()) {
    reply->set_is_shared(true);
    reply->set_leads(leader->is_this);
    reply->set_leader(leader->address);
  }
  if (home_->log() == nullptr) return grpc::Status::OK;
  const ChangeLog::Stats stats = home_->log()->stats();
  reply->set_log_bytes(stats.log_bytes);
  reply->set_snapshot_bytes(stats.snapshot_bytes);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::PublishCorpus(grpc::ServerContext* context,
                                                 const v1::PublishCorpusRequest* request,
                                                 v1::PublishCorpusReply* reply) {
  auto corpus = FromProto(request->corpus());
  if (!corpus.ok()) return ToGrpc(corpus.status());
  const std::string tenant = corpus->tenant, name = corpus->name;
  DirectoryState::Orphans orphans;
  const auto version =
      state_.Publish(*std::move(corpus), request->replace(), request->expected_version(), &orphans,
                     DeadlineOf(*context, clock_, kControlTimeoutMax));
  if (!version.ok()) return ToGrpc(version.status());
  published_.Note(tenant, name, *version, clock_.Now());
  reply->set_version(*version);
  for (const ChunkPlacement& orphan : orphans) *reply->add_orphans() = ToProto(orphan);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::GetCorpus(grpc::ServerContext* context,
                                             const v1::GetCorpusRequest* request,
                                             v1::GetCorpusReply* reply) {
  if (auto status = CheckKey(request->name(), request->tenant()); !status.ok()) {
    return ToGrpc(status);
  }
  if (auto status = CatchUp(*context); !status.ok()) return ToGrpc(status);
  const auto corpus = state_.Get(request->name(), request->tenant(), request->for_calls());
  if (!corpus.ok()) return ToGrpc(corpus.status());
  *reply->mutable_corpus() = ToProto(**corpus);
  if (request->for_calls()) {
    for (v1::ChunkPlacement& chunk : *reply->mutable_corpus()->mutable_chunks())
      ClearLineage(chunk);
  }
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::ListCorpora(grpc::ServerContext* context,
                                               const v1::ListCorporaRequest* request,
                                               v1::ListCorporaReply* reply) {
  if (auto status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  if (auto status = CatchUp(*context); !status.ok()) return ToGrpc(status);
  for (const auto& corpus : state_.List(request->tenant())) {
    v1::CorpusSummary& summary = *reply->add_corpora();
    summary = Summarise(*corpus);
    const auto published = published_.Of(corpus->tenant, corpus->name, corpus->version);
    if (published) summary.set_published_ago_ms(WholeMilliseconds(clock_.Now() - *published));
  }
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::DropCorpus(grpc::ServerContext* context,
                                              const v1::DropCorpusRequest* request,
                                              v1::DropCorpusReply* reply) {
  if (auto status = CheckKey(request->name(), request->tenant()); !status.ok()) {
    return ToGrpc(status);
  }
  DirectoryState::Orphans orphans;
  const auto corpus = state_.Drop(request->name(), request->tenant(), &orphans,
                                  DeadlineOf(*context, clock_, kControlTimeoutMax));
  if (!corpus.ok()) return ToGrpc(corpus.status());
  published_.Forget(request->tenant(), request->name());
  *reply->mutable_corpus() = ToProto(**corpus);
  for (const ChunkPlacement& orphan : orphans) *reply->add_orphans() = ToProto(orphan);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::LocateChunk(grpc::ServerContext* context,
                                               const v1::LocateChunkRequest* request,
                                               v1::LocateChunkReply* reply) {
  const auto id = ChunkId::FromBytes(request->id());
  if (!id.ok()) return ToGrpc(id.status());
  if (auto status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  if (auto status = CatchUp(*context); !status.ok()) return ToGrpc(status);
  for (const LocatedChunk& place : state_.Locate(*id, request->tenant())) {
    v1::LocateChunkReply::Place* message = reply->add_places();
    message->set_corpus(place.corpus->name);
    message->set_ordinal(place.ordinal);
    *message->mutable_chunk() = ToProto(place.chunk);
  }
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::LocateChunks(grpc::ServerContext* context,
                                                const v1::LocateChunksRequest* request,
                                                v1::LocateChunksReply* reply) {
  const auto ids = IdsFrom(request->ids());
  if (!ids.ok()) return ToGrpc(ids.status());
  if (auto status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  const auto geometry = FromProto(request->geometry());
  if (!geometry.ok()) return ToGrpc(geometry.status());
  if (auto status = CatchUp(*context); !status.ok()) return ToGrpc(status);
  LocalDirectory directory(&state_, request->for_calls());
  const auto placements =
      directory.LocateChunks(*ids, *geometry, request->tenant(), /*deadline=*/kInstantMax);
  if (!placements.ok()) return ToGrpc(placements.status());
  for (const ChunkPlacement& chunk : *placements) {
    *reply->add_chunks() = ToProto(chunk);
    if (request->for_calls()) ClearLineage(*reply->mutable_chunks()->rbegin());
  }
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::GetTenantKey(grpc::ServerContext* context,
                                                const v1::GetTenantKeyRequest* request,
                                                v1::GetTenantKeyReply* reply) {
  if (auto status = CatchUp(*context); !status.ok()) return ToGrpc(status);
  const auto key = state_.TenantKeyOf(request->tenant(), request->make(),
                                      DeadlineOf(*context, clock_, kControlTimeoutMax));
  if (!key.ok()) return ToGrpc(key.status());
  if (!key->IsZero()) reply->set_key(std::string(key->AsBytes()));
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::FindPrompt(grpc::ServerContext* context,
                                              const v1::FindPromptRequest* request,
                                              v1::FindPromptReply* reply) {
  if (auto status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  const std::string& bytes = request->heads();
  if (bytes.size() % sizeof(uint64_t) != 0 || bytes.size() / sizeof(uint64_t) > kHeadsPerCallMax) {
    return ToGrpc(absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes of heads: 8 each, limit %d of them a call", bytes.size(), kHeadsPerCallMax)));
  }
  std::optional<ChunkId> model;
  if (!request->model().empty()) {
    const auto fingerprint = ChunkId::FromBytes(request->model());
    if (!fingerprint.ok()) return ToGrpc(fingerprint.status());
    model = *fingerprint;
  }
  if (auto status = CatchUp(*context); !status.ok()) return ToGrpc(status);
  std::vector<uint64_t> heads(bytes.size() / sizeof(uint64_t));
  if (!heads.empty()) std::memcpy(heads.data(), bytes.data(), bytes.size());
  const PromptChunks found = state_.FindPrompt(heads, model, request->tenant());
  for (const Geometry& geometry : found.models) *reply->add_models() = ToProto(geometry);
  for (const PromptChunk& chunk : found.chunks) *reply->add_chunks() = ToProto(chunk);
  reply->set_truncated(found.truncated);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::CountReferences(grpc::ServerContext* context,
                                                   const v1::CountReferencesRequest* request,
                                                   v1::CountReferencesReply* reply) {
  const auto ids = IdsFrom(request->ids());
  if (!ids.ok()) return ToGrpc(ids.status());
  if (absl::Status status = CheckKey(request->holder(), ""); !status.ok()) return ToGrpc(status);
  if (auto status = CatchUp(*context); !status.ok()) return ToGrpc(status);
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

grpc::Status DirectoryServiceImpl::ListPlacedCorpora(grpc::ServerContext* /*context*/,
                                                     const v1::ListPlacedCorporaRequest* request,
                                                     v1::ListPlacedCorporaReply* reply) {
  if (auto status = CheckKey(request->holder(), ""); !status.ok()) return ToGrpc(status);
  if (auto status = CheckKey(request->after_name(), request->after_tenant()); !status.ok())
    return ToGrpc(status);
  std::optional<CorpusKey> after;
  if (!request->after_name().empty()) {
    after.emplace(request->after_tenant(), request->after_name());
  } else {
    // Read before the corpora are listed: changes made meanwhile count as not seen.
    const HolderReports::News news = state_.reports().NewsSince(FromProto(request->seen()));
    *reply->mutable_seen() = ToProto(news.seen);
    for (const DroppedCorpus& dropped : news.dropped) *reply->add_dropped() = ToProto(dropped);
  }
  const auto corpora =
      state_.reports().ListPlacedCorpora({request->holder()}, after, kPlacedCorporaPerCallMax + 1);
  for (size_t i = 0; i < std::min(corpora.size(), kPlacedCorporaPerCallMax); ++i)
    *reply->add_corpora() = Summarise(*corpora[i]);
  reply->set_more(corpora.size() > kPlacedCorporaPerCallMax);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::ListPlaced(grpc::ServerContext* /*context*/,
                                              const v1::ListPlacedRequest* request,
                                              v1::ListPlacedReply* reply) {
  if (auto status = CheckKey(request->holder(), ""); !status.ok()) return ToGrpc(status);
  if (auto status = CheckKey(request->name(), request->tenant()); !status.ok())
    return ToGrpc(status);
  uint32_t next = 0;
  const auto part = state_.reports().PartOf({request->holder()}, request->tenant(), request->name(),
                                            request->first_ordinal(), kPartChunksPerCallMax, &next);
  if (!part.ok()) return ToGrpc(part.status());
  *reply->mutable_part() = ToProto(*part);
  reply->set_more(next != 0);
  reply->set_next_ordinal(next);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::ReportPart(grpc::ServerContext* /*context*/,
                                              const v1::ReportPartRequest* request,
                                              v1::ReportPartReply* reply) {
  if (!request->has_part()) return ToGrpc(state_.reports().FinishReport(request->lease_id()));
  const auto part = FromProto(request->part());
  if (!part.ok()) return ToGrpc(part.status());
  const auto superseded = state_.reports().ReportPart(request->lease_id(), *part);
  if (!superseded.ok()) return ToGrpc(superseded.status());
  reply->set_superseded(*superseded);
  return grpc::Status::OK;
}

grpc::Status DirectoryServiceImpl::ReportDropped(grpc::ServerContext* context,
                                                 const v1::ReportDroppedRequest* request,
                                                 v1::ReportDroppedReply* reply) {
  if (request->dropped_size() > static_cast<int>(kDroppedCountMax)) {
    return ToGrpc(absl::InvalidArgumentError(absl::StrFormat(
        "%d dropped corpora, limit %d a call", request->dropped_size(), kDroppedCountMax)));
  }
  std::vector<DroppedCorpus> drops;
  for (const v1::DroppedCorpus& message : request->dropped()) {
    auto dropped = FromProto(message);
    if (!dropped.ok()) return ToGrpc(dropped.status());
    drops.push_back(*std::move(dropped));
  }
  const SeenDirectory seen = FromProto(request->seen());
  const auto wanted = state_.reports().NoteSeen(request->lease_id(), seen);
  if (!wanted.ok()) return ToGrpc(wanted.status());
  reply->set_wanted(*wanted);
  if (drops.empty()) return grpc::Status::OK;
  return ToGrpc(state_.reports().ReportDropped(request->lease_id(), seen, drops,
                                               DeadlineOf(*context, clock_, kControlTimeoutMax)));
}

grpc::Status DirectoryServiceImpl::ReportLacking(grpc::ServerContext* /*context*/,
                                                 const v1::ReportLackingRequest* request,
                                                 v1::ReportLackingReply* /*reply*/) {
  const auto ids = IdsFrom(request->ids());
  if (!ids.ok()) return ToGrpc(ids.status());
  return ToGrpc(
      state_.reports().ReportLacking(request->lease_id(), *ids, request->first(), request->last()));
}

grpc::Status DirectoryServiceImpl::Watch(grpc::ServerContext* context,
                                         const v1::WatchRequest* request,
                                         grpc::ServerWriter<v1::WatchEvent>* writer) {
  if (auto status = CheckKey("", request->tenant()); !status.ok()) return ToGrpc(status);
  const auto stream = gate_.Enter(EndCall(context));
  if (!stream.ok()) return ToGrpc(stream.status());
  const auto watcher = state_.Watch(request->tenant(), request->all_tenants());
  if (!watcher.ok()) return ToGrpc(watcher.status());
  std::optional<EngineList::Entry> listed;
  if (request->has_engine()) listed.emplace(&engines_, FromProto(request->engine()), clock_.Now());
  while (!context->IsCancelled()) {
    if (gate_.closed()) return ToGrpc(ServiceGate::ClosedError());
    const auto event = (*watcher)->Next(clock_.Now() + kWatchSlice);
    if (!event.ok()) return ToGrpc(event.status());
    if (event->has_value() && !writer->Write(EventToProto(**event))) break;
  }
  return grpc::Status::CANCELLED;
}

}  // namespace ckv
