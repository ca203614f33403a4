// The arguments of a fetch of the C ABI, the destination of its rows, and the fetching of its
// parts.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "attention/backend.h"
#include "client/bindings/c/ckv_fetch.h"
#include "client/bindings/c/fetch/block_place.h"
#include "client/calls.h"
#include "client/holders/host_cache.h"
#include "client/requester.h"
#include "proto/base/clock.h"

namespace ckv::c {

class FetchArguments {
 public:
  // Reads a call. Call it first, and only once; after an error only destroy the object. Copies the
  // call and the block table. Only the memory for rows stays borrowed while the object lives.
  // `backend` is the requester's, and outlives the object. The caller has checked that the corpus
  // and the stream are of that requester, and refuses early_return_ns if it is not for a ticket.
  // Rows are written after the work that is on the call's stream now.
  //   InvalidArgument     as in ckv_fetch.h.
  //   ResourceExhausted, Internal  the device has no more streams, or failed.
  absl::Status Take(const ckv_fetch_call* call, Backend& backend);
  // Waits for the work on the call's stream, if there is one and this process writes the rows. Call
  // it before the first Fetch.
  //   Internal            the device failed.
  //   DeadlineExceeded    the work took longer than the call's timeout; it has been waited for.
  absl::Status AwaitStream() const;

  // Optional, before the first Fetch. Makes the cache of this host store the call's chunks, for at
  // most half of the call's time. Rows are then fetched from there as far as possible. Errors are
  // logged.
  void KeepHere(HostCache& cache);

  // Fetches some chunks and tensors of the call, until `deadline`. Ordinals and tensors are those
  // of the corpus, not relative to the call, and the ends are exclusive. Calls `on_run` on this
  // thread for each range of rows, once it is in its place, on a device, too. An error of `on_run`
  // ends the fetch and is returned. If the cache of this host fails, all ranges are fetched again
  // from their holders, so a token may be reported twice, in other ranges. Writes to blocks, and
  // only those, are made under `fence`; to cancel a fetch to rows, return an error from `on_run`.
  // Chunks and tensors must be within the call; nothing checks that. One thread at a time. After an
  // error, the same chunks may be fetched again.
  //   Cancelled           the fence is closed.
  //   Internal            the device failed.
  //   else                as Requester::Fetch.
  absl::Status Fetch(Requester& requester, uint32_t chunk_begin, uint32_t chunk_end,
                     uint32_t tensor_begin, uint32_t tensor_end, Instant deadline,
                     WriteFence& fence,
                     absl::FunctionRef<absl::Status(const RowRun&)> on_run) const;

  // Rows of the whole call over all its layers, whether a block's tokens are written or skipped.
  uint64_t row_count() const {
    return first_token_.back() * (call_.tensor_end - call_.tensor_begin);
  }
  // The whole call: ranges, trace and deadline.
  const FetchCall& call() const { return call_; }
  // When a ticket stops waiting for chunks without a row; the caller does that, not Fetch.
  // kInstantMax if the fetch has no early return.
  Instant early_return() const { return early_return_; }
  // The tensor of layer 0 in what is fetched: rows, or index keys.
  uint32_t layer_zero() const { return layer_zero_; }
  // Bytes fetched of each row.
  uint32_t width() const { return width_; }

 private:
  absl::Status CheckLayout(const ckv_fetch_call& call);
  absl::Status TakeBlocks(const ckv_fetch_call& call);
  absl::Status TakeDevice(const ckv_fetch_call& call, Backend& backend);
  absl::Status FetchInto(Requester& requester, const FetchCall& call, WriteFence& fence,
                         absl::FunctionRef<absl::Status(const RowRun&)> on_run) const;
  absl::Status CopyToDevice(const FetchedRows& run, Instant deadline) const;
  uint64_t TokenOf(const RowRun& run) const {
    return first_token_[run.chunk - call_.chunk_begin] + run.token_begin;
  }
  std::byte* PlaceOf(const RowRun& run) const;

  FetchCall call_;
  uint32_t layer_zero_ = 0;
  std::shared_ptr<const Corpus> kept_;  // the corpus with the call's chunks at the cache of this
                                        // host; or null
  Instant early_return_ = kInstantMax;
  std::byte* rows_ = nullptr;
  uint64_t layer_stride_ = 0, token_stride_ = 0;
  uint32_t width_ = 0;
  std::vector<uint64_t> first_token_;      // one per chunk of the call, and the end
  std::unique_ptr<ComputeStream> stream_;  // ordered after the call's stream; null if not needed
  bool to_device_ = false;                 // stream_ copies to device memory
  std::optional<BlockPlace> blocks_;       // used instead of rows_
};

}  // namespace ckv::c
