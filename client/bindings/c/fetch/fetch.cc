// Fetches that return with the rows, and fetches under way.
//
// ckv_fetch works on the caller's thread. A ticket has its own thread; mu_ guards its progress:
//   settling  FetchFirstLayer fetches the first layer. After the time for an early return, it only
//             completes the chunk that has begun, which fixes chunk_end_
//   fetching  FetchLayer fetches each further layer of these chunks
//   ended     status_ is set, by the last layer or the first error
// Cancel closes the fence, so that blocks are no longer written, and the thread ends at its next
// check. Freeing a ticket cancels it and waits for the thread.

#include <atomic>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/bindings/c/ckv_fetch.h"
#include "client/bindings/c/fetch/fetch_arguments.h"
#include "client/bindings/c/handles.h"
#include "client/bindings/c/last_error.h"
#include "client/bindings/c/struct_size.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"

namespace ckv::c {
namespace {

absl::Status CheckFetchReport(const ckv_fetch_report* report) {
  return report == nullptr ? absl::OkStatus() : CheckStruct("ckv_fetch_report", report);
}

absl::Status GiveFetchReport(const FetchArguments& arguments, uint32_t chunk_end,
                             uint64_t row_count, Duration elapsed, ckv_fetch_report* to) {
  if (to == nullptr) return absl::OkStatus();
  ckv_fetch_report made = {};
  made.row_count = row_count;
  made.bytes = row_count * arguments.width();
  made.elapsed_ns = static_cast<uint64_t>(elapsed.count());
  made.chunk_count = chunk_end - arguments.call().chunk_begin;
  made.not_fetched_count = arguments.call().chunk_end - chunk_end;
  return GiveStruct("ckv_fetch_report", made, to);
}

absl::Status FetchNow(ckv_requester& requester, const ckv_fetch_call* from,
                      ckv_fetch_report* report) {
  CKV_RETURN_IF_ERROR(CheckFetchReport(report));
  FetchArguments arguments;
  CKV_RETURN_IF_ERROR(arguments.Take(from, *requester.backend));
  if (arguments.early_return() != kInstantMax)
    return absl::InvalidArgumentError("ckv_fetch_call: early_return_ns is for tickets");
  const FetchCall& call = arguments.call();
  const Instant begin = Clock::Real()->Now();
  CKV_RETURN_IF_ERROR(arguments.AwaitStream());
  if (requester.host_cache != nullptr) arguments.KeepHere(*requester.host_cache);
  WriteFence fence;
  CKV_RETURN_IF_ERROR(arguments.Fetch(*requester.requester, call.chunk_begin, call.chunk_end,
                                      call.tensor_begin, call.tensor_end, call.deadline, fence,
                                      [](const RowRun&) { return absl::OkStatus(); }));
  return GiveFetchReport(arguments, call.chunk_end, arguments.row_count(),
                         Clock::Real()->Now() - begin, report);
}

}  // namespace
}  // namespace ckv::c

// A fetch in progress. Its thread fetches the layers in order. The first layer settles which chunks
// are fetched.
struct ckv_fetch_ticket {
 public:
  ckv_fetch_ticket(ckv_requester* of, ckv::c::FetchArguments taken)
      : owner(of->owner),
        requester(of),
        arguments(std::move(taken)),
        chunk_end_(arguments.call().chunk_end) {
    requester->in_flight.fetch_add(1, std::memory_order_relaxed);
  }
  ~ckv_fetch_ticket() {
    Cancel();
    if (thread_.joinable()) thread_.join();
    requester->in_flight.fetch_sub(1, std::memory_order_release);
  }

  void Start() {
    thread_ = std::thread([this] { End(Run()); });
  }
  void Cancel() {
    cancelled_.store(true, std::memory_order_relaxed);
    fence_.Close();
  }

