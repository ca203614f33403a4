// A resolved context: its chunks in the order of the fixed tree, their rotations, and the chunk of
// each of its rows.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "attention/rope.h"
#include "client/calls.h"
#include "client/decide/live_window.h"
#include "client/near/near_rows.h"
#include "proto/corpus.h"
#include "proto/geometry.h"

namespace ckv {

// One chunk of a context. Has at least one token.
struct ContextChunk {
  uint32_t part = 0;     // the corpus, in ContextState::corpora
  uint32_t ordinal = 0;  // in that corpus
  uint32_t token_count = 0;
  uint32_t rotation = 0;  // in ContextState::rotations: how to rotate its query rows
};

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

// Immutable except for its call counts, Close and the local row cache, so any thread may read it.
// The cost of a call grows with the chunks that it touches, not with the context.
class ContextState {
 public:
  // Resolves the parts. Chunks without tokens are omitted: they add nothing to any row.
  //   InvalidArgument     There is no part, or more than kContextPartCountMax. A part has no
  //                       corpus, or geometries differ. An ordinal is out of range or an offset is
  //                       beyond kOffsetMax. A chunk is listed twice.
  static absl::StatusOr<std::shared_ptr<ContextState>> Make(std::span<const ContextPart> parts);

  const Geometry& geometry() const { return corpora_.front()->geometry; }
  std::span<const std::shared_ptr<const Corpus>> corpora() const { return corpora_; }
  // In the order of the tree: part by part, by ascending ordinals within each.
  std::span<const ContextChunk> chunks() const { return chunks_; }
  std::span<const RopeRotation> rotations() const { return rotations_; }
  // The number of rows of all chunks, as selections count them.
  uint64_t token_count() const { return token_count_; }

  // The first row of one of chunks().
  uint64_t first_row(uint32_t chunk) const { return first_rows_[chunk]; }

  struct RowPlace {
    uint32_t chunk = 0;  // in chunks()
    uint32_t row = 0;    // in that chunk
  };
  // Returns the place of a row below token_count() and 2^31. Needs no division, and one load if all
  // chunks but the last have the same number of tokens. Otherwise needs a few loads, or more if
  // many small chunks are among large ones.
  RowPlace Find(uint32_t row) const {
    if (tokens_each_ == 0) return FindInBuckets(row);
    // Exact for 31 bits: Granlund and Montgomery, "Division by invariant integers", theorem 4.2.
    const auto start = static_cast<uint32_t>(row * each_multiplier_ >> each_shift_);
    return {starts_[start].chunk, row - start * tokens_each_};
  }

  // The locally cached rows, or null if there are none. A call keeps using the table that it got.
  std::shared_ptr<const NearTable> near() const ABSL_LOCKS_EXCLUDED(near_mu_) {
    if (!has_near_.load(std::memory_order_acquire)) return nullptr;
    absl::MutexLock lock(&near_mu_);
    return near_;
  }
  bool near_same_bits() const { return near_same_bits_.load(std::memory_order_relaxed); }
  // Calls that begin from now on use `near`: a table with one entry per chunk, or null.
  // `same_bits`: local answers have the same bits as those of the chunks' holders (one kernel
  // target).
  void SetNear(std::shared_ptr<const NearTable> near, bool same_bits)
      ABSL_LOCKS_EXCLUDED(near_mu_) {
    absl::MutexLock lock(&near_mu_);
    near_same_bits_.store(same_bits, std::memory_order_relaxed);
    has_near_.store(near != nullptr, std::memory_order_release);
    near_.swap(near);
  }

  // Records bytes of rows that were copied to the local row cache for this context, until a call
  // reports them.
  void AddPulled(uint64_t bytes) { pulled_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  uint64_t TakePulled() const {
    if (pulled_bytes_.load(std::memory_order_relaxed) == 0) return 0;
    return pulled_bytes_.exchange(0, std::memory_order_relaxed);
  }

  // Sets the watcher and the id passed to it. Call before the context is used.
  void Watch(std::shared_ptr<ContextWatcher> watcher, uint64_t id) {
    watcher_ = std::move(watcher);
    watch_id_ = id;
  }
  // Counts a call of a watched context. On the hot path: takes no lock, except for the awaited
  // call.
  void CountCall(const CallShape& shape) const {
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
  bool watched() const { return watcher_ != nullptr; }
  // Makes the watcher wait for `calls` calls in total. If they were already made, notifies it at
  // once.
  void SetDueAt(uint64_t calls) {
    due_at_.store(calls, std::memory_order_seq_cst);
    if (call_count_.load(std::memory_order_seq_cst) >= calls) watcher_->Due(watch_id_);
  }
  // Notifies the watcher not to wait for more calls, because facts it used have changed. Works once
  // until the next SetDueAt.
  void LookNow() const {
    if (watcher_ != nullptr && due_at_.exchange(0, std::memory_order_seq_cst) != 0)
      watcher_->Due(watch_id_);
  }

  void Close() {
    if (closed_.exchange(true, std::memory_order_acq_rel) || watcher_ == nullptr) return;
    watcher_->Due(watch_id_);
  }
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

 private:
  ContextState() = default;
  absl::Status AddPart(const ContextPart& part);
  absl::Status AddChunk(uint32_t part, const ChunkUse& use);
  absl::Status CheckNoIdTwice() const;
  uint32_t RotationFor(int64_t offset);
  void Sort();
  void IndexRows();
  void IndexBuckets();
  RowPlace FindInBuckets(uint32_t row) const;

  // The first row of a chunk. Selections count rows in the order of the spec.
  struct Start {
    uint32_t row = 0;
    uint32_t chunk = 0;
  };

  std::vector<std::shared_ptr<const Corpus>> corpora_;
  std::vector<ContextChunk> chunks_;
  std::vector<uint64_t> first_rows_;  // the first row of each chunk
  std::vector<int64_t> offsets_;      // the offset of each rotation
  absl::flat_hash_map<int64_t, uint32_t> rotation_of_offset_;
  std::vector<RopeRotation> rotations_;
  uint64_t token_count_ = 0;
  std::vector<Start> starts_;  // by ascending rows
  // Tokens of every chunk but the last in the spec; 0 if they differ. Division by it uses the two
  // below.
  uint32_t tokens_each_ = 0;
  uint64_t each_multiplier_ = 0;
  uint32_t each_shift_ = 0;
  // The last start at or before the first row of each block of 2^bucket_shift_ rows, plus one
  // entry.
  std::vector<uint32_t> buckets_;
  uint32_t bucket_shift_ = 0;
  std::atomic<bool> closed_{false};
  std::shared_ptr<ContextWatcher> watcher_;  // null if there is no watcher
  uint64_t watch_id_ = 0;
  mutable std::atomic<uint64_t> pulled_bytes_{0};
  mutable std::atomic<uint64_t> call_count_{0};
  mutable std::atomic<uint64_t> due_at_{1};
  mutable std::atomic<uint32_t> row_count_{0}, call_row_count_{0}, selected_{0};
  mutable std::atomic<uint64_t> own_sum_{0};
  mutable std::atomic<bool> f32_{false};
  mutable BestWindow routed_window_;
  mutable std::atomic<double> routed_us_{0};
  mutable absl::Mutex near_mu_;
  std::shared_ptr<const NearTable> near_ ABSL_GUARDED_BY(near_mu_);
  std::atomic<bool> near_same_bits_{false};
  std::atomic<bool> has_near_{false};  // contexts without local rows need no lock
};

}  // namespace ckv
