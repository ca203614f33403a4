// One handler for each call of HolderService, on gRPC's threads. Each validates and converts the
// request, calls the holder, its store or its table, and converts the result. PutChunk is the
// longest: Receive reads the header, begins the chunk, writes rows as they arrive, and finishes it;
// Settle then decides what a chunk that was there already means.

#include "server/services/holder_service.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "attention/mla_partial.h"
#include "attention/target/kernel_choice.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "client/grpc/health_convert.h"
#include "client/grpc/holder_stub.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/extra_keys.h"
#include "proto/host/thread.h"
#include "proto/host/thread_priority.h"
#include "proto/token_id.h"

namespace ckv {
namespace {

constexpr int kFabricOfferCountMax = 8;
constexpr size_t kSessionTextBytesMax = 256;
constexpr uint32_t kListCountDefault = 1000;
constexpr uint32_t kListCountMax = 10'000;
constexpr uint64_t kIdleMsMax = uint64_t{1} << 40;  // 35 years, which fit into a Duration

absl::StatusOr<SessionOffer> OfferFrom(const v1::OpenSessionRequest& request) {
  SessionOffer offer;
  offer.wire_version_min = request.wire_version_min();
  offer.wire_version_max = request.wire_version_max();
  CKV_ASSIGN_OR_RETURN(offer.geometry, FromProto(request.geometry()));
  if (request.tenant().size() > kCorpusNameBytesMax ||
      request.requester().size() > kSessionTextBytesMax ||
      request.host_identity().size() > kSessionTextBytesMax) {
    return absl::InvalidArgumentError("session: a name is too long");
  }
  offer.tenant = request.tenant();
  offer.requester = request.requester();
  offer.host_identity = request.host_identity();
  offer.shape = {request.shape().slot_count(), request.shape().request_bytes_max(),
                 request.shape().reply_bytes_max()};
  CKV_RETURN_IF_ERROR(ValidateLaneShape(offer.shape));
  if (request.offers_size() > kFabricOfferCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("session: %d fabrics, limit %d",
                                                      request.offers_size(), kFabricOfferCountMax));
  }
  for (const v1::FabricOffer& message : request.offers()) {
    const auto kind = ParseFabricName(message.fabric());
    if (!kind.ok()) continue;  // this version has no such fabric
    if (message.offers_size() > static_cast<int>(kLaneCountMax)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("session: %d lanes, limit %d", message.offers_size(), kLaneCountMax));
    }
    FabricOffer fabric{*kind, {}};
    for (const std::string& lane : message.offers()) {
      if (lane.size() > kOfferBytesMax) {
        return absl::InvalidArgumentError(absl::StrFormat("session: an offer of %d bytes, limit %d",
                                                          lane.size(), kOfferBytesMax));
      }
      fabric.offers.push_back(lane);
    }
    offer.fabrics.push_back(std::move(fabric));
  }
  return offer;
}

// The header of a put as a chunk's description; the table checks it against its id.
absl::StatusOr<ChunkInfo> InfoFrom(const v1::PutChunkRequest::Header& header,
                                   const Geometry& geometry) {
  ChunkInfo info;
  CKV_ASSIGN_OR_RETURN(info.id, ChunkId::FromBytes(header.id()));
  if (!header.parent().empty()) {
    CKV_ASSIGN_OR_RETURN(info.parent, ChunkId::FromBytes(header.parent()));
  }
  CKV_ASSIGN_OR_RETURN(info.verification_tag,
                       VerificationTag::FromBytes(header.verification_tag()));
  info.position = header.position();
  CKV_ASSIGN_OR_RETURN(
      info.token_ids, TokenIdsFromBytes("put: token_ids", header.token_ids(), kChunkTokenCountMax));
  CKV_ASSIGN_OR_RETURN(info.extra_keys,
                       DecodeExtraKeys(header.extra_keys(), info.token_ids.size()));
  if (header.tensor_checksums_size() != static_cast<int>(geometry.tensor_count())) {
    return absl::InvalidArgumentError(absl::StrFormat("put: %d tensor checksums for %d tensors",
                                                      header.tensor_checksums_size(),
                                                      geometry.tensor_count()));
  }
  info.tensor_checksums.assign(header.tensor_checksums().begin(), header.tensor_checksums().end());
  return info;
}

}  // namespace