  // Waits until `layer_count` layers are there or the fetch has ended, and sets `done` to whether
  // that happened by `deadline`. Returns the fetch's error if it ended with fewer layers.
  absl::Status Wait(uint32_t layer_count, ckv::Instant deadline, bool& done)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return ended_ || layers_there_ >= layer_count;
    };
    done = ckv::Clock::Real()->Await(mu_, absl::Condition(&ready), deadline);
    return done && layers_there_ < layer_count ? status_ : absl::OkStatus();
  }

  absl::Status Report(ckv_fetch_report* report) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return ckv::c::GiveFetchReport(arguments, chunk_end_, row_count_, elapsed_, report);
  }

  // Returns the end of the chunks that are fetched.
  absl::StatusOr<uint32_t> SettledEnd() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (layers_there_ > 0) return chunk_end_;
    return absl::FailedPreconditionError("the first layer is not there yet");
  }

  const ckv::c::Owner owner;
  ckv_requester* const requester;
  ckv::c::FetchArguments arguments;  // unchanged once the first rows are requested

 private:
  absl::Status CheckCancelled() const {
    if (!cancelled_.load(std::memory_order_relaxed)) return absl::OkStatus();
    return absl::CancelledError("the fetch was cancelled");
  }

  absl::Status Run() noexcept;
  absl::Status FetchLayer(uint32_t tensor);
  absl::Status FetchFirstLayer();
  // The fetch of the first layer. An attempt at it ends when it is complete, at the deadline, or at
  // the time for an early return.
  struct FirstLayer {
    uint32_t next;   // the first chunk that is not whole
    uint32_t begun;  // one past the last chunk with an arrived row
    bool may_return_early;
    bool cut = false;
  };
  absl::Status FetchChunks(FirstLayer& at, uint32_t chunk_end);
  void LayerIsThere(uint64_t row_count) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ++layers_there_;
    row_count_ += row_count;
  }
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    status_ = std::move(status);
    elapsed_ = ckv::Clock::Real()->Now() - begin_;
    ended_ = true;
  }

  const ckv::Instant begin_ = ckv::Clock::Real()->Now();
  std::atomic<bool> cancelled_{false};  // guards no other data
  ckv::c::WriteFence fence_;
  uint64_t tokens_ = 0;  // tokens that are fetched; the thread's
  absl::Mutex mu_;
  uint32_t chunk_end_ ABSL_GUARDED_BY(mu_);
  uint32_t layers_there_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t row_count_ ABSL_GUARDED_BY(mu_) = 0;
  ckv::Duration elapsed_ ABSL_GUARDED_BY(mu_){0};
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

absl::Status ckv_fetch_ticket::FetchChunks(FirstLayer& at, uint32_t chunk_end) {
  const ckv::FetchCall& call = arguments.call();
  const ckv::Instant early_return = arguments.early_return();
  const ckv::Instant deadline =
      at.may_return_early ? std::min(call.deadline, early_return) : call.deadline;
  return arguments.Fetch(*requester->requester, at.next, chunk_end, call.tensor_begin,
                         call.tensor_begin + 1, deadline, fence_,
                         [&](const ckv::RowRun& run) -> absl::Status {
                           CKV_RETURN_IF_ERROR(CheckCancelled());
                           if (at.may_return_early && run.chunk >= at.begun &&
                               ckv::Clock::Real()->Now() >= early_return) {
                             at.cut = true;
                             return absl::CancelledError("the rest is not fetched: early return");
                           }
                           at.begun = std::max(at.begun, run.chunk + 1);
                           const uint32_t tokens = call.corpus->chunks[run.chunk].token_count;
                           if (run.token_begin + run.token_count == tokens) at.next = run.chunk + 1;
                           return absl::OkStatus();
                         });
}

absl::Status ckv_fetch_ticket::FetchFirstLayer() {
  const ckv::FetchCall& call = arguments.call();
  const ckv::Instant early_return = arguments.early_return();
  uint32_t chunk_end = call.chunk_end;
  FirstLayer at = {call.chunk_begin, call.chunk_begin, early_return < call.deadline};
  while (at.next < chunk_end) {
    CKV_RETURN_IF_ERROR(CheckCancelled());
    absl::Status status = FetchChunks(at, chunk_end);
    if (status.ok()) break;
    // The deadline was the time for an early return. A holder that requests a retry after
    // that time counts as late, too. RESOURCE_EXHAUSTED without a holder's hint is this process'
    // own error.
    const auto hint = ckv::RetryAfterOf(status);
    const bool asks_later = hint && ckv::Clock::Real()->Now() + *hint >= early_return;
    const bool late = at.may_return_early && (absl::IsDeadlineExceeded(status) || asks_later);
    if (!at.cut && !late) return status;
    // The chunk that has begun is fetched to its end, however long that takes.
    chunk_end = at.begun;
    at.may_return_early = at.cut = false;
  }
  for (uint32_t chunk = call.chunk_begin; chunk < chunk_end; ++chunk)
    tokens_ += call.corpus->chunks[chunk].token_count;
  absl::MutexLock lock(&mu_);
  chunk_end_ = chunk_end;
  return absl::OkStatus();
}

absl::Status ckv_fetch_ticket::FetchLayer(uint32_t tensor) {
  uint32_t chunk_end = 0;
  {
    absl::MutexLock lock(&mu_);
    chunk_end = chunk_end_;
  }
  const ckv::FetchCall& call = arguments.call();
  CKV_RETURN_IF_ERROR(CheckCancelled());
  if (tokens_ == 0) return absl::OkStatus();
  return arguments.Fetch(*requester->requester, call.chunk_begin, chunk_end, tensor, tensor + 1,
                         call.deadline, fence_,
                         [&](const ckv::RowRun&) { return CheckCancelled(); });
}

