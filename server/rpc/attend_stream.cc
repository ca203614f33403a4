// The life of a request on a stream:
//
//   read      gRPC's thread; the stream's context is opened by a helper if the request names one
//   posted    to the loop, which submits it and polls its ticket
//   answered  by the loop, or by a helper if the call had to wait for a holder
//   written   gRPC's thread; only then does the request leave the count of those in flight
//
// A request keeps the stream alive until it is written.

#include "server/rpc/attend_stream.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/grpc/grpc_status.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"
#include "server/rpc/attend_request.h"
#include "server/rpc/trace_interceptor.h"

namespace ckv {
namespace {

// A request larger than this does not keep its memory for the next one.
constexpr size_t kRequestBytesKept = size_t{1} << 20;
// Bytes counted for a row's answer before its geometry is known: f32, d_v = 512.
constexpr uint64_t kAnswerRowBytes = 4 * 512 + 8;

// Returns true if a holder or the directory did not answer, so that nothing is known about the
// chunks.
bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// A stream that the gate refused.
class RefusedStream final : public AttendStreams::Reactor {
 public:
  RefusedStream(grpc::CallbackServerContext& context, const absl::Status& why) {
    if (const uint32_t us = RetryAfterUs(why); us > 0)
      context.AddTrailingMetadata(kRetryAfterKey, std::to_string(us));
    Finish(ToGrpc(why));
  }
  void OnDone() override { delete this; }
};

}  // namespace

// One stream. gRPC calls the reactions, each on any thread.
class AttendStream final : public AttendStreams::Reactor,
                           public std::enable_shared_from_this<AttendStream> {
 public:
  static constexpr uint32_t kInFlightCountMax = 16;
  // Bytes of requests in flight and of their answers, after which no other is read.
  static constexpr uint64_t kInFlightBytesMax = uint64_t{64} << 20;

  AttendStream(AttendStreams* streams, grpc::CallbackServerContext* context)
      : streams_(*streams), context_of_call_(context), trace_(TraceOf(*context)) {}

  void Start(ServiceGate::Stream entry) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    self_ = shared_from_this();
    entry_.emplace(std::move(entry));
    Settle();
  }
  // Ends the stream from outside.
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using ContextPtr = AttendStreams::ContextPtr;

  struct Item {
    v1::AttendRequest request;
    v1::AttendStreamReply reply;
    AttendJob job;
    Segment segment;
    AttendMemory memory;
    AnswerBuffers buffers;
    ContextPtr context;
    TraceContext trace;
    Instant deadline;
    Duration given{0};
    uint64_t bytes = 0;
    bool busy = false;
    bool again = false;  // its chunks were not where `context` has them
  };

