#include "server/edge/put_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/corpus.h"

namespace ckv {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(60);
constexpr Duration kTimeoutMax = std::chrono::minutes(10);
constexpr Duration kLookTimeout = std::chrono::seconds(10);

absl::Status OutOfPlace(const char* what) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "put: %s: the target comes first and once, then each chunk and its rows", what));
}

}  // namespace

bool PutRoom::Take(uint64_t bytes) {
  uint64_t taken = taken_.load(std::memory_order_relaxed);
  do {
    if (bytes > kBytesMax - taken) return false;
  } while (!taken_.compare_exchange_weak(taken, taken + bytes, std::memory_order_relaxed));
  return true;
}

absl::Status PutStream::Take(const v1::PutRequest& message) {
  switch (message.part_case()) {
    case v1::PutRequest::kTarget:
      if (chunks_ != nullptr) return OutOfPlace("a second target");
      return TakeTarget(message.target());
    case v1::PutRequest::kChunk:
      if (chunks_ == nullptr) return OutOfPlace("a chunk without a target");
      CKV_RETURN_IF_ERROR(EndChunk());
      return TakeChunk(message.chunk());
    case v1::PutRequest::kRows: {
      if (chunk_ == nullptr) return OutOfPlace("rows without a chunk");
      const std::string& rows = message.rows().rows();
      // A message without rows is no progress.
      if (rows.empty()) return absl::InvalidArgumentError("put: a message without rows");
      if (rows.size() > kMessageRowsBytesMax) {
        return absl::InvalidArgumentError(absl::StrFormat("put: %d bytes in one message, limit %d",
                                                          rows.size(), kMessageRowsBytesMax));
      }
      return chunk_->Add(message.rows().layer(), message.rows().offset_bytes(),
                         std::as_bytes(std::span(rows.data(), rows.size())));
    }
    default:
      return OutOfPlace("an empty message");
  }
}

absl::Status PutStream::TakeTarget(const v1::PutTarget& target) {
  CKV_RETURN_IF_ERROR(ValidateName("put: corpus", target.corpus()));
  if (target.corpus().empty()) return absl::InvalidArgumentError("put: no corpus is named");
  if (target.tenant().size() > kCorpusNameBytesMax) {
    return absl::InvalidArgumentError("put: the tenant's name is too long");
  }
  target_ = {.corpus = target.corpus(),
             .tenant = target.tenant(),
             .replicas = target.replicas(),
             .create = target.create()};
  timeout_ = target.timeout_ms() == 0 ? kTimeout : std::chrono::milliseconds(target.timeout_ms());
  timeout_ = std::min(timeout_, kTimeoutMax);
  ChunkId parent;
  if (!target.parent().empty()) {
    CKV_ASSIGN_OR_RETURN(parent, ChunkId::FromBytes(target.parent()));
  }
  auto end = publisher_.EndOf(target_.corpus, target_.tenant, parent, clock_.Now() + kLookTimeout);
  if (!end.ok() && !(absl::IsNotFound(end.status()) && target_.create)) return end.status();
  Geometry geometry;
  if (target.has_geometry()) {
    CKV_ASSIGN_OR_RETURN(geometry, FromProto(target.geometry()));
  } else if (end.ok()) {
    geometry = end->geometry;
  } else {
    return absl::InvalidArgumentError(absl::StrFormat(
        "put: corpus '%s' is not there yet, so the target needs a geometry", target_.corpus));
  }
  if (end.ok()) {
    if (ModelFingerprint(geometry) != ModelFingerprint(end->geometry)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "put: corpus '%s' has another geometry than the target says", target_.corpus));
    }
    if (!parent.IsZero()) {
      parent_ = parent;
      position_ = end->position;
    }
  } else if (!parent.IsZero()) {
    return absl::FailedPreconditionError(
        "put: a corpus that is not there yet has no chunk to go on from");
  }
  CKV_ASSIGN_OR_RETURN(key_, publisher_.KeyOf(target_.tenant, clock_.Now() + kLookTimeout));
  chunks_ = std::make_unique<MemorySource>(geometry);
  return absl::OkStatus();
}

absl::Status PutStream::TakeChunk(const v1::PutChunk& chunk) {
  ChunkInputs inputs;
  inputs.key = key_;
  CKV_ASSIGN_OR_RETURN(inputs.token_ids, Int32sFromBytes(chunk.token_ids(), kChunkTokenCountMax));
  if (!chunk.standalone()) {
    inputs.parent = parent_;
    inputs.position = parent_.IsZero() ? chunk.position() : position_;
  }
  if (!chunk.standalone() && !parent_.IsZero() && chunk.position() != 0 &&
      chunk.position() != position_) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "put: a chunk at position %d; the one before it ends at %d", chunk.position(), position_));
  }
  const uint64_t position = inputs.position, count = inputs.token_ids.size();
  CKV_RETURN_IF_ERROR(TakeRoom(count * chunks_->geometry().token_bytes()));
  CKV_ASSIGN_OR_RETURN(
      chunk_, ChunkAssembler::Begin(chunks_->geometry(), std::move(inputs), PutRoom::kBytesMax));
  if (!chunk.standalone()) position_ = position + count;
  is_standalone_ = chunk.standalone();
  return absl::OkStatus();
}

absl::Status PutStream::TakeRoom(uint64_t bytes) {
  if (bytes > PutRoom::kStreamBytesMax - bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("put: %d bytes of rows in one stream, limit %d: put fewer chunks at once",
                        bytes_ + bytes, PutRoom::kStreamBytesMax));
  }
  if (!room_.Take(bytes)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "put: rows of other puts take most of the %d bytes that there is room for here: try again "
        "when they are done",
        PutRoom::kBytesMax));
  }
  bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status PutStream::EndChunk() {
  if (chunk_ == nullptr) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(AssembledChunk whole, chunk_->Finish());
  chunk_ = nullptr;
  if (!is_standalone_) parent_ = whole.chunk.info.id;
  chunks_->Add(std::move(whole.chunk), whole.print);
  return absl::OkStatus();
}

absl::StatusOr<v1::PutReply> PutStream::Finish() {
  if (chunks_ == nullptr) return OutOfPlace("the stream ended without a target");
  CKV_RETURN_IF_ERROR(EndChunk());
  CKV_ASSIGN_OR_RETURN(const ExtendReport report,
                       publisher_.Extend(target_, *chunks_, clock_.Now() + timeout_));
  v1::PutReply reply;
  reply.set_version(report.version);
  for (const PlannedChunk& chunk : chunks_->chunks()) {
    reply.add_ids(std::string(chunk.id.AsBytes()));
  }
  reply.set_chunk_begin(report.chunk_begin);
  reply.set_added_count(report.added_count);
  uint64_t sent = 0;
  for (const auto& [name, tally] : report.puts.tallies) sent += tally.bytes_sent;
  reply.set_bytes_sent(sent);
  return reply;
}

}  // namespace ckv
