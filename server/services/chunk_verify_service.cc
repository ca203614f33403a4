#include "server/services/chunk_verify_service.h"

#include <string>
#include <utility>

#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/utf8.h"
#include "server/services/chunk_order.h"

namespace ckv {
namespace {

// An error that names a path.
constexpr size_t kWhyBytesMax = 4096;

v1::ChunkVerdict VerdictOf(ChunkCheck::Health health) {
  switch (health) {
    case ChunkCheck::Health::kWhole:
    case ChunkCheck::Health::kHealed:
      return v1::CHUNK_VERDICT_WHOLE;
    case ChunkCheck::Health::kDamaged:
      return v1::CHUNK_VERDICT_DAMAGED;
    case ChunkCheck::Health::kUnreadable:
      return v1::CHUNK_VERDICT_UNREADABLE;
  }
  return v1::CHUNK_VERDICT_UNSPECIFIED;
}

//   Cancelled           `pace` said so.
absl::StatusOr<v1::VerifyChunksReply> CheckOne(ChunkStore& store, const ChunkOrder& order,
                                               const ChunkId& id, VerifyPace pace) {
  v1::VerifyChunksReply reply;
  reply.set_id(std::string(id.AsBytes()));
  absl::StatusOr<ChunkCheck> check = ChunkCheck{};
  const auto locator = store.table().Find(id, order.geometry, order.tenant);
  check = locator.ok() ? store.Verify(*locator, pace) : locator.status();
  if (absl::IsCancelled(check.status())) return check.status();
  if (!check.ok()) {
    reply.set_verdict(v1::CHUNK_VERDICT_MISSING);
    reply.set_why(Utf8Text(std::string(check.status().message()), kWhyBytesMax));
    return reply;
  }
  reply.set_verdict(VerdictOf(check->health));
  reply.set_why(Utf8Text(check->why, kWhyBytesMax));
  reply.set_bytes_checked(check->bytes_checked);
  reply.set_rows_checksum(check->rows_checksum);
  return reply;
}

}  // namespace

grpc::Status ChunkVerifyService::Verify(grpc::ServerContext* context,
                                        const v1::VerifyChunksRequest* request,
                                        grpc::ServerWriter<v1::VerifyChunksReply>* writer) {
  auto stream = gate_.Enter(EndCall(context), &checks_);
  if (!stream.ok()) return ToGrpc(stream.status());
  return ToGrpc(Serve(*context, *stream, *request, *writer));
}

absl::Status ChunkVerifyService::Serve(grpc::ServerContext& context, ServiceGate::Stream& stream,
                                       const v1::VerifyChunksRequest& request,
                                       grpc::ServerWriter<v1::VerifyChunksReply>& writer) {
  CKV_ASSIGN_OR_RETURN(
      const ChunkOrder order,
      ChunkOrderFrom("verify", request.ids(), request.geometry(), request.tenant()));
  const Instant deadline = DeadlineOf(context, clock_, kVerifyTimeoutMax);
  const auto pace = [&](uint64_t /*bytes*/) {
    return !gate_.closed() && !context.IsCancelled() && clock_.Now() < deadline;
  };
  for (const ChunkId& id : order.ids) {
    const auto reply = CheckOne(holder_.store(), order, id, pace);
    bool written = false;
    if (reply.ok() && stream.BeginWait(clock_.Now() + kVerifyProgressMax)) {
      written = writer.Write(*reply);
      stream.EndWait();
    }
    if (written) continue;
    if (gate_.closed()) return ServiceGate::ClosedError();
    if (clock_.Now() >= deadline) return absl::DeadlineExceededError("verify: the time is over");
    return absl::CancelledError("verify: the caller has ended the stream");
  }
  return absl::OkStatus();
}

}  // namespace ckv