grpc::Status HolderServiceImpl::OpenSession(grpc::ServerContext* context,
                                            const v1::OpenSessionRequest* request,
                                            v1::OpenSessionReply* reply) {
  const auto offer = OfferFrom(*request);
  if (!offer.ok()) return ToGrpc(offer.status());
  const auto answer = holder_.OpenSession(*offer, DeadlineOf(*context, clock_, kControlTimeoutMax));
  if (!answer.ok()) return ToGrpc(answer.status());
  reply->set_session(answer->session.value);
  reply->set_epoch(answer->epoch.value);
  reply->set_wire_version(answer->wire_version);
  reply->set_fabric(std::string(FabricName(answer->fabric)));
  for (const std::string& lane : answer->answers) reply->add_answers(lane);
  for (const FabricKind kind : answer->fabrics) reply->add_fabrics(std::string(FabricName(kind)));
  reply->set_host_identity(answer->host.identity);
  reply->set_processor_count(answer->host.processors);
  reply->set_compute_thread_count(answer->host.compute_threads);
  return grpc::Status::OK;
}

grpc::Status HolderServiceImpl::CloseSession(grpc::ServerContext* context,
                                             const v1::CloseSessionRequest* request,
                                             v1::CloseSessionReply* /*reply*/) {
  return ToGrpc(
      holder_.CloseSession({request->session()}, DeadlineOf(*context, clock_, kControlTimeoutMax)));
}

grpc::Status HolderServiceImpl::ResolveChunks(grpc::ServerContext* context,
                                              const v1::ResolveChunksRequest* request,
                                              v1::ResolveChunksReply* reply) {
  if (request->ids_size() > static_cast<int>(kResolveIdCountMax)) {
    return ToGrpc(absl::InvalidArgumentError(
        absl::StrFormat("%d ids, limit %d a call", request->ids_size(), kResolveIdCountMax)));
  }
  std::vector<ChunkId> ids;
  ids.reserve(request->ids_size());
  for (const std::string& bytes : request->ids()) {
    const auto id = ChunkId::FromBytes(bytes);
    if (!id.ok()) return ToGrpc(id.status());
    ids.push_back(*id);
  }
  const auto handles = holder_.ResolveChunks({request->session()}, ids,
                                             DeadlineOf(*context, clock_, kControlTimeoutMax));
  if (!handles.ok()) return ToGrpc(handles.status());
  for (const std::optional<ResolvedHandle>& handle : *handles) {
    v1::ResolveChunksReply::Handle* message = reply->add_handles();
    if (!handle) continue;
    message->set_found(true);
    message->set_handle(handle->handle.value);
    message->set_token_count(handle->token_count);
  }
  return grpc::Status::OK;
}

grpc::Status HolderServiceImpl::PutChunk(grpc::ServerContext* context,
                                         grpc::ServerReader<v1::PutChunkRequest>* reader,
                                         v1::PutChunkReply* /*reply*/) {
  auto stream = gate_.Enter(EndCall(context), &puts_);
  if (!stream.ok()) return ToGrpc(stream.status());
  return ToGrpc(Receive(*context, *stream, *reader));
}

bool HolderServiceImpl::Read(ServiceGate::Stream& stream, PutReader& reader,
                             v1::PutChunkRequest* message) {
  if (!stream.BeginWait(clock_.Now() + kPutProgressMax)) return false;
  const bool read = reader.Read(message);
  stream.EndWait();
  return read;
}

