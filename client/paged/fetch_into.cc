#include "client/paged/fetch_into.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/paged/splice.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

absl::Status CheckCall(const FetchCall& call, const PagedCache& cache, const Backend& backend) {
  if (call.corpus == nullptr) return absl::InvalidArgumentError("fetch: no corpus");
  if (call.chunk_begin >= call.chunk_end || call.chunk_end > call.corpus->chunks.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("fetch: chunks %d to %d of %d",
                                                      call.chunk_begin, call.chunk_end,
                                                      call.corpus->chunks.size()));
  }
  if (call.tensor_begin != cache.layer_begin() || call.tensor_end != cache.layer_end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: layers %d to %d into a cache of %d to %d", call.tensor_begin,
                        call.tensor_end, cache.layer_begin(), cache.layer_end()));
  }
  if (call.columns.bytes != 0 || call.columns.begin != 0)
    return absl::InvalidArgumentError("fetch: a cache takes whole rows, no columns");
  if (call.position.value_or(0) > uint64_t{kOffsetMax}) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: position %d, limit %d", *call.position, kOffsetMax));
  }
  const BackendReach& reach = backend.reach();
  if (!reach.scattered_to.Has(cache.memory()) || !reach.rotated_to.Has(cache.memory())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: the cache is in %s memory, which kernels of %s do not reach",
                        MemoryKindName(cache.memory()), backend.kernel_target()));
  }
  const std::string difference = DescribeDifference(cache.geometry(), call.corpus->geometry);
  if (!difference.empty())
    return absl::FailedPreconditionError("fetch: the cache's geometry differs: " + difference);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CacheFetch> CacheFetch::Begin(const FetchCall& call, PagedCache& cache,
                                             CacheSequenceId sequence, const Backend& backend) {
  CKV_RETURN_IF_ERROR(CheckCall(call, cache, backend));
  CacheFetch fetch(call, cache);
  fetch.canonical_ = call;
  fetch.canonical_.position.reset();
  uint64_t token_count = 0;
  for (uint32_t chunk = call.chunk_begin; chunk < call.chunk_end; ++chunk) {
    fetch.row_of_chunk_.push_back(token_count);
    token_count += call.corpus->chunks[chunk].token_count;
  }
  CKV_RETURN_IF_ERROR(cache.token_count(sequence).status());
  if (token_count > 0) {
    CKV_ASSIGN_OR_RETURN(CacheReservation reservation, cache.Reserve(sequence, token_count));
    fetch.reservation_.emplace(std::move(reservation));
  }
  fetch.next_ = {call.chunk_begin, call.tensor_begin};
  fetch.EnterChunk();
  return fetch;
}

// Returns the chunk's position in the sequence less its canonical position.
int64_t CacheFetch::DeltaOf(uint32_t chunk) const {
  if (!call_.position) return 0;
  return static_cast<int64_t>(*call_.position + RowOf(chunk)) -
         static_cast<int64_t>(call_.corpus->chunks[chunk].position);
}

// Skips chunks without tokens, for which no rows arrive.
void CacheFetch::EnterChunk() {
  const auto& chunks = call_.corpus->chunks;
  while (!whole() && chunks[next_.chunk].token_count == 0) ++next_.chunk;
  if (!whole()) rotation_ = SpliceRotation(cache_.geometry(), DeltaOf(next_.chunk));
}

FetchFrom CacheFetch::Resume() {
  next_token_ = 0;
  return next_;
}

ScatterList CacheFetch::Spans(const RowRun& run) const {
  return reservation_->Spans(run.tensor, RowOf(run.chunk) + run.token_begin, run.token_count);
}

absl::Status CacheFetch::SpliceRun(const FetchedRows& run, ComputeStream& stream) {
  const Geometry& geometry = cache_.geometry();
  if (!run.rows.empty()) {
    return Splice(rotation_, geometry, run.rows,
                  reservation_->From(run.tensor, RowOf(run.chunk) + run.token_begin), stream,
                  run.memory);
  }
  const ScatterList places = Spans(run);
  for (const std::span<std::byte> span : places.spans())
    CKV_RETURN_IF_ERROR(SpliceInPlace(rotation_, geometry, span, stream, cache_.memory()));
  return absl::OkStatus();
}

absl::Status CacheFetch::Take(const FetchedRows& run, ComputeStream& stream) {
  CKV_CHECK(!whole() && run.chunk == next_.chunk && run.tensor == next_.tensor &&
            run.token_begin == next_token_);
  absl::Status spliced = SpliceRun(run, stream);
  // The rows' slot is released next, whether the splice succeeded or not.
  spliced.Update(stream.Wait());
  CKV_RETURN_IF_ERROR(spliced);
  rows_taken_ += run.token_count;
  next_token_ += run.token_count;
  const uint32_t token_count = call_.corpus->chunks[run.chunk].token_count;
  if (next_token_ < token_count) return absl::OkStatus();
  ++whole_count_;
  next_token_ = 0;
  if (++next_.tensor == call_.tensor_end) {
    next_ = {next_.chunk + 1, call_.tensor_begin};
    EnterChunk();
  }
  return absl::OkStatus();
}

absl::Status CacheFetch::Commit() && {
  if (!whole()) return absl::DataLossError("the transfer ended before all rows had arrived");
  if (reservation_) std::move(*reservation_).Commit();
  return absl::OkStatus();
}

absl::Status CacheFetch::Describe(const absl::Status& status) const {
  if (status.ok() || !reservation_) return status;
  absl::Status described(
      status.code(),
      absl::StrFormat("fetch into %s, which stay free; whole up to chunk %d (%d to %d), layer %d "
                      "(%d to %d): %s",
                      reservation_->DescribeBlocks(), next_.chunk, call_.chunk_begin,
                      call_.chunk_end, next_.tensor, call_.tensor_begin, call_.tensor_end,
                      std::string(status.message())));
  // Keeps the retry hint of an overloaded holder.
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    described.SetPayload(type, payload);
  });
  return described;
}

}  // namespace ckv
