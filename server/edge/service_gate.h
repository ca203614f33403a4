// Counts a server's calls and streams in progress, limits the streams, and ends them in a drain.

#pragma once

#include <cstdint>
#include <functional>
#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"

namespace ckv {

// A stream holds a thread for as long as its peer likes, unless its kind says otherwise. So streams
// may take only a part of the threads, and unary calls, above all keep-alives of leases, always
// find one. Thread-safe.
class ServiceGate {
 public:
  // `stream_count_max` limits the streams that hold threads.
  explicit ServiceGate(uint32_t stream_count_max) : stream_count_max_(stream_count_max) {}
  ServiceGate(const ServiceGate&) = delete;
  ServiceGate& operator=(const ServiceGate&) = delete;

  // Streams that do the same work, with a limit of their own. It belongs to one gate, which counts
  // them, and must outlive its streams.
  class Kind {
   public:
    // `name` is used in errors, in the plural ("puts"), and must outlive this.
    Kind(const char* name, uint32_t count_max, bool holds_thread = true)
        : name_(name), count_max_(count_max), holds_thread_(holds_thread) {}
    Kind(const Kind&) = delete;
    Kind& operator=(const Kind&) = delete;

   private:
    friend class ServiceGate;
    const char* const name_;
    const uint32_t count_max_;
    const bool holds_thread_;
    uint32_t count_ = 0;  // guarded by the gate
  };

  // Ends a stream from outside its handler: the peer gets this status, and the handler's wait for
  // it returns. Called at most once a stream, from any thread, and must not block.
  using CancelStream = std::function<void(const absl::Status& why)>;

  // One stream, from Enter to its end. Movable; used by one thread at a time. The gate must outlive
  // it.
  class Stream {
   public:
    Stream(Stream&& other) noexcept;
    Stream& operator=(Stream&&) = delete;
    ~Stream();

    // Around a wait for the peer, which Close cuts short, and CancelOverdue from `until` on.
    // BeginWait returns false once closed: end the stream with ClosedError instead.
    bool BeginWait(Instant until = kInstantMax) ABSL_LOCKS_EXCLUDED(gate_->mu_);
    // Around a write to a peer that reads on. Close leaves it alone, so that answers under way
    // arrive. Returns false after End: end the stream with ClosedError instead.
    bool BeginWrite() ABSL_LOCKS_EXCLUDED(gate_->mu_);
    void EndWait() ABSL_LOCKS_EXCLUDED(gate_->mu_);

   private:
    friend class ServiceGate;
    struct Entry {
      CancelStream cancel;
      Kind* kind = nullptr;
      bool waiting = false;
      bool writing = false;  // waits in a write
      bool stuck = false;    // was in this write when EndStuck was last called
      bool cancelled = false;
      Instant until = kInstantMax;
      bool holds_thread() const { return kind == nullptr || kind->holds_thread_; }
    };
    Stream(ServiceGate* gate, std::list<Entry>::iterator entry) : gate_(gate), entry_(entry) {}

    ServiceGate* gate_;
    std::list<Entry>::iterator entry_;
  };

  //   Unavailable         closed: this server drains.
  //   ResourceExhausted   stream_count_max streams are open, or as many of `kind` as may be.
  absl::StatusOr<Stream> Enter(CancelStream cancel, Kind* kind = nullptr) ABSL_LOCKS_EXCLUDED(mu_);

  // One unary call, which a drain waits for. Movable; the gate must outlive it.
  class Call {
   public:
    Call(Call&& other) noexcept;
    Call& operator=(Call&&) = delete;
    ~Call();

   private:
    friend class ServiceGate;
    explicit Call(ServiceGate* gate) : gate_(gate) {}
    ServiceGate* gate_;
  };
  // Enters a unary call.
  //   Unavailable         closed: this server drains.
  absl::StatusOr<Call> EnterCall() ABSL_LOCKS_EXCLUDED(mu_);

  // A drain has three steps, and each ends streams with ClosedError. Close lets nothing in and ends
  // the streams that wait for their peers. Those that are busy or write go on.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the streams that are in the same write as at the call before. Called now and then, so a
  // peer that takes nothing for that time does not hold the drain up.
  void EndStuck() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the rest, at the latest at their next wait.
  void End() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the streams whose wait has lasted beyond its limit with DeadlineExceeded. Called now and
  // then.
  void CancelOverdue(Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until nothing is in progress. Returns false if that did not happen before `deadline`.
  bool AwaitIdle(Clock& clock, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  bool closed() const ABSL_LOCKS_EXCLUDED(mu_);
  // Unavailable: what a call gets that comes after Close, and a stream that Close ends.
  static absl::Status ClosedError();

 private:
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return streams_.empty() && call_count_ == 0;
  }
  static void Cancel(Stream::Entry& entry, const absl::Status& why);
  // Ends the streams for which `ends` is true.
  void CancelIf(bool (*ends)(const Stream::Entry&)) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t stream_count_max_;
  mutable absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Stream::Entry> streams_ ABSL_GUARDED_BY(mu_);
  uint32_t thread_count_ ABSL_GUARDED_BY(mu_) = 0;  // streams that hold a thread
  uint32_t call_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv
