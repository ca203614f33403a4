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

// Checks that each layer arrives once, from its first byte to its last.
class Layers {
 public:
  Layers(const Geometry& geometry, const ChunkInfo& info)
      : info_(info),
        layers_(geometry.layers),
        layer_bytes_(uint64_t{info.token_count()} * geometry.row_bytes()) {
    if (layer_bytes_ == 0) layer_ = layers_;  // nothing is due
    XXH3_64bits_reset(&state_);
  }

  absl::Status Add(const v1::ReadChunkReply& part) {
    const std::string& rows = part.rows();
    if (layer_ == layers_ || part.layer() != layer_ || part.offset_bytes() != offset_bytes_ ||
        rows.empty() || rows.size() > kMessageRowsBytesMax ||
        rows.size() > layer_bytes_ - offset_bytes_) {
      return absl::InternalError(
          absl::StrFormat("received %d bytes of layer %d at %d, expected layer %d from %d on",
                          rows.size(), part.layer(), part.offset_bytes(), layer_, offset_bytes_));
    }
    XXH3_64bits_update(&state_, rows.data(), rows.size());
    offset_bytes_ += rows.size();
    if (offset_bytes_ < layer_bytes_) return absl::OkStatus();
    if (XXH3_64bits_digest(&state_) != info_.layer_checksums[layer_]) {
      return absl::DataLossError(
          absl::StrFormat("the rows of layer %d do not have their checksum", layer_));
    }
    ++layer_;
    offset_bytes_ = 0;
    XXH3_64bits_reset(&state_);
    return absl::OkStatus();
  }

  absl::Status Whole() const {
    if (layer_ == layers_) return absl::OkStatus();
    return absl::InternalError(absl::StrFormat(
        "received rows up to layer %d, byte %d, of %d layers", layer_, offset_bytes_, layers_));
  }

 private:
  const ChunkInfo& info_;
  const uint32_t layers_;
  const uint64_t layer_bytes_;
  uint32_t layer_ = 0;
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
  Layers layers(calls.geometry, info);
  v1::ReadChunkReply part;
  absl::Status taken;
  while (taken.ok() && reader->Read(&part)) {
    taken = layers.Add(part);
    if (taken.ok()) {
      taken = take(part.layer(), part.offset_bytes(),
                   std::as_bytes(std::span(part.rows().data(), part.rows().size())));
    }
  }
  if (!taken.ok()) context.TryCancel();
  const absl::Status status = HolderError(reader->Finish(), calls.holder, "ReadChunk");
  const std::string who = absl::StrFormat("holder %s", calls.holder.id.name);
  CKV_RETURN_IF_ERROR(Annotate(taken, who));
  CKV_RETURN_IF_ERROR(status);
  return Annotate(layers.Whole(), who);
}

}  // namespace ckv::ctl