absl::Status HolderServiceImpl::Receive(grpc::ServerContext& context, ServiceGate::Stream& stream,
                                        PutReader& reader) {
  v1::PutChunkRequest message;
  if (!Read(stream, reader, &message) || !message.has_header()) {
    if (gate_.closed()) return ServiceGate::ClosedError();
    return absl::InvalidArgumentError("put: the first message must be the header");
  }
  CKV_ASSIGN_OR_RETURN(const Geometry geometry, FromProto(message.header().geometry()));
  CKV_ASSIGN_OR_RETURN(ChunkInfo info, InfoFrom(message.header(), geometry));
  if (message.header().tenant().size() > kCorpusNameBytesMax) {
    return absl::InvalidArgumentError("put: the tenant's name is too long");
  }
  const std::string tenant = message.header().tenant();
  const std::chrono::milliseconds ttl(std::min(message.header().ttl_ms(), kIdleMsMax));
  const ChunkId id = info.id;
  if (on_put_) on_put_(id);
  auto begun = holder_.store().Begin(std::move(info), geometry, tenant);
  if (!begun.ok()) return Settle(begun.status(), id, geometry, tenant, ttl);
  ChunkPut put = *std::move(begun);
  put.set_ttl(ttl);
  while (Read(stream, reader, &message)) {
    if (!message.has_rows()) {
      return absl::InvalidArgumentError(
          "put: rows must follow the header, and there is only one header");
    }
    const v1::PutChunkRequest::Rows& rows = message.rows();
    if (rows.rows().size() > kMessageRowsBytesMax) {
      return absl::InvalidArgumentError(absl::StrFormat("put: %d bytes in one message, limit %d",
                                                        rows.rows().size(), kMessageRowsBytesMax));
    }
    CKV_RETURN_IF_ERROR(
        put.Write(rows.tensor(), rows.offset_bytes(),
                  std::as_bytes(std::span(rows.rows().data(), rows.rows().size()))));
  }
  // A stream that broke looks like one that ended.
  if (gate_.closed()) return ServiceGate::ClosedError();
  if (context.IsCancelled()) return absl::CancelledError("put: interrupted; nothing was stored");
  return Settle(std::move(put).Finish(), id, geometry, tenant, ttl);
}

// Returns the result of a put once the table has the chunk (`status` is OK or AlreadyExists), or
// after any error. A replica keeper may have added or dropped a copy between the two calls of
// `on_put_`. After the second call, the chunk is the putter's if the table contains it.
absl::Status HolderServiceImpl::Settle(const absl::Status& status, const ChunkId& id,
                                       const Geometry& geometry, const std::string& tenant,
                                       Duration ttl) {
  absl::Status gone =
      absl::AbortedError("put: the chunk was dropped again just now: put it once more");
  if (absl::IsAlreadyExists(status)) {
    const absl::Status again = holder_.store().PutAgain(id, ttl);
    if (absl::IsNotFound(again)) return gone;
    CKV_RETURN_IF_ERROR(again);
  }
  if (!on_put_ || (!status.ok() && !absl::IsAlreadyExists(status))) return status;
  on_put_(id);
  if (holder_.table().Find(id, geometry, tenant).ok()) return status;
  return gone;
}

grpc::Status HolderServiceImpl::GetChunkInfo(grpc::ServerContext* /*context*/,
                                             const v1::GetChunkInfoRequest* request,
                                             v1::GetChunkInfoReply* reply) {
  const auto entry = gate_.EnterCall();
  if (!entry.ok()) return ToGrpc(entry.status());
  const auto id = ChunkId::FromBytes(request->id());
  if (!id.ok()) return ToGrpc(id.status());
  const auto geometry = FromProto(request->geometry());
  if (!geometry.ok()) return ToGrpc(geometry.status());
  if (request->tenant().size() > kCorpusNameBytesMax) {
    return ToGrpc(absl::InvalidArgumentError("chunk: the tenant's name is too long"));
  }
  if (!holder_.lease().LiveAt(clock_.Now())) {
    return ToGrpc(absl::UnavailableError("this holder has no live lease"));
  }
  const auto info = holder_.store().InfoOf(*id, *geometry, request->tenant());
  if (!info.ok()) return ToGrpc(info.status());
  // Touched before it is reported, so that a garbage collection that runs now leaves it.
  if (!holder_.store().Touch(*id)) return ToGrpc(absl::NotFoundError("dropped just now"));
  reply->set_durable(holder_.table().IsDurable(*id));
  reply->set_parent(std::string(info->parent.AsBytes()));
  reply->set_verification_tag(std::string(info->verification_tag.AsBytes()));
  reply->set_position(info->position);
  reply->set_token_ids(Int32sToBytes(info->token_ids));
  reply->set_extra_keys(EncodeExtraKeys(info->extra_keys));
  for (const uint64_t checksum : info->tensor_checksums) reply->add_tensor_checksums(checksum);
  return grpc::Status::OK;
}