absl::Status ckv_fetch_ticket::Run() noexcept {
  try {
    const ckv::FetchCall& call = arguments.call();
    CKV_RETURN_IF_ERROR(arguments.AwaitStream());
    if (requester->host_cache != nullptr) arguments.KeepHere(*requester->host_cache);
    for (uint32_t tensor = call.tensor_begin; tensor < call.tensor_end; ++tensor) {
      CKV_RETURN_IF_ERROR(tensor == call.tensor_begin ? FetchFirstLayer() : FetchLayer(tensor));
      LayerIsThere(tokens_);
    }
    return absl::OkStatus();
  } catch (...) {
    return absl::ResourceExhaustedError("no memory");
  }
}

extern "C" ckv_status ckv_fetch(ckv_requester* requester, const ckv_fetch_call* call,
                                ckv_fetch_report* report) {
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&] {
    if (requester == nullptr) return ckv::c::Missing("requester");
    return ckv::c::FetchNow(*requester, call, report);
  });
}

extern "C" ckv_status ckv_fetch_begin(ckv_requester* requester, const ckv_fetch_call* call,
                                      ckv_fetch_ticket** ticket) {
  if (ticket != nullptr) *ticket = nullptr;
  return ckv::c::Guard(ckv::c::OwnerOf(requester), [&]() -> absl::Status {
    if (requester == nullptr) return ckv::c::Missing("requester");
    if (ticket == nullptr) return ckv::c::Missing("ticket");
    ckv::c::FetchArguments arguments;
    CKV_RETURN_IF_ERROR(arguments.Take(call, *requester->backend));
    auto made = std::make_unique<ckv_fetch_ticket>(requester, std::move(arguments));
    made->Start();
    *ticket = made.release();
    return absl::OkStatus();
  });
}

extern "C" ckv_status ckv_fetch_wait_layer(ckv_fetch_ticket* ticket, uint32_t layer,
                                           uint64_t timeout_ns, int* done) {
  return ckv::c::Guard(ckv::c::OwnerOf(ticket), [&]() -> absl::Status {
    if (ticket == nullptr) return ckv::c::Missing("ticket");
    if (done == nullptr) return ckv::c::Missing("done");
    const ckv::FetchCall& call = ticket->arguments.call();
    const uint32_t first = ticket->arguments.layer_zero();
    const uint32_t begin = call.tensor_begin - first, end = call.tensor_end - first;
    if (layer < begin || layer >= end) {
      return absl::InvalidArgumentError(
          absl::StrFormat("layer %d is not one of %d to %d", layer, begin, end));
    }
    bool there = false;
    absl::Status status = ticket->Wait(layer - begin + 1, ckv::c::After(timeout_ns), there);
    *done = there ? 1 : 0;
    return status;
  });
}

extern "C" ckv_status ckv_fetch_wait(ckv_fetch_ticket* ticket, uint64_t timeout_ns, int* done,
                                     ckv_fetch_report* report) {
  return ckv::c::Guard(ckv::c::OwnerOf(ticket), [&]() -> absl::Status {
    if (ticket == nullptr) return ckv::c::Missing("ticket");
    if (done == nullptr) return ckv::c::Missing("done");
    CKV_RETURN_IF_ERROR(ckv::c::CheckFetchReport(report));
    bool ended = false;
    // More layers than there are, so that it waits for the end only.
    const ckv::FetchCall& call = ticket->arguments.call();
    absl::Status status =
        ticket->Wait(call.tensor_end - call.tensor_begin + 1, ckv::c::After(timeout_ns), ended);
    *done = ended ? 1 : 0;
    if (!ended || !status.ok()) return status;
    return ticket->Report(report);
  });
}

extern "C" ckv_status ckv_fetch_not_fetched(ckv_fetch_ticket* ticket, uint32_t* chunks,
                                            uint32_t capacity, uint32_t* count) {
  return ckv::c::Guard(ckv::c::OwnerOf(ticket), [&]() -> absl::Status {
    if (ticket == nullptr) return ckv::c::Missing("ticket");
    if (count == nullptr || (chunks == nullptr && capacity > 0))
      return ckv::c::Missing("chunks or count");
    CKV_ASSIGN_OR_RETURN(const uint32_t end, ticket->SettledEnd());
    *count = ticket->arguments.call().chunk_end - end;
    for (uint32_t i = 0; i < std::min(capacity, *count); ++i) chunks[i] = end + i;
    return absl::OkStatus();
  });
}

extern "C" void ckv_fetch_cancel(ckv_fetch_ticket* ticket) {
  if (ticket != nullptr) ticket->Cancel();
}

extern "C" void ckv_fetch_ticket_free(ckv_fetch_ticket* ticket) { delete ticket; }
