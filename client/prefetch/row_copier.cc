#include "client/prefetch/row_copier.h"

#include <algorithm>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv {

Instant RowCopier::CopiedBy(uint64_t bytes) const {
  return options_->clock->Now() +
         options_->slice_timeout * static_cast<int64_t>(1 + bytes / kSliceBytes);
}

void RowCopier::CopyHere(const PrefetchJob& job) const {
  if (tools_->here == nullptr) return;
  const ContextState& context = job.context();
  const ContextChunk& first = context.chunks()[job.context_range.chunk_begin];
  const std::shared_ptr<const Corpus>& corpus = context.corpora()[first.part];
  std::vector<uint32_t> missing;
  uint64_t bytes = 0;
  for (uint32_t i = job.context_range.chunk_begin; i < job.context_range.chunk_end; ++i) {
    const ContextChunk& chunk = context.chunks()[i];
    if (store_->Find(corpus->chunks[chunk.ordinal].id, context.geometry()) != nullptr) continue;
    if (tools_->here->Find(*corpus, chunk.ordinal) != nullptr) continue;
    missing.push_back(chunk.ordinal);
    bytes += LocalRowCache::BytesOf(context.geometry(), chunk.token_count);
  }
  if (missing.empty()) return;
  const absl::Status status = tools_->here->Copy(corpus, missing, CopiedBy(bytes));
  if (!status.ok()) Log().debug("auto: no copies in this process' holder: {}", status.ToString());
}

void RowCopier::KeepAtCache(PrefetchJob& job) const {
  if (!tools_->keep || job.missing.empty()) return;
  const ContextState& context = job.context();
  std::vector<uint32_t> chunks;
  uint64_t bytes = 0;
  for (size_t i = 0; i < job.missing.size(); ++i) {
    chunks.push_back(context.chunks()[job.missing[i]].ordinal);
    bytes += job.fills[i].bytes();
  }
  const auto& corpus = context.corpora()[context.chunks()[job.missing.front()].part];
  auto kept = tools_->keep(corpus, chunks, CopiedBy(bytes));
  if (kept.ok()) {
    job.kept = *std::move(kept);
  } else {
    Log().debug("auto: no copies at the cache of this host: {}", kept.status().ToString());
  }
}

absl::StatusOr<std::vector<std::shared_ptr<const LocalRows>>> RowCopier::Map(
    const PrefetchJob& job) const {
  const ContextState& context = job.context();
  std::vector<std::shared_ptr<const LocalRows>> mapped(job.missing.size());
  if (tools_->map == nullptr) return mapped;
  const Instant deadline = options_->clock->Now() + kMapTimeout;
  for (size_t i = 0; i < job.missing.size(); ++i) {
    if (!wanted()) return absl::CancelledError("the requester is closing");
    const ContextChunk& at = context.chunks()[job.missing[i]];
    auto rows = tools_->map({.corpus = job.kept ? job.kept : context.corpora()[at.part],
                             .chunk = at.ordinal,
                             .deadline = deadline,
                             .may_be_refused = true});
    if (rows.ok()) {
      mapped[i] = *std::move(rows);
      continue;
    }
    Log().debug("auto: a chunk is not mapped: {}", rows.status().ToString());
    // This chunk is not on this host; the next one may be.
    if (!absl::IsUnimplemented(rows.status())) break;
  }
  return mapped;
}

RowCopier::Recomputed RowCopier::Recompute(PrefetchJob& job) const {
  const ContextState& context = job.context();
  const Instant begin = options_->clock->Now();
  // Includes chunks in between that are already here: later rows are computed from earlier ones.
  RecomputeCall call;
  const ContextChunk& first = context.chunks()[job.missing.front()];
  call.corpus = context.corpora()[first.part];
  call.chunk_begin = first.ordinal;
  call.chunk_end = context.chunks()[job.missing.back()].ordinal + 1;
  std::vector<std::byte> unused;  // rows of chunks that are here
  call.rows = [&](uint32_t ordinal, uint32_t tensor) {
    for (size_t i = 0; i < job.missing.size(); ++i) {
      if (context.chunks()[job.missing[i]].ordinal == ordinal) return job.fills[i].tensor(tensor);
    }
    unused.resize(uint64_t{call.corpus->chunks[ordinal].token_count} *
                  context.geometry().tensor_row_bytes(tensor));
    return std::span(unused);
  };
  call.wanted = [this] { return wanted(); };
  Recomputed made;
  made.status = job.watched->recompute.make(call);
  for (uint32_t i = call.chunk_begin; i < call.chunk_end; ++i)
    made.tokens += call.corpus->chunks[i].token_count;
  made.took = options_->clock->Now() - begin;
  return made;
}

absl::Status RowCopier::Copy(PrefetchJob& job) const {
  // Neighbours are fetched together.
  for (size_t begin = 0, end = 0; begin < job.missing.size(); begin = end) {
    end = begin + 1;
    while (end < job.missing.size() && job.missing[end] == job.missing[end - 1] + 1) ++end;
    absl::Status status = CopyRows(job, begin, end);
    if (!status.ok() && job.kept != nullptr && wanted()) {
      job.kept = nullptr;  // fall back to the holders
      status = CopyRows(job, begin, end);
    }
    CKV_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status RowCopier::CopyRows(PrefetchJob& job, size_t begin, size_t end) const {
  const ContextState& context = job.context();
  const ContextChunk& first = context.chunks()[job.missing[begin]];
  const Geometry& geometry = context.geometry();
  const auto place = [&](const RowRun& rows) {
    const uint64_t row_bytes = geometry.tensor_row_bytes(rows.tensor);
    return job.fills[begin + (rows.chunk - first.ordinal)]
        .tensor(rows.tensor)
        .subspan(rows.token_begin * row_bytes, rows.token_count * row_bytes);
  };
  FetchCall call;
  call.corpus = job.kept ? job.kept : context.corpora()[first.part];
  call.chunk_begin = first.ordinal;
  call.chunk_end = first.ordinal + static_cast<uint32_t>(end - begin);
  uint64_t tokens = 0;
  for (size_t i = begin; i < end; ++i) tokens += context.chunks()[job.missing[i]].token_count;
  const uint32_t tensors = geometry.tensor_count();
  const auto tensors_each = static_cast<uint32_t>(
      std::clamp<uint64_t>(kSliceBytes / (tokens * geometry.row_bytes() + 1), 1, tensors));
  for (uint32_t tensor = 0; tensor < tensors; tensor += tensors_each) {
    if (!wanted()) return absl::CancelledError("the requester is closing");
    call.tensor_begin = tensor;
    call.tensor_end = std::min(tensors, tensor + tensors_each);
    call.deadline = options_->clock->Now() + options_->slice_timeout;
    CKV_RETURN_IF_ERROR(tools_->fetch(call, place, [this] { return wanted(); }));
  }
  return absl::OkStatus();
}

}  // namespace ckv