grpc::Status HolderServiceImpl::ReadChunk(grpc::ServerContext* context,
                                          const v1::ReadChunkRequest* request,
                                          grpc::ServerWriter<v1::ReadChunkReply>* writer) {
  const auto id = ChunkId::FromBytes(request->id());
  if (!id.ok()) return ToGrpc(id.status());
  const auto geometry = FromProto(request->geometry());
  if (!geometry.ok()) return ToGrpc(geometry.status());
  if (request->tenant().size() > kCorpusNameBytesMax) {
    return ToGrpc(absl::InvalidArgumentError("chunk: the tenant's name is too long"));
  }
  v1::ReadChunkReply reply;
  const auto send = [&](uint32_t tensor, uint64_t offset_bytes, std::span<const std::byte> rows) {
    reply.set_tensor(tensor);
    reply.set_offset_bytes(offset_bytes);
    reply.set_rows(rows.data(), rows.size());
    return writer->Write(reply);
  };
  // gRPC's thread has queries after this, so it cannot have a lower priority.
  absl::Status status;
  try {
    Thread reader([&] {
      LowerThreadPriority();
      status = reads_.Run(*id, *geometry, request->tenant(),
                          {EndCall(context), [context] { return context->IsCancelled(); }, send});
    });
    reader.join();
  } catch (const std::system_error&) {
    status = absl::ResourceExhaustedError("chunk: this process can have no more threads");
  }
  return ToGrpc(status);
}

grpc::Status HolderServiceImpl::ListChunks(grpc::ServerContext* /*context*/,
                                           const v1::ListChunksRequest* request,
                                           v1::ListChunksReply* reply) {
  std::optional<ChunkId> after;
  if (!request->after().empty()) {
    const auto id = ChunkId::FromBytes(request->after());
    if (!id.ok()) return ToGrpc(id.status());
    after = *id;
  }
  const uint32_t wanted = request->count_max() == 0 ? kListCountDefault : request->count_max();
  const size_t count_max = std::min(wanted, kListCountMax);
  std::vector<ChunkListing> listings = holder_.table().List(after, count_max + 1);
  reply->set_more(listings.size() > count_max);
  if (reply->more()) listings.resize(count_max);
  for (const ChunkListing& listing : listings) {
    v1::ListChunksReply::Chunk* chunk = reply->add_chunks();
    chunk->set_id(std::string(listing.id.AsBytes()));
    chunk->set_position(listing.position);
    chunk->set_token_count(listing.token_count);
    chunk->set_bytes(listing.bytes);
    chunk->set_pin_count(listing.pin_count);
    chunk->set_kept(listing.kept);
    chunk->set_durable(listing.durable);
    chunk->set_idle_ms(static_cast<uint64_t>(listing.idle / std::chrono::milliseconds(1)));
  }
  return grpc::Status::OK;
}

grpc::Status HolderServiceImpl::PinChunk(grpc::ServerContext* /*context*/,
                                         const v1::PinChunkRequest* request,
                                         v1::PinChunkReply* /*reply*/) {
  const auto id = ChunkId::FromBytes(request->id());
  if (!id.ok()) return ToGrpc(id.status());
  if (request->unpin() || request->ttl_ms() == 0)
    return ToGrpc(holder_.store().Keep(*id, !request->unpin()));
  const std::chrono::milliseconds ttl(std::min(request->ttl_ms(), kIdleMsMax));
  return ToGrpc(holder_.store().KeepFor(*id, ttl));
}

