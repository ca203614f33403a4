// The arguments of a fetch, and its writes to the caller's memory. In order:
//   Take         checks ranges, columns, and strides or blocks; opens a stream if needed
//   AwaitStream  waits for the caller's work on the stream `after`
//   KeepHere     may have the host cache copy the chunks, within half of the time
//   Fetch        fetches from the host cache, and if that fails, from the holders. Writes each
//                arrived range to blocks behind the fence, to the device, or to host memory

#include "client/bindings/c/fetch/fetch_arguments.h"

#include <cstring>
#include <numeric>
#include <type_traits>

#include "absl/strings/str_format.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/struct_size.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

static_assert(std::has_unique_object_representations_v<ckv_fetch_call>);
static_assert(std::has_unique_object_representations_v<ckv_fetch_report>);

// So that no product below overflows: tokens and layers of a call are below 2^50.
constexpr uint64_t kStrideMax = uint64_t{1} << 40;

absl::Status CheckRanges(const FetchCall& call) {
  const size_t chunks = call.corpus->chunks.size();
  if (call.chunk_begin >= call.chunk_end || call.chunk_end > chunks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: chunks %d to %d of %d", call.chunk_begin, call.chunk_end, chunks));
  }
  return absl::OkStatus();
}

absl::Status CheckLayers(uint32_t begin, uint32_t end, uint32_t layers) {
  if (begin < end && end <= layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("fetch: layers %d to %d of %d", begin, end, layers));
}

// A stream that was late is no holder's fault.
absl::Status CheckInTime(Instant deadline) {
  if (Clock::Real()->Now() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError("fetch: the work on the stream `after` took too long");
}

}  // namespace

absl::Status FetchArguments::CheckLayout(const ckv_fetch_call& call) {
  const uint64_t tokens = first_token_.back(), layers = call_.tensor_end - call_.tensor_begin;
  token_stride_ = call.token_stride == 0 ? width_ : call.token_stride;
  if (token_stride_ > kStrideMax || call.layer_stride > kStrideMax)
    return absl::InvalidArgumentError("fetch: a stride beyond 2^40");
  using Bytes = unsigned __int128;
  const Bytes layer_stride =
      call.layer_stride == 0 ? Bytes{tokens} * token_stride_ : Bytes{call.layer_stride};
  if (tokens == 0) return absl::OkStatus();
  const Bytes last_token = Bytes{tokens - 1} * token_stride_;
  const Bytes last_layer = Bytes{layers - 1} * layer_stride;
  if (last_token + last_layer + width_ > call.rows_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: rows_bytes is %d, too few for %d tokens of %d layers, %d B each",
                        call.rows_bytes, tokens, layers, width_));
  }
  layer_stride_ = static_cast<uint64_t>(layer_stride);
  const bool tokens_inside = token_stride_ >= width_ && layer_stride >= last_token + width_;
  const bool layers_inside = layer_stride >= width_ && token_stride_ >= last_layer + width_;
  if (!tokens_inside && !layers_inside && !(layers == 1 && token_stride_ >= width_))
    return absl::InvalidArgumentError("fetch: rows overlap by these strides");
  if (reinterpret_cast<uintptr_t>(rows_) % 2 != 0 || token_stride_ % 2 != 0 ||
      layer_stride_ % 2 != 0) {
    return absl::InvalidArgumentError("fetch: rows or a stride is odd");
  }
  return absl::OkStatus();
}

absl::Status FetchArguments::TakeDevice(const ckv_fetch_call& call, Backend& backend) {
  MemoryKind memory;
  CKV_RETURN_IF_ERROR(TakeMemory("fetch: rows", call.rows_memory, backend, memory));
  ComputeStream* const after = call.after == nullptr ? nullptr : call.after->stream.get();
  to_device_ = memory == MemoryKind::kDevice;
  if (!to_device_ && after == nullptr) return absl::OkStatus();
  if (to_device_ && !backend.reach().rotated_to.Has(memory)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fetch: rows are in device memory, which kernels of %s do not write",
                        backend.kernel_target()));
  }
  CKV_ASSIGN_OR_RETURN(stream_, backend.NewStream(/*thread_count=*/1));
  return backend.Order(after, *stream_);
}

