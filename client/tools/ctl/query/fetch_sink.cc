#include "client/tools/ctl/query/fetch_sink.h"

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/publish/chunk_copy.h"
#include "client/tools/ctl/corpus/tensor_files.h"
#include "proto/base/status.h"
#include "store/formats/import.h"
#include "store/formats/llama_state.h"
#include "store/formats/safetensors.h"

namespace ckv::ctl {
namespace {

constexpr uint64_t kGatheredBytesMax = uint64_t{4} << 30;

class TensorSink final : public FetchSink {
 public:
  TensorSink(const FetchFile& file, const Geometry& geometry) : file_(file), geometry_(geometry) {
    for (uint32_t t = 0; t < geometry.tensor_count(); ++t)
      tensors_.emplace_back(file.token_count * geometry.tensor_row_bytes(t));
  }

  absl::Status Take(uint32_t tensor, uint64_t token, std::span<const std::byte> rows) override {
    std::memcpy(tensors_[tensor].data() + token * geometry_.tensor_row_bytes(tensor), rows.data(),
                rows.size());
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    std::vector<TensorToWrite> tensors;
    for (uint32_t t = 0; t < geometry_.tensor_count(); ++t) {
      TensorSpec spec = RowTensorSpec(geometry_, t, file_.token_count);
      tensors.push_back({std::move(spec.name), spec.dtype, std::move(spec.shape), tensors_[t]});
    }
    return WriteSafetensors(file_.path, RowFileMetadata(geometry_, file_.position), tensors);
  }

 private:
  const FetchFile file_;
  const Geometry geometry_;
  std::vector<std::vector<std::byte>> tensors_;
};

class LlamaSink final : public FetchSink {
 public:
  explicit LlamaSink(LlamaStateWriter writer) : writer_(std::move(writer)) {}

  absl::Status Take(uint32_t layer, uint64_t token, std::span<const std::byte> rows) override {
    absl::Status written = writer_.Write(layer, static_cast<uint32_t>(token), rows);
    if (!absl::IsInvalidArgument(written)) return written;
    return absl::InternalError("the requester sent rows twice: " + std::string(written.message()));
  }
  absl::Status Finish() override { return std::move(writer_).Finish(); }

 private:
  LlamaStateWriter writer_;
};

// The token ids as one of these holders has them.
absl::StatusOr<std::vector<int32_t>> QueryHolders(
    Fleet& fleet, const Corpus& corpus, const ChunkPlacement& chunk,
    const std::map<std::string, Member>& live, Instant deadline,
    std::map<std::string, std::unique_ptr<v1::HolderService::StubInterface>>& stubs) {
  std::vector<HolderId> ids = chunk.holders();
  ids.insert(ids.end(), chunk.leased().begin(), chunk.leased().end());
  absl::Status error = absl::NotFoundError("none of its holders is alive");
  for (const HolderId& id : ids) {
    const auto holder = live.find(id.name);
    if (holder == live.end()) continue;
    if (fleet.clock().Now() >= deadline) {
      return absl::DeadlineExceededError("--timeout is over");
    }
    auto& stub = stubs[id.name];
    if (stub == nullptr) stub = ConnectHolder(holder->second);
    const auto info = ReadChunkInfo(
        {*stub, holder->second, corpus.geometry, corpus.tenant, fleet.clock(), deadline}, chunk.id);
    // The id of a chunk names its token ids, so a holder cannot give others.
    error = info.ok() ? Annotate(ValidateChunkInfo(*info, corpus.geometry),
                                 absl::StrFormat("holder %s", id.name))
                      : info.status();
    if (error.ok() && info->token_count() == chunk.token_count) return info->token_ids;
    if (error.ok()) {
      error = absl::InternalError(absl::StrFormat("holder %s: %d tokens, and the corpus has %d",
                                                  id.name, info->token_count(), chunk.token_count));
    }
  }
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FetchSink>> OpenTensorSink(const FetchFile& file,
                                                          const Geometry& geometry) {
  const uint64_t total = file.token_count * geometry.token_bytes();
  if (total > kGatheredBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the rows take %s, limit %s\n  fetch fewer chunks at once with --chunks",
                        FormatBytes(total), FormatBytes(kGatheredBytesMax)));
  }
  return std::make_unique<TensorSink>(file, geometry);
}

absl::StatusOr<std::unique_ptr<FetchSink>> OpenLlamaSink(const FetchFile& file,
                                                         const Geometry& geometry,
                                                         std::span<const int32_t> token_ids,
                                                         uint32_t streams) {
  if (geometry.dtype != RowDtype::kBf16) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a sequence state of llama.cpp has keys of bf16, and these rows are others: "
        "%s",
        geometry.ToString()));
  }
  CKV_ASSIGN_OR_RETURN(LlamaStateWriter writer,
                       LlamaStateWriter::Create(file.path, {.token_ids = token_ids,
                                                            .base_position = file.position,
                                                            .layer_count = geometry.layers,
                                                            .row_bytes = geometry.row_bytes(),
                                                            .stream_count = streams}));
  return std::make_unique<LlamaSink>(std::move(writer));
}

absl::StatusOr<std::vector<int32_t>> FetchTokenIds(Fleet& fleet, const Corpus& corpus,
                                                   std::span<const uint32_t> ordinals,
                                                   Instant deadline) {
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, fleet.Members());
  std::map<std::string, Member> live;
  for (const Member& member : members) {
    if (member.role == MemberRole::kHolder) live.emplace(member.id.name, member);
  }
  std::map<std::string, std::unique_ptr<v1::HolderService::StubInterface>> stubs;
  std::vector<int32_t> ids;
  for (const uint32_t ordinal : ordinals) {
    const auto of_chunk =
        QueryHolders(fleet, corpus, corpus.chunks[ordinal], live, deadline, stubs);
    if (!of_chunk.ok()) {
      return Annotate(of_chunk.status(),
                      absl::StrFormat("token ids of chunk %d of corpus %s", ordinal, corpus.name));
    }
    ids.insert(ids.end(), of_chunk->begin(), of_chunk->end());
  }
  return ids;
}

}  // namespace ckv::ctl
