#include "client/publish/chunk_copy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/extra_keys.h"
#include "proto/token_id.h"
#include "store/memory/chunk_table.h"

namespace ckv {
namespace {

// A chunk of 2048 V3 tokens is 144 MB: 2.5 MB/s would still make it.
constexpr Duration kPutTimeout = std::chrono::minutes(1);
// A cold chunk's file is read for it: its description, not its rows.
constexpr Duration kQueryTimeout = std::chrono::seconds(10);

// Sends the rows until the holder ends the stream, as it does when it already has them.
uint64_t WriteRows(grpc::ClientWriterInterface<v1::PutChunkRequest>& writer, uint32_t tensors,
                   const SourceChunk& chunk, const std::function<void(uint64_t)>& on_bytes) {
  v1::PutChunkRequest request;
  uint64_t bytes_sent = 0;
  for (uint32_t t = 0; t < tensors; ++t) {
    const std::span<const std::byte> rows = chunk.rows(t);
    for (size_t offset = 0; offset < rows.size(); offset += kMessageRowsBytesMax) {
      const auto part = rows.subspan(offset, std::min(kMessageRowsBytesMax, rows.size() - offset));
      v1::PutChunkRequest::Rows& message = *request.mutable_rows();
      message.set_tensor(t);
      message.set_offset_bytes(offset);
      message.set_rows(part.data(), part.size());
      if (!writer.Write(request)) return bytes_sent;
      bytes_sent += part.size();
      on_bytes(part.size());
    }
  }
  return bytes_sent;
}

// A put of the header and, `with_rows`, of the rows; the holder's answer is in `status`.
uint64_t Put(const HolderCalls& calls, const SourceChunk& chunk, bool with_rows,
             const std::function<void(uint64_t)>& on_bytes, absl::Status& status) {
  grpc::ClientContext context;
  SetDeadline(context, calls.clock, std::min(calls.deadline, calls.clock.Now() + kPutTimeout),
              kPutTimeout);
  v1::PutChunkReply reply;
  const auto writer = calls.stub.PutChunk(&context, &reply);
  uint64_t bytes_sent = 0;
  if (writer->Write(PutHeader(chunk.info, calls.geometry, calls.tenant)) && with_rows) {
    bytes_sent = WriteRows(*writer, calls.geometry.tensor_count(), chunk, on_bytes);
  }
  writer->WritesDone();
  status = HolderError(writer->Finish(), calls.holder, "PutChunk");
  return bytes_sent;
}

}  // namespace

v1::PutChunkRequest PutHeader(const ChunkInfo& info, const Geometry& geometry,
                              const std::string& tenant) {
  v1::PutChunkRequest request;
  v1::PutChunkRequest::Header& header = *request.mutable_header();
  *header.mutable_geometry() = ToProto(geometry);
  header.set_id(std::string(info.id.AsBytes()));
  header.set_parent(std::string(info.parent.AsBytes()));
  header.set_verification_tag(std::string(info.verification_tag.AsBytes()));
  header.set_position(info.position);
  header.set_token_ids(Int32sToBytes(info.token_ids));
  header.set_extra_keys(EncodeExtraKeys(info.extra_keys));
  for (const uint64_t checksum : info.tensor_checksums) header.add_tensor_checksums(checksum);
  header.set_tenant(tenant);
  return request;
}

absl::StatusOr<ChunkInfo> ReadChunkInfo(const HolderCalls& calls, const ChunkId& id) {
  grpc::ClientContext context;
  SetDeadline(context, calls.clock, calls.deadline, kQueryTimeout);
  v1::GetChunkInfoRequest request;
  request.set_id(std::string(id.AsBytes()));
  *request.mutable_geometry() = ToProto(calls.geometry);
  request.set_tenant(calls.tenant);
  v1::GetChunkInfoReply reply;
  const absl::Status status =
      HolderError(calls.stub.GetChunkInfo(&context, request, &reply), calls.holder, "GetChunkInfo");
  // A damaged copy was quarantined when it was read: it is not there any more.
  if (absl::IsDataLoss(status)) return absl::NotFoundError(status.message());
  CKV_RETURN_IF_ERROR(status);
  ChunkInfo info;
  info.id = id;
  if (!reply.parent().empty()) {
    CKV_ASSIGN_OR_RETURN(info.parent, ChunkId::FromBytes(reply.parent()));
  }
  CKV_ASSIGN_OR_RETURN(info.verification_tag, VerificationTag::FromBytes(reply.verification_tag()));
  info.position = reply.position();
  CKV_ASSIGN_OR_RETURN(info.token_ids,
                       TokenIdsFromBytes("token_ids", reply.token_ids(), kChunkTokenCountMax));
  CKV_ASSIGN_OR_RETURN(info.extra_keys, DecodeExtraKeys(reply.extra_keys(), info.token_ids.size()));
  info.tensor_checksums.assign(reply.tensor_checksums().begin(), reply.tensor_checksums().end());
  return info;
}

absl::StatusOr<bool> HasChunk(const HolderCalls& calls, const ChunkId& id, uint64_t rows_digest) {
  const absl::StatusOr<ChunkInfo> there = ReadChunkInfo(calls, id);
  if (absl::IsNotFound(there.status())) return false;
  if (!there.ok()) {
    return Annotate(there.status(), absl::StrFormat("chunk %s", id.ShortHex()));
  }
  if (DigestOf(there->tensor_checksums) != rows_digest) {
    return absl::DataLossError(absl::StrFormat(
        "chunk %s: holder %s has other rows under this id: they were made in another way from the "
        "same tokens\n  give the geometry another revision, or drop the corpora that have the "
        "chunk",
        id.ShortHex(), calls.holder.id.name));
  }
  return true;
}

absl::StatusOr<CopyOutcome> CopyChunk(const HolderCalls& calls, const SourceChunk& chunk,
                                      const std::function<void(uint64_t bytes)>& on_bytes) {
  CKV_ASSIGN_OR_RETURN(const bool there,
                       HasChunk(calls, chunk.info.id, DigestOf(chunk.info.tensor_checksums)));
  CopyOutcome outcome;
  absl::Status status;
  if (there) {
    Put(calls, chunk, /*with_rows=*/false, on_bytes, status);
    outcome.found = absl::IsAlreadyExists(status);
    if (outcome.found) return outcome;
    // The chunk was dropped in between, or the holder fails, which the put of the rows then shows.
  }
  outcome.bytes_sent = Put(calls, chunk, /*with_rows=*/true, on_bytes, status);
  outcome.found = absl::IsAlreadyExists(status);
  if (status.ok() || outcome.found) return outcome;
  return Annotate(status, absl::StrFormat("chunk %s", chunk.info.id.ShortHex()));
}

}  // namespace ckv