absl::Status FetchArguments::Take(const ckv_fetch_call* from, Backend& backend) {
  ckv_fetch_call call;
  CKV_RETURN_IF_ERROR(TakeStruct("ckv_fetch_call", from, call));
  if (call.corpus == nullptr) return Missing("ckv_fetch_call: corpus");
  if (call.rows == nullptr && call.place == nullptr) return Missing("ckv_fetch_call: rows");
  const Corpus& corpus = *call.corpus->corpus;
  call_.corpus = call.corpus->corpus;
  call_.chunk_begin = call.chunk_begin;
  call_.chunk_end =
      call.chunk_end == 0 ? static_cast<uint32_t>(corpus.chunks.size()) : call.chunk_end;
  const Geometry& geometry = corpus.geometry;
  const uint32_t layer_end = call.layer_end == 0 ? geometry.layers : call.layer_end;
  CKV_RETURN_IF_ERROR(CheckLayers(call.layer_begin, layer_end, geometry.layers));
  CKV_ASSIGN_OR_RETURN(layer_zero_, TensorOf(geometry, 0, call.index_keys != 0));
  call_.tensor_begin = layer_zero_ + call.layer_begin;
  call_.tensor_end = layer_zero_ + layer_end;
  CKV_RETURN_IF_ERROR(CheckRanges(call_));
  if (call.rotate != 0) call_.position = call.position;
  if (call.column_bytes == 0 && call.column_begin != 0)
    return absl::InvalidArgumentError("ckv_fetch_call: column_begin without column_bytes");
  call_.columns = {call.column_begin, call.column_bytes};
  const uint32_t row_bytes = geometry.tensor_row_bytes(layer_zero_);
  width_ = call.column_bytes == 0 ? row_bytes : call.column_bytes;
  if (width_ > row_bytes)
    return absl::InvalidArgumentError("ckv_fetch_call: columns beyond the row");
  CKV_RETURN_IF_ERROR(TakeTrace(call.traceparent, call_.trace));
  call_.deadline = AfterField(call.timeout_ns);
  if (call.early_return_ns != 0) early_return_ = After(call.early_return_ns);
  rows_ = static_cast<std::byte*>(call.rows);
  first_token_.assign(1, 0);
  for (uint32_t chunk = call_.chunk_begin; chunk < call_.chunk_end; ++chunk)
    first_token_.push_back(first_token_.back() + corpus.chunks[chunk].token_count);
  if (call.place == nullptr) CKV_RETURN_IF_ERROR(CheckLayout(call));
  CKV_RETURN_IF_ERROR(TakeDevice(call, backend));
  return call.place == nullptr ? absl::OkStatus() : TakeBlocks(call);
}

absl::Status FetchArguments::TakeBlocks(const ckv_fetch_call& call) {
  if (call.rows != nullptr || call.rows_bytes != 0 || call.layer_stride != 0 ||
      call.token_stride != 0 || call.column_bytes != 0) {
    return absl::InvalidArgumentError(
        "ckv_fetch_call: rows, strides or columns together with a place in blocks; set one of the "
        "two");
  }
  return blocks_.emplace().Take(call.place, first_token_.back(),
                                call_.tensor_end - call_.tensor_begin, width_,
                                to_device_ ? MemoryKind::kDevice : MemoryKind::kHost);
}

std::byte* FetchArguments::PlaceOf(const RowRun& run) const {
  return rows_ + (run.tensor - call_.tensor_begin) * layer_stride_ + TokenOf(run) * token_stride_;
}

// Waits for the copy, because the run is in a lane slot that is released next.
absl::Status FetchArguments::CopyToDevice(const FetchedRows& run, Instant deadline) const {
  Backend& backend = stream_->backend();
  const RopeRotation identity(call_.corpus->geometry.rope, call_.corpus->geometry.d_rope, 0);
  const bool dense = token_stride_ == width_;
  const uint32_t step = dense ? run.token_count : 1;
  std::byte* to = PlaceOf(run);
  absl::Status copied;
  for (uint32_t i = 0; i < run.token_count && copied.ok(); i += step, to += token_stride_) {
    const RowView from = {run.rows.data() + size_t{i} * width_, step, width_, run.memory};
    copied = backend.Rotate(identity, from, width_, {to, MemoryKind::kDevice}, *stream_);
  }
  copied.Update(stream_->Wait());
  CKV_RETURN_IF_ERROR(copied);
  return CheckInTime(deadline);
}

