// Counts a server's calls and streams in progress, limits the streams, and ends streams in a drain.

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

// A stream occupies a thread for as long as its peer keeps it open, unless its kind is declared
// otherwise. So streams may use only part of the threads, which leaves some for unary calls, above
// all keep-alives of leases. Thread-safe.
class ServiceGate {
 public:
  // `stream_count_max` limits the streams that occupy threads.
  explicit ServiceGate(uint32_t stream_count_max) : stream_count_max_(stream_count_max) {}
  ServiceGate(const ServiceGate&) = delete;
  ServiceGate& operator=(const ServiceGate&) = delete;

  // Streams that do the same work, with their own limit. A kind belongs to one gate, which counts
  // its streams, and must outlive them.
  class Kind {
   public:
    // `name` is the plural used in errors ("puts"), and must outlive the kind.
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

  // Ends a stream from outside its handler: the peer receives the status `why`, and the handler's
  // wait for the peer returns. Called at most once per stream, from any thread, with the gate's
  // lock held: must not block or call the gate.
  using CancelStream = std::function<void(const absl::Status& why)>;

  // One stream, from Enter to its end. Movable; used by one thread at a time. The gate must outlive
  // it.
  class Stream {
   public:
    Stream(Stream&& other) noexcept;
    Stream& operator=(Stream&&) = delete;
    ~Stream();

    // Call before a wait for the peer, and EndWait after it. Close interrupts the wait, as does
    // CancelOverdue from `until` on. Returns false once closed: end the stream with ClosedError.
    bool BeginWait(Instant until = kInstantMax) ABSL_LOCKS_EXCLUDED(gate_->mu_);
    // Call before a write to a peer that keeps reading, and EndWait after it. Close does not
    // interrupt the write, so replies in progress arrive. Returns false after End: end the stream
    // with ClosedError.
    bool BeginWrite() ABSL_LOCKS_EXCLUDED(gate_->mu_);
    void EndWait() ABSL_LOCKS_EXCLUDED(gate_->mu_);

   private:
    friend class ServiceGate;
    struct Entry {
      CancelStream cancel;
      Kind* kind = nullptr;
      bool waiting = false;
      bool writing = false;  // the wait is a write
      bool stuck = false;    // was in this same write at the last EndStuck
      bool cancelled = false;
      Instant until = kInstantMax;
      bool holds_thread() const { return kind == nullptr || kind->holds_thread_; }
    };
    Stream(ServiceGate* gate, std::list<Entry>::iterator entry) : gate_(gate), entry_(entry) {}

    ServiceGate* gate_;
    std::list<Entry>::iterator entry_;
  };

  // Enters a stream.
  //   Unavailable         closed: this server drains.
  //   ResourceExhausted   stream_count_max streams are open, or the limit of `kind` is reached.
  absl::StatusOr<Stream> Enter(CancelStream cancel, Kind* kind = nullptr) ABSL_LOCKS_EXCLUDED(mu_);

  // One unary call in progress, which a drain waits for. Movable; the gate must outlive it.
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

  // A drain has three steps: Close, EndStuck and End. Each ends streams with ClosedError. Close
  // refuses new calls and streams, and ends the streams that wait for their peers. Streams that
  // compute or write continue.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the streams that are still in the same write as at the previous call. Call periodically,
  // so that a peer that reads nothing between two calls does not delay the drain.
  void EndStuck() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all other streams, at the latest at their next wait.
  void End() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the streams whose wait has passed its `until` with DeadlineExceeded. Call periodically.
  void CancelOverdue(Instant now) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until no call or stream is in progress. Returns false if `deadline` passes before that.
  bool AwaitIdle(Clock& clock, Instant deadline) ABSL_LOCKS_EXCLUDED(mu_);
  bool closed() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns Unavailable: the status of calls that arrive after Close and of streams that a drain
  // ends.
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
  uint32_t thread_count_ ABSL_GUARDED_BY(mu_) = 0;  // streams that occupy a thread
  uint32_t call_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace ckv