  Item* TakeItem() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeItem(Item* item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the trace of a request: its own, the stream's, or a new one.
  TraceContext TraceOfRequest(const v1::AttendRequest& request) const;
  // Begins a request that was read: opens a context first, or posts it.
  void Begin(Item* item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Opens a context for `item` on this thread, which may block. If `known` is set, opens it again.
  void Open(Item* item, const ContextPtr& known) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeOpenError(Item* item, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes the call of a request over its context.
  absl::Status MakeCall(Item* item);
  void Post(Item* item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends an attend. If its chunks were moved, tries once more at their new places.
  void Complete(Item* item, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void Reply(Item* item, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts what can be started: a write, a read, or the end.
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartNextWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets nothing more begin, and makes what is in flight end soon.
  void Cancel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropWrites() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  AttendStreams& streams_;
  grpc::CallbackServerContext* const context_of_call_;
  const TraceContext trace_;  // the stream's; not set if its caller sent none
  absl::Mutex mu_;
  std::shared_ptr<AttendStream> self_ ABSL_GUARDED_BY(mu_);  // until OnDone
  std::optional<ServiceGate::Stream> entry_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Item>> items_ ABSL_GUARDED_BY(mu_);
  std::vector<Item*> free_ ABSL_GUARDED_BY(mu_);
  Item* reading_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::deque<Item*> pending_ ABSL_GUARDED_BY(mu_);  // behind the context that is being opened
  std::deque<Item*> writes_ ABSL_GUARDED_BY(mu_);   // the first is being written, if writing_
  ContextPtr context_ ABSL_GUARDED_BY(mu_);
  // Why there is no context.
  absl::Status open_error_ ABSL_GUARDED_BY(mu_) = absl::InvalidArgumentError(
      "attend: the first request of a stream must name a corpus, or a geometry and chunks");
  uint32_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;   // requests read and not yet written
  uint32_t hold_count_ ABSL_GUARDED_BY(mu_) = 0;  // ends of the call in progress
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool opening_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool idle_ ABSL_GUARDED_BY(mu_) = false;  // waits for its peer, and the gate has been notified
  bool reads_done_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool gate_ended_ ABSL_GUARDED_BY(mu_) = false;  // the gate allows no more writes
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

AttendStreams::Reactor* AttendStreams::Accept(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<AttendStream>(this, context);
  // The gate calls this with its lock held, so a helper does it.
  const auto cancel = [this, weak = std::weak_ptr<AttendStream>(stream)](const absl::Status& why) {
    loop_.RunSoon([weak, why] {
      if (const auto ended = weak.lock()) ended->End(why);
    });
  };
  auto entry = gate_.Enter(cancel, &kind_);
  if (!entry.ok()) return new RefusedStream(*context, entry.status());
  stream->Start(*std::move(entry));
  return stream.get();
}

bool AttendStreams::IsCurrent(const StreamContext* context,
                              const v1::AttendRequest& request) const {
  return context != nullptr && NamesSameChunks(request, context->naming) &&
         (request.corpus().empty() ||
          requester_.Kept(request.corpus(), request.tenant()) == context->chunks.corpus);
}

absl::StatusOr<AttendStreams::ContextPtr> AttendStreams::Open(const v1::AttendRequest& request,
                                                              Instant deadline) {
  auto opened = std::make_shared<StreamContext>();
  CKV_ASSIGN_OR_RETURN(opened->chunks, corpora_.ChunksOf(request, deadline));
  const ContextPart part = {opened->chunks.corpus, opened->chunks.uses};
  // A few threads open contexts for all streams, so they must not wait for unreachable holders.
  ContextSpec spec = {.parts = {&part, 1}, .await_holders = false};
  CKV_ASSIGN_OR_RETURN(spec.policy, PolicyOf(request));
  if (request.expect_steps() > 0) spec.expect.steps = request.expect_steps();
  CKV_ASSIGN_OR_RETURN(opened->context, requester_.Open(spec, deadline));
  opened->naming = NamingOf(request);
  opened->number = last_number_.fetch_add(1, std::memory_order_relaxed) + 1;
  return opened;
}

absl::StatusOr<AttendStreams::ContextPtr> AttendStreams::Reopen(const StreamContext& context,
                                                                Instant deadline) {
  // A new placement also has a new version. Only the chunks must be the same.
  v1::AttendRequest naming = context.naming;
  naming.clear_corpus_version();
  CKV_ASSIGN_OR_RETURN(ContextPtr opened, Open(naming, deadline));
  if (SameChunks(context.chunks, opened->chunks)) {
    opened->naming = context.naming;
    opened->number = context.number;
    return opened;
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "corpus '%s' has other chunks than when the stream named them: name them again",
      context.naming.corpus()));
}

AttendStream::Item* AttendStream::TakeItem() {
  if (free_.empty()) {
    items_.push_back(std::make_unique<Item>());
    free_.push_back(items_.back().get());
    Item* const item = items_.back().get();
    item->job.done = [this, item](const absl::Status& status) {
      const auto self = shared_from_this();
      Complete(item, status);
    };
  }
  Item* const item = free_.back();
  free_.pop_back();
  return item;
}

void AttendStream::FreeItem(Item* item) {
  if (item->bytes > kRequestBytesKept) {
    item->request = v1::AttendRequest();
    item->reply = v1::AttendStreamReply();
    item->buffers = AnswerBuffers();
    item->memory = {};
  }
  bytes_ -= std::exchange(item->bytes, 0);
  item->busy = item->again = false;
  item->context.reset();
  free_.push_back(item);
}

void AttendStream::OnReadDone(bool ok) {
  absl::MutexLock lock(&mu_);
  Item* const item = std::exchange(reading_, nullptr);
  // A request may still arrive after the stream has finished.
  if (!ok || finished_) {
    reads_done_ = true;
    free_.push_back(item);
    return Settle();
  }
  if (std::exchange(idle_, false)) entry_->EndWait();
  ++in_flight_;
  item->busy = true;
  item->job.unwanted.store(cancelled_, std::memory_order_relaxed);
  item->bytes = item->request.ByteSizeLong() + AttendMemoryBytes(item->request) +
                std::min(item->request.row_count(), kAttendRowCountMax) * kAnswerRowBytes;
  bytes_ += item->bytes;
  item->deadline = RequestDeadline(*context_of_call_, *streams_.options_.clock,
                                   item->request.timeout_ms(), streams_.options_.default_timeout);
  item->given = item->deadline - streams_.options_.clock->Now();
  item->trace = TraceOfRequest(item->request);
  if (opening_) {
    pending_.push_back(item);
  } else {
    Begin(item);
  }
  Settle();
}

TraceContext AttendStream::TraceOfRequest(const v1::AttendRequest& request) const {
  if (const auto own = ParseTraceparent(request.traceparent())) return *own;
  if (trace_.set() && request.traceparent().empty()) return trace_;
  const auto& sample = streams_.options_.sample;
  return NewTrace(sample && sample());
}

void AttendStream::Begin(Item* item) {
  const v1::AttendRequest& request = item->request;
  const bool names = NamesChunks(request);
  if (!names) {
    if (context_ == nullptr) return Reply(item, open_error_);
    if (item->again && item->context->number != context_->number) {
      return Reply(item,
                   absl::NotFoundError("attend: the chunks of the context that the stream had "
                                       "when it read this request have moved"));
    }
    if (absl::Status status = CheckUnnamed(request, context_->naming); !status.ok())
      return Reply(item, status);
  }
  const bool current = !names || streams_.IsCurrent(context_.get(), request);
  if (current && !context_->doubtful.load(std::memory_order_relaxed)) return Post(item);
  // A request that names its chunks means the current ones. Otherwise they must be the same as
  // before.
  opening_ = true;
  const v1::AttendRequest& naming = names ? request : context_->naming;
  const auto open = [this, item, known = names ? nullptr : context_] { Open(item, known); };
  if (naming.policy() == v1::CONTEXT_POLICY_CACHE) {
    streams_.loop_.RunLong(open);
  } else {
    streams_.loop_.Run(open);
  }
}

void AttendStream::Open(Item* item, const ContextPtr& known) {
  const auto self = shared_from_this();
  const ScopedTrace scope(item->trace);
  // Other requests wait behind it.
  const Instant deadline =
      std::min(item->deadline, streams_.options_.clock->Now() + streams_.options_.default_timeout);
  absl::StatusOr<ContextPtr> opened = absl::CancelledError("the caller has gone");
  if (!item->job.unwanted.load(std::memory_order_relaxed)) {
    opened = known != nullptr ? streams_.Reopen(*known, deadline)
                              : streams_.Open(item->request, deadline);
  }
  absl::MutexLock lock(&mu_);
  opening_ = false;
  if (opened.ok()) {
    context_ = *std::move(opened);
    Post(item);
  } else {
    TakeOpenError(item, opened.status());
  }
  while (!pending_.empty() && !opening_) {
    Item* const next = pending_.front();
    pending_.pop_front();
    Begin(next);
  }
  Settle();
}

void AttendStream::TakeOpenError(Item* item, const absl::Status& status) {
  const bool same = context_ != nullptr && (!NamesChunks(item->request) ||
                                            NamesSameChunks(item->request, context_->naming));
  // Some holders of the context may still answer, and the request may need only those.
  if (same && IsAway(status) && !item->again) return Post(item);
  if (!same) {
    context_ = nullptr;
    open_error_ = status;
  }
  Reply(item, status);
}

absl::Status AttendStream::MakeCall(Item* item) {
  const Geometry& geometry = item->context->chunks.corpus->geometry;
  const v1::AttendRequest& request = item->request;
  CKV_ASSIGN_OR_RETURN(const AttendParts parts, PartsOf(request, geometry, item->memory));
  item->segment = {.row_count = request.row_count(),
                   .context = &item->context->context,
                   .selection = parts.selection,
                   .row_limits = parts.row_limits};
  LayerCall& call = item->job.call;
  call = {.layer = request.layer(), .q = parts.q, .segments = {&item->segment, 1}};
  call.wire = parts.wire;
  call.precision = parts.precision;
  call.allow_approximate = request.allow_approximate();
  call.trace = item->trace;
  call.deadline = item->deadline;
  item->job.report = {};
  item->job.out = item->buffers.Make(request, geometry, *item->reply.mutable_reply());
  return absl::OkStatus();
}

void AttendStream::Post(Item* item) {
  item->context = context_;
  if (absl::Status status = MakeCall(item); !status.ok()) return Reply(item, status);
  // A request without rows only opens the context.
  if (item->request.row_count() == 0) return Reply(item, absl::OkStatus());
  streams_.loop_.Post(&item->job);
}

void AttendStream::Complete(Item* item, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  // If a holder is gone, its chunks may also be elsewhere. The next request checks.
  if (absl::IsNotFound(status) || absl::IsUnavailable(status))
    item->context->doubtful.store(true, std::memory_order_relaxed);
  // If time is left, the call has not waited for its holders: the chunks are elsewhere by now.
  const bool moved =
      absl::IsNotFound(status) || (absl::IsUnavailable(status) &&
                                   streams_.options_.clock->Now() + kAnswerMargin < item->deadline);
  if (!moved || std::exchange(item->again, true)) {
    Reply(item, status);
  } else if (opening_) {
    pending_.push_back(item);
  } else {
    Begin(item);
  }
  Settle();
}

void AttendStream::Reply(Item* item, const absl::Status& status) {
  streams_.counters_.Count(status);
  v1::AttendStreamReply& reply = item->reply;
  const grpc::Status answer = ToGrpc(WithTrace(WithTimeGiven(status, item->given), item->trace));
  if (!status.ok())
    LogFailedCall("/ckv.v1.RequesterService/AttendStream", ToGrpc(status), item->trace);
  reply.set_tag(item->request.tag());
  reply.set_code(static_cast<uint32_t>(answer.error_code()));
  reply.set_message(answer.error_message());
  reply.set_retry_after_us(RetryAfterUs(status));
  if (status.ok()) {
    item->buffers.Finish(item->request, item->job.report, *reply.mutable_reply());
  } else {
    reply.clear_reply();
  }
  writes_.push_back(item);
}

void AttendStream::Settle() {
  if (finished_) return;
  if (cancelled_ && !writing_) DropWrites();
  if (!writing_ && !writes_.empty()) StartNextWrite();
  const bool has_space = in_flight_ < kInFlightCountMax && bytes_ < kInFlightBytesMax;
  if (reading_ == nullptr && !reads_done_ && !cancelled_ && has_space && !streams_.gate_.closed()) {
    reading_ = TakeItem();
    StartRead(&reading_->request);
  }
  if (in_flight_ > 0 || hold_count_ > 0) return;
  if (gate_ended_ || (reads_done_ && !cancelled_ && streams_.gate_.closed()))
    return FinishWith(ServiceGate::ClosedError());
  if (cancelled_) return FinishWith(absl::CancelledError("the caller has gone"));
  if (reads_done_) return FinishWith(absl::OkStatus());
  if (idle_) return;
  idle_ = entry_->BeginWait();
  if (!idle_) FinishWith(ServiceGate::ClosedError());
}

void AttendStream::StartNextWrite() {
  if (entry_->BeginWrite()) {
    writing_ = true;
    StartWrite(&writes_.front()->reply);
    return;
  }
  gate_ended_ = true;
  Cancel();
  DropWrites();
}

void AttendStream::Cancel() {
  cancelled_ = true;
  for (const auto& item : items_) {
    if (item->busy) item->job.unwanted.store(true, std::memory_order_relaxed);
  }
  streams_.loop_.Wake();
}

void AttendStream::DropWrites() {
  for (Item* item : writes_) FreeItem(item);
  in_flight_ -= static_cast<uint32_t>(writes_.size());
  writes_.clear();
}

void AttendStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  entry_->EndWait();
  writing_ = false;
  FreeItem(writes_.front());
  writes_.pop_front();
  --in_flight_;
  if (!ok) Cancel();
  Settle();
}

void AttendStream::OnCancel() {
  absl::MutexLock lock(&mu_);
  Cancel();
  Settle();
}

void AttendStream::FinishWith(const absl::Status& status) {
  finished_ = true;
  Finish(ToGrpc(status));
}

void AttendStream::End(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    if (in_flight_ == 0) return FinishWith(why);
    // It was idle and has read a request since. The request is answered, and Settle ends the
    // stream.
    if (!writing_) return;
    ++hold_count_;
  }
  EndCall(context_of_call_)(why);
  absl::MutexLock lock(&mu_);
  --hold_count_;
  Settle();
}

void AttendStream::OnDone() {
  std::shared_ptr<AttendStream> self;
  absl::MutexLock lock(&mu_);
  entry_.reset();
  self = std::move(self_);
}

}  // namespace ckv