absl::Status FetchArguments::AwaitStream() const {
  // Waits for the engine here: a write to blocks must not wait for it behind the fence, because a
  // cancel waits for the fence.
  if (stream_ == nullptr || (to_device_ && !blocks_)) return absl::OkStatus();
  CKV_RETURN_IF_ERROR(stream_->Wait());
  return CheckInTime(call_.deadline);
}

absl::Status FetchArguments::Fetch(Requester& requester, uint32_t chunk_begin, uint32_t chunk_end,
                                   uint32_t tensor_begin, uint32_t tensor_end, Instant deadline,
                                   WriteFence& fence,
                                   absl::FunctionRef<absl::Status(const RowRun&)> on_run) const {
  FetchCall call = call_;
  call.chunk_begin = chunk_begin;
  call.chunk_end = chunk_end;
  call.tensor_begin = tensor_begin;
  call.tensor_end = tensor_end;
  call.deadline = deadline;
  if (call.position) *call.position += first_token_[chunk_begin - call_.chunk_begin];
  if (kept_ != nullptr) {
    call.corpus = kept_;
    bool ended = false;
    absl::Status status = FetchInto(requester, call, fence, [&](const RowRun& run) {
      absl::Status taken = on_run(run);
      ended = !taken.ok();
      return taken;
    });
    if (status.ok() || ended || absl::IsCancelled(status) || Clock::Real()->Now() >= deadline)
      return status;
    Log().warn("fetch: the cache of this host fails, so rows are fetched from their holders: {}",
               status.ToString());
    call.corpus = call_.corpus;
  }
  return FetchInto(requester, call, fence, on_run);
}

void FetchArguments::KeepHere(HostCache& cache) {
  const Instant now = Clock::Real()->Now();
  const Instant deadline =
      call_.deadline == kInstantMax ? kInstantMax : now + (call_.deadline - now) / 2;
  std::vector<uint32_t> chunks(call_.chunk_end - call_.chunk_begin);
  std::iota(chunks.begin(), chunks.end(), call_.chunk_begin);
  auto kept = cache.Keep(call_.corpus, chunks, deadline);
  if (kept.ok()) {
    kept_ = *std::move(kept);
    return;
  }
  Log().debug("fetch: {}", kept.status().ToString());
}

absl::Status FetchArguments::FetchInto(
    Requester& requester, const FetchCall& call, WriteFence& fence,
    absl::FunctionRef<absl::Status(const RowRun&)> on_run) const {
  // Copies from the lane's slot, because a cancel cannot stop a holder that writes to the blocks
  // itself.
  if (blocks_) {
    return requester.Fetch(call, [&](const FetchedRows& run) {
      const RowView rows = {run.rows.data(), run.token_count, width_, run.memory};
      CKV_RETURN_IF_ERROR(fence.Write([&] {
        return blocks_->Write(run.tensor - call_.tensor_begin, TokenOf(run), rows, stream_.get());
      }));
      return on_run(run);
    });
  }
  if (to_device_) {
    return requester.Fetch(call, [&](const FetchedRows& run) {
      CKV_RETURN_IF_ERROR(CopyToDevice(run, call.deadline));
      return on_run(run);
    });
  }
  if (token_stride_ == width_) {
    return requester.Fetch(
        call,
        [&](const RowRun& run) {
          return std::span(PlaceOf(run), size_t{run.token_count} * width_);
        },
        [&](const FetchedRows& run) { return on_run(run); });
  }
  return requester.Fetch(call, [&](const FetchedRows& run) {
    std::byte* to = PlaceOf(run);
    for (uint32_t i = 0; i < run.token_count; ++i, to += token_stride_)
      std::memcpy(to, run.rows.data() + size_t{i} * width_, width_);
    return on_run(run);
  });
}

}  // namespace ckv::c
