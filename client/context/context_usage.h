// How a context is used: its calls, and whether it was closed.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "client/cost/live_window.h"

namespace ckv {

// Notified when a context has made the awaited number of calls, and when the context was closed.
class ContextWatcher {
 public:
  virtual ~ContextWatcher() = default;
  // Called on any thread, on the path of calls: must be short and must not wait.
  virtual void Due(uint64_t context_id) = 0;
};

// The shape of one call of a context.
struct CallShape {
  uint32_t row_count = 0;       // query rows of the context's segment
  uint32_t call_row_count = 0;  // query rows of all segments of the call
  uint32_t selected = 0;        // rows that each query row attends; 0 if dense
  uint32_t own_count = 0;       // the caller's own rows, attended on the same thread
  bool f32 = false;             // its partials are f32
  // Microseconds that the call took if all of its chunks were routed; otherwise 0.
  double routed_us = 0;
};

// Counts the calls of one context, and notifies the watcher that decides on its rows. Thread-safe:
// the threads of calls use CountCall and LookNow, the watcher's thread uses SetDueAt and
// ForgetRouted, and any thread closes the context and reads. The watcher is set before all of that.
class ContextUsage {
 public:
  // Sets the watcher and the id passed to it. Call before the context is used.
  void Watch(std::shared_ptr<ContextWatcher> watcher, uint64_t id) {
    watcher_ = std::move(watcher);
    watch_id_ = id;
  }
  bool watched() const { return watcher_ != nullptr; }

  // Counts a call of a watched context. On the hot path: takes no lock, except for the awaited
  // call.
  void CountCall(const CallShape& shape) {
    if (watcher_ == nullptr) return;
    row_count_.store(shape.row_count, std::memory_order_relaxed);
    // Times of calls of different sizes must not mix.
    if (call_row_count_.exchange(shape.call_row_count, std::memory_order_relaxed) !=
        shape.call_row_count)
      routed_window_.Clear();
    selected_.store(shape.selected, std::memory_order_relaxed);
    f32_.store(shape.f32, std::memory_order_relaxed);
    if (shape.own_count > 0) own_sum_.fetch_add(shape.own_count, std::memory_order_relaxed);
    if (shape.routed_us > 0) {
      const std::optional<double> us = routed_window_.Add(shape.routed_us);
      if (us) routed_us_.store(*us, std::memory_order_relaxed);
    }
    const uint64_t calls = call_count_.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (calls == due_at_.load(std::memory_order_seq_cst)) watcher_->Due(watch_id_);
  }
  uint64_t call_count() const { return call_count_.load(std::memory_order_acquire); }
  // The shape of the last call, without its own rows.
  CallShape last_call() const {
    return {
        row_count_.load(std::memory_order_relaxed), call_row_count_.load(std::memory_order_relaxed),
        selected_.load(std::memory_order_relaxed),  0,
        f32_.load(std::memory_order_relaxed),       0};
  }
  // Sum of own rows over all calls.
  uint64_t own_sum() const { return own_sum_.load(std::memory_order_relaxed); }
  // The time of a call that is all routed: the minimum of the last calls (BestWindow). Returns 0
  // before BestWindow::kCount calls.
  double routed_us() const { return routed_us_.load(std::memory_order_relaxed); }
  // Discards that time because calls have another shape now.
  void ForgetRouted() {
    routed_window_.Clear();
    routed_us_.store(0, std::memory_order_relaxed);
  }

  // Makes the watcher wait for `calls` calls in total. If they were already made, notifies it at
  // once.
  void SetDueAt(uint64_t calls) {
    due_at_.store(calls, std::memory_order_seq_cst);
    if (call_count_.load(std::memory_order_seq_cst) >= calls) watcher_->Due(watch_id_);
  }
  // Notifies the watcher not to wait for more calls, because facts it used have changed. Works once
  // until the next SetDueAt.
  void LookNow() {
    if (watcher_ != nullptr && due_at_.exchange(0, std::memory_order_seq_cst) != 0)
      watcher_->Due(watch_id_);
  }

  void Close() {
    if (closed_.exchange(true, std::memory_order_acq_rel) || watcher_ == nullptr) return;
    watcher_->Due(watch_id_);
  }
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<ContextWatcher> watcher_;  // null if there is no watcher
  uint64_t watch_id_ = 0;
  std::atomic<bool> closed_{false};
  std::atomic<uint64_t> call_count_{0};
  std::atomic<uint64_t> due_at_{1};
  std::atomic<uint32_t> row_count_{0}, call_row_count_{0}, selected_{0};
  std::atomic<uint64_t> own_sum_{0};
  std::atomic<bool> f32_{false};
  BestWindow routed_window_;
  std::atomic<double> routed_us_{0};
};

}  // namespace ckv
