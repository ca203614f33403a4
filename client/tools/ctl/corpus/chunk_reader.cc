#include "client/tools/ctl/corpus/chunk_reader.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "client/tools/ctl/fleet.h"
#include "proto/base/status.h"
#include "proto/base/xxh3.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

// The limit of a put: a chunk of 2048 V3 tokens is 144 MB, for which 2.5 MB/s is enough.
constexpr Duration kReadTimeout = std::chrono::minutes(1);

// Checks that each tensor arrives once, from its first byte to its last.
class Tensors {
 public:
  Tensors(const Geometry& geometry, const ChunkInfo& info)
      : info_(info), geometry_(geometry), layout_(geometry, info.token_count()) {
    if (layout_.total_bytes() == 0) tensor_ = layout_.tensor_count();  // nothing is due
    XXH3_64bits_reset(&state_);
  }

  absl::Status Add(const v1::ReadChunkReply& part) {
    const std::string& rows = part.rows();
    if (tensor_ == layout_.tensor_count() || part.tensor() != tensor_ ||
        part.offset_bytes() != offset_bytes_ || rows.empty() ||
        rows.size() > kMessageRowsBytesMax ||
        rows.size() > layout_.bytes(tensor_) - offset_bytes_) {
      return absl::InternalError(
          absl::StrFormat("received %d bytes of tensor %d at %d, expected tensor %d from %d on",
                          rows.size(), part.tensor(), part.offset_bytes(), tensor_, offset_bytes_));
    }
    XXH3_64bits_update(&state_, rows.data(), rows.size());
    offset_bytes_ += rows.size();
    if (offset_bytes_ < layout_.bytes(tensor_)) return absl::OkStatus();
    if (XXH3_64bits_digest(&state_) != info_.tensor_checksums[tensor_]) {
      return absl::DataLossError(absl::StrFormat("the rows of %s do not have their checksum",
                                                 geometry_.TensorName(tensor_)));
    }
    ++tensor_;
    offset_bytes_ = 0;
    XXH3_64bits_reset(&state_);
    return absl::OkStatus();
  }

  absl::Status Whole() const {
    if (tensor_ == layout_.tensor_count()) return absl::OkStatus();
    return absl::InternalError(absl::StrFormat("received rows up to tensor %d, byte %d, of %d",
                                               tensor_, offset_bytes_, layout_.tensor_count()));
  }

 private:
  const ChunkInfo& info_;
  const Geometry& geometry_;
  const ChunkLayout layout_;
  uint32_t tensor_ = 0;
  uint64_t offset_bytes_ = 0;
  XXH3_state_t state_;
};

}  // namespace

absl::Status ReadChunkRows(const HolderCalls& calls, const ChunkInfo& info, TakeRows take) {
  grpc::ClientContext context;
  SetDeadline(context, calls.clock, calls.clock.Now() + kReadTimeout, kReadTimeout);
  v1::ReadChunkRequest request;
  request.set_id(std::string(info.id.AsBytes()));
  *request.mutable_geometry() = ToProto(calls.geometry);
  request.set_tenant(calls.tenant);
  const auto reader = calls.stub.ReadChunk(&context, request);
  Tensors tensors(calls.geometry, info);
  v1::ReadChunkReply part;
  absl::Status taken;
  while (taken.ok() && reader->Read(&part)) {
    taken = tensors.Add(part);
    if (taken.ok()) {
      taken = take(part.tensor(), part.offset_bytes(),
                   std::as_bytes(std::span(part.rows().data(), part.rows().size())));
    }
  }
  if (!taken.ok()) context.TryCancel();
  const absl::Status status = HolderError(reader->Finish(), calls.holder, "ReadChunk");
  const std::string who = absl::StrFormat("holder %s", calls.holder.id.name);
  CKV_RETURN_IF_ERROR(Annotate(taken, who));
  CKV_RETURN_IF_ERROR(status);
  return Annotate(tensors.Whole(), who);
}

}  // namespace ckv::ctl