grpc::Status HolderServiceImpl::DropChunk(grpc::ServerContext* /*context*/,
                                          const v1::DropChunkRequest* request,
                                          v1::DropChunkReply* /*reply*/) {
  const auto id = ChunkId::FromBytes(request->id());
  if (!id.ok()) return ToGrpc(id.status());
  if (request->idle_min_ms() == 0) return ToGrpc(holder_.store().Drop(*id));
  const std::chrono::milliseconds idle_min(std::min(request->idle_min_ms(), kIdleMsMax));
  return ToGrpc(holder_.store().Drop(*id, {.not_kept = true, .idle_min = idle_min}));
}

grpc::Status HolderServiceImpl::Stats(grpc::ServerContext* /*context*/,
                                      const v1::StatsRequest* /*request*/, v1::StatsReply* reply) {
  const HolderStats stats = holder_.stats();
  reply->set_id(id_);
  if (process_) *reply->mutable_process() = ToProto(process_());
  reply->set_epoch(holder_.lease().epoch().value);
  reply->set_kernel_target(std::string(holder_.kernel_target()));
  for (const std::string_view target : KernelTargets())
    reply->add_kernel_targets(std::string(target));
  const KernelChoice choice = ChosenKernel();
  v1::KernelChoice* reported = reply->mutable_kernel_choice();
  reported->set_origin(std::string(ChoiceOriginName(choice.origin)));
  reported->set_reason(choice.reason);
  reported->set_f32_gflop_per_s(choice.rates.f32);
  reported->set_amx_gflop_per_s(choice.rates.amx);
  reported->set_avx512_bf16_gflop_per_s(choice.rates.dot);
  reply->set_chunk_count(stats.table.chunk_count);
  reply->set_token_count(stats.table.token_count);
  reply->set_used_bytes(stats.table.used_bytes);
  reply->set_capacity_bytes(stats.table.capacity_bytes);
  reply->set_session_count(stats.session_count);
  reply->set_lane_count(stats.lane_count);
  reply->set_request_count(stats.request_count);
  reply->set_query_row_count(stats.query_row_count);
  reply->set_batch_count(stats.batch_count);
  reply->set_error_count(stats.error_count + stats.store_errors.total());
  reply->set_store_error_count(stats.store_errors.total());
  if (health_) *reply->mutable_health() = ToProto(health_());
  reply->set_expired_count(stats.expired_count);
  reply->set_bytes_in(stats.bytes_in);
  reply->set_bytes_out(stats.bytes_out);
  reply->set_compute_ns(stats.compute_ns);
  reply->set_cold_count(stats.table.cold_count);
  reply->set_shadow_count(stats.shadow_count);
  reply->set_load_count(stats.load_count);
  reply->set_load_bytes(stats.load_bytes);
  reply->set_evicted_count(stats.table.evicted_count);
  reply->set_damaged_count(stats.damaged_count);
  reply->set_repaired_count(stats.scrub.repaired_count);
  reply->set_scrubbed_bytes(stats.scrub.checked_bytes);
  reply->set_scrub_pass_count(stats.scrub.pass_count);
  reply->set_stripe_hit_count(stats.stripe_hit_count);
  reply->set_stripe_read_count(stats.stripe_read_count);
  reply->set_stripe_bytes(stats.stripe_bytes);
  reply->set_refuses_without_lease(!holder_.lease().LiveAt(clock_.Now()));
  stats.latency.ForEach([reply](std::string_view of, const LatencyCounts& counts) {
    *reply->add_latency() = ToProto(of, counts);
  });
  reply->set_refused_count(stats.refused_count);
  uint32_t waiting = 0;
  for (const QueueDepth& queue : stats.queues) waiting += queue.request_count;
  reply->set_waiting_count(waiting);
  for (const Geometry& geometry : holder_.table().geometries().InUse()) {
    reply->add_models(geometry.ToString());
  }
  return grpc::Status::OK;
}

}  // namespace ckv
