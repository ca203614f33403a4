// A fetch of the ABI: where its rows go, and pulls of parts of it.

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
#include "client/c/ckv_fetch.h"
#include "client/c/fetch/block_place.h"
#include "client/calls.h"
#include "client/holders/host_cache.h"
#include "client/requester.h"
#include "proto/base/clock.h"

namespace ckv::c {

class FetchArguments {
 public:
  // Reads a call. The caller's memory stays borrowed. `backend` is the requester's. Rows come after
  // the work that is on the call's stream now.
  //   InvalidArgument     as ckv_fetch.h says.
  //   ResourceExhausted, Internal  the device has no more streams, or failed.
  absl::Status Take(const ckv_fetch_call* call, Backend& backend);
  // Waits for that work, if the rows are written by this process. Before the first Pull.
  //   Internal            the device failed.
  //   DeadlineExceeded    it took longer than the call may. It is waited for all the same.
  absl::Status AwaitStream() const;

  // Has the cache of this host keep the call's chunks, for half of the call's time at most. Rows
  // come from there then, as far as it goes. Errors are in the log.
  void KeepHere(HostCache& cache);

  // Fetches some chunks and layers of the call, until `deadline`. `on_run` sees each run once it is
  // in its place; an error of it ends the fetch and is returned. Runs come again if the cache of
  // this host fails. Blocks are written behind `fence`. One thread at a time.
  absl::Status Pull(Requester& requester, uint32_t chunk_begin, uint32_t chunk_end,
                    uint32_t layer_begin, uint32_t layer_end, Instant deadline, WriteFence& fence,
                    absl::FunctionRef<absl::Status(const RowRun&)> on_run) const;

  uint64_t row_count() const { return first_token_.back() * (call_.layer_end - call_.layer_begin); }
  // The whole call: its ranges, trace and deadline.
  const FetchCall& call() const { return call_; }
  // kInstantMax if chunks are never handed back.
  Instant hand_back() const { return hand_back_; }
  // Bytes fetched of each row.
  uint32_t width() const { return width_; }

 private:
  absl::Status CheckLayout(const ckv_fetch_call& call);
  absl::Status TakeBlocks(const ckv_fetch_call& call);
  absl::Status TakeDevice(const ckv_fetch_call& call, Backend& backend);
  absl::Status PullFrom(Requester& requester, const FetchCall& call, WriteFence& fence,
                        absl::FunctionRef<absl::Status(const RowRun&)> on_run) const;
  absl::Status CopyToDevice(const FetchedRows& run, Instant deadline) const;
  uint64_t TokenOf(const RowRun& run) const {
    return first_token_[run.chunk - call_.chunk_begin] + run.token_begin;
  }
  std::byte* PlaceOf(const RowRun& run) const;

  FetchCall call_;
  std::shared_ptr<const Corpus> kept_;  // the same, at the cache of this host; or null
  Instant hand_back_ = kInstantMax;
  std::byte* rows_ = nullptr;
  uint64_t layer_stride_ = 0, token_stride_ = 0;
  uint32_t width_ = 0;
  std::vector<uint64_t> first_token_;      // one a chunk of the call, and the end
  std::unique_ptr<ComputeStream> stream_;  // behind the call's stream; null if nothing is
  bool to_device_ = false;                 // it copies to memory of a device
  std::optional<BlockPlace> blocks_;       // in place of rows_
};

}  // namespace ckv::c
