#include "server/rpc/put_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/publish/kept_parts.h"
#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/corpus.h"
#include "proto/token_id.h"

namespace ckv {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);
constexpr Duration kTimeoutMax = std::chrono::minutes(10);
constexpr Duration kLookTimeout = std::chrono::seconds(10);

absl::Status OutOfPlace(const char* what) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "put: %s: send the target first and once, then each chunk and its rows", what));
}

}  // namespace

absl::Status PutStream::Take(const v1::PutRequest& message) {
  switch (message.part_case()) {
    case v1::PutRequest::kTarget:
      if (writer_ != nullptr) return OutOfPlace("a second target");
      return TakeTarget(message.target());
    case v1::PutRequest::kChunk:
      if (writer_ == nullptr) return OutOfPlace("a chunk without a target");
      return TakeChunk(message.chunk());
    case v1::PutRequest::kRows: {
      if (!has_chunk_) return OutOfPlace("rows without a chunk");
      const std::string& rows = message.rows().rows();
      // A message without rows is no progress.
      if (rows.empty()) return absl::InvalidArgumentError("put: a message without rows");
      if (rows.size() > kMessageRowsBytesMax) {
        return absl::InvalidArgumentError(absl::StrFormat("put: %d bytes in one message, limit %d",
                                                          rows.size(), kMessageRowsBytesMax));
      }
      CKV_ASSIGN_OR_RETURN(
          const uint32_t tensor,
          TensorOf(writer_->geometry(), message.rows().layer(), message.rows().index_keys()));
      return writer_->AddRows(tensor, message.rows().offset_bytes(),
                              std::as_bytes(std::span(rows.data(), rows.size())));
    }
    default:
      return OutOfPlace("an empty message");
  }
}

absl::Status PutStream::TakeTarget(const v1::PutTarget& target) {
  WriteTarget made;
  made.extend = {.corpus = target.corpus(),
                 .tenant = target.tenant(),
                 .replicas = target.replicas(),
                 .create = target.create()};
  timeout_ = target.timeout_ms() == 0 ? kTimeout : std::chrono::milliseconds(target.timeout_ms());
  timeout_ = std::min(timeout_, kTimeoutMax);
  if (!target.parent().empty()) {
    CKV_ASSIGN_OR_RETURN(made.parent, ChunkId::FromBytes(target.parent()));
  }
  if (target.has_geometry()) {
    CKV_ASSIGN_OR_RETURN(made.geometry, FromProto(target.geometry()));
  }
  CKV_ASSIGN_OR_RETURN(writer_,
                       CorpusWriter::Begin(
                           &publisher_, made, [this](uint64_t bytes) { return TakeQuota(bytes); },
                           clock_.Now() + kLookTimeout));
  return absl::OkStatus();
}

absl::Status PutStream::TakeChunk(const v1::PutChunk& chunk) {
  WriteChunk next;
  CKV_ASSIGN_OR_RETURN(next.token_ids,
                       TokenIdsFromBytes("put: token_ids", chunk.token_ids(), kChunkTokenCountMax));
  CKV_ASSIGN_OR_RETURN(next.extra_keys, FromProto(chunk.extra_keys(), next.token_ids.size()));
  next.standalone = chunk.standalone();
  next.position = chunk.position();
  CKV_RETURN_IF_ERROR(writer_->AddChunk(std::move(next)));
  has_chunk_ = true;
  return absl::OkStatus();
}

absl::Status PutStream::TakeQuota(uint64_t bytes) {
  if (bytes > kPutStreamBytesMax - bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("put: %d bytes of rows in one stream, limit %d: put fewer chunks at once",
                        bytes_ + bytes, kPutStreamBytesMax));
  }
  if (!quota_.Take(bytes)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "put: rows of other puts take most of the %d bytes that there is room for here: try again "
        "when they are done",
        quota_.bytes_max()));
  }
  bytes_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<v1::PutReply> PutStream::Finish() {
  if (writer_ == nullptr) return OutOfPlace("the stream ended without a target");
  CKV_ASSIGN_OR_RETURN(const ExtendReport report, writer_->Finish(clock_.Now() + timeout_));
  if (!report.kept.ok()) Log().warn("{}", NotKeptWarning(writer_->target().corpus, report.kept));
  v1::PutReply reply;
  reply.set_version(report.version);
  for (const PlannedChunk& chunk : writer_->chunks()) {
    reply.add_ids(std::string(chunk.id.AsBytes()));
  }
  reply.set_chunk_begin(report.chunk_begin);
  reply.set_added_count(report.added_count);
  reply.set_bytes_sent(report.bytes_sent());
  reply.set_kept(report.kept.ok());
  return reply;
}

}  // namespace ckv
