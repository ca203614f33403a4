#include "client/publish/corpus_writer.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/corpus.h"

namespace ckv {
namespace {

// The geometry of the chunks: what the target says, or what the corpus has. `end` is null if the
// corpus is not there.
absl::StatusOr<Geometry> GeometryOf(const WriteTarget& target, const CorpusEnd* end) {
  const std::string& name = target.extend.corpus;
  if (!target.geometry && end == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("put: corpus '%s' is not there yet, so the target needs a geometry", name));
  }
  if (!target.geometry) return end->geometry;
  CKV_RETURN_IF_ERROR(ValidateGeometry(*target.geometry));
  if (end != nullptr && ModelFingerprint(*target.geometry) != ModelFingerprint(end->geometry)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("put: corpus '%s' has another geometry than the target: %s", name,
                        DescribeDifference(end->geometry, *target.geometry)));
  }
  return *target.geometry;
}

absl::Status CheckNames(const ExtendTarget& target) {
  if (target.corpus.empty()) return absl::InvalidArgumentError("put: no corpus is named");
  CKV_RETURN_IF_ERROR(ValidateName("put: corpus", target.corpus));
  return ValidateName("put: tenant", target.tenant);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CorpusWriter>> CorpusWriter::Begin(Publisher* publisher,
                                                                  const WriteTarget& target,
                                                                  TakeQuota take_quota,
                                                                  Instant deadline) {
  CKV_RETURN_IF_ERROR(CheckNames(target.extend));
  CKV_RETURN_IF_ERROR(ValidatePolicy(target.extend.policy));
  const auto end =
      publisher->EndOf(target.extend.corpus, target.extend.tenant, target.parent, deadline);
  const bool is_made = absl::IsNotFound(end.status()) && target.extend.create;
  if (!end.ok() && !is_made) return end.status();
  if (is_made && !target.parent.IsZero()) {
    return absl::FailedPreconditionError(
        "put: a corpus that is not there yet has no chunk to go on from");
  }
  CKV_ASSIGN_OR_RETURN(const Geometry geometry, GeometryOf(target, is_made ? nullptr : &*end));
  auto writer = std::unique_ptr<CorpusWriter>(
      new CorpusWriter(publisher, target.extend, geometry, std::move(take_quota)));
  if (!target.parent.IsZero()) {
    writer->parent_ = target.parent;
    writer->position_ = end->position;
  }
  CKV_ASSIGN_OR_RETURN(writer->key_, publisher->KeyOf(target.extend.tenant, deadline));
  return writer;
}

absl::Status CorpusWriter::AddChunk(WriteChunk chunk) {
  CKV_RETURN_IF_ERROR(EndChunk());
  ChunkInputs inputs;
  inputs.key = key_;
  inputs.token_ids = std::move(chunk.token_ids);
  inputs.extra_keys = std::move(chunk.extra_keys);
  if (!chunk.standalone) {
    inputs.parent = parent_;
    inputs.position = parent_.IsZero() ? chunk.position : position_;
    if (chunk.position != 0 && chunk.position != inputs.position) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "put: a chunk at position %d; the one before it ends at %d", chunk.position, position_));
    }
  }
  const uint64_t position = inputs.position, count = inputs.token_ids.size();
  if (count == 0 || count > kChunkTokenCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "put: a chunk of %d tokens; it must have 1 to %d", count, kChunkTokenCountMax));
  }
  CKV_RETURN_IF_ERROR(take_quota_(count * geometry().token_bytes()));
  CKV_ASSIGN_OR_RETURN(chunk_, ChunkAssembler::Begin(geometry(), std::move(inputs), UINT64_MAX));
  if (!chunk.standalone) position_ = position + count;
  is_standalone_ = chunk.standalone;
  return absl::OkStatus();
}

absl::Status CorpusWriter::AddRows(uint32_t tensor, uint64_t offset,
                                   std::span<const std::byte> rows) {
  if (chunk_ == nullptr) return absl::FailedPreconditionError("put: rows without a chunk");
  return chunk_->Add(tensor, offset, rows);
}

absl::Status CorpusWriter::EndChunk() {
  if (done_) return absl::FailedPreconditionError("put: it is done; begin another");
  if (chunk_ == nullptr) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(AssembledChunk whole, chunk_->Finish());
  chunk_ = nullptr;
  if (!is_standalone_) parent_ = whole.chunk.info.id;
  chunks_.Add(std::move(whole.chunk), whole.token_hash);
  return absl::OkStatus();
}

absl::StatusOr<ExtendReport> CorpusWriter::Finish(Instant deadline) {
  CKV_RETURN_IF_ERROR(EndChunk());
  CKV_ASSIGN_OR_RETURN(ExtendReport report, publisher_.Extend(target_, chunks_, deadline));
  done_ = true;
  return report;
}

}  // namespace ckv
