// A backend as late and as closed as the interface allows one to be, with this processor's bits.
//
// Work is done when its stream is waited for, and not before. So code that reads an answer without
// a Wait, or gives a slot back too early, gets wrong bytes. Memory of its "device" can be touched
// only while work is done: code that touches it at another time ends the process. So does an
// operation on a view of pinned memory, if a byte of it was neither pinned (Pin) nor allocated as
// pinned.

#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "attention/backend.h"
#include "proto/base/status.h"
#include "tests/support/pinned_ranges.h"

namespace ckv::test {

class DeferredBackend final : public Backend {
 public:
  // `kernel_target` is the name that it gives its bits; if empty, this processor's.
  explicit DeferredBackend(std::string_view kernel_target = "")
      : DeferredBackend(ReachAll(), kernel_target) {}
  explicit DeferredBackend(const BackendReach& reach, std::string_view kernel_target = "")
      : Backend(reach, MemoryKind::kDevice), kernel_target_(kernel_target) {}

  static BackendReach ReachAll() {
    const MemoryKinds all = {MemoryKind::kHost, MemoryKind::kPinned, MemoryKind::kDevice};
    return {all, all, all, all, all, all, all, all, all, /*paged_rows=*/true};
  }
  // The reach of a backend that can use only memory that it has or has pinned, like a GPU without
  // the system's page tables.
  static BackendReach ReachPinned() {
    const MemoryKinds kinds = {MemoryKind::kPinned, MemoryKind::kDevice};
    return {kinds, kinds, kinds, kinds, kinds, kinds, kinds, kinds, kinds, /*paged_rows=*/true};
  }
  ~DeferredBackend() override { CKV_CHECK(device_.empty() && pinned_.count() == 0); }

  std::string_view kernel_target() const override {
    return kernel_target_.empty() ? Cpu()->kernel_target() : kernel_target_;
  }

  absl::StatusOr<std::unique_ptr<ComputeStream>> NewStream(uint32_t thread_count) override {
    if (on_new_stream_ != nullptr) on_new_stream_();
    if (stream_failure_) return absl::ResourceExhaustedError("no more streams");
    auto stream = std::make_unique<Stream>(this, thread_count);
    const std::lock_guard lock(mu_);
    queues_.push_back(stream->queue);
    return stream;
  }

  // `native` is the address of a stream of this backend, which plays the engine's. Null means a
  // stream without work.
  absl::StatusOr<std::unique_ptr<ComputeStream>> StreamOver(void* native) override {
    if (native == nullptr) return NewStream(1);
    auto* const other = static_cast<Stream*>(static_cast<ComputeStream*>(native));
    return std::make_unique<Stream>(this, other->queue);
  }

  absl::StatusOr<BackendMemory> Allocate(MemoryKind kind, size_t bytes) override {
    if (bytes > memory_max_) return absl::ResourceExhaustedError("no more memory");
    ++allocations_;
    const std::lock_guard lock(mu_);
    const int access = kind != MemoryKind::kDevice || open_count_ > 0 ? kOpen : PROT_NONE;
    void* const memory = mmap(nullptr, MappedBytes(bytes), access,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CKV_CHECK(memory != MAP_FAILED);
    if (kind == MemoryKind::kDevice) device_[memory] = MappedBytes(bytes);
    if (kind == MemoryKind::kPinned)
      CKV_CHECK(pinned_.Add({static_cast<std::byte*>(memory), MappedBytes(bytes)}));
    return BackendMemory(this, {static_cast<std::byte*>(memory), bytes}, kind);
  }

  absl::Status Pin(std::span<std::byte> memory) override {
    const auto page = [](auto value) { return reinterpret_cast<uintptr_t>(value) % 4096 == 0; };
    CKV_CHECK(page(memory.data()) && page(memory.data() + memory.size()) && !memory.empty());
    if (on_pin_ != nullptr) on_pin_();
    if (pin_failure_) return absl::ResourceExhaustedError("no more pages are locked");
    CKV_CHECK(pinned_.Add(memory));
    return absl::OkStatus();
  }
  void Unpin(std::span<std::byte> memory) noexcept override { pinned_.Remove(memory); }
  size_t pinned_bytes() const { return pinned_.bytes(); }
  size_t pin_count() const { return pinned_.count(); }
  void FailPins(bool fail) { pin_failure_ = fail; }

  // Copies as a driver does. All work on the memory must be done.
  void Copy(std::byte* to, std::span<const std::byte> from) {
    const Opened opened(this);
    std::memcpy(to, from.data(), from.size());
  }

  // Operations that were put on streams.
  uint64_t attend_count() const { return attends_; }
  // Groups of neighbouring pieces that share rows, in all attends (ShareRows).
  uint64_t runs() const { return runs_; }
  uint64_t merge_count() const { return merges_; }
  uint64_t rotate_count() const { return rotates_; }
  uint64_t scatter_count() const { return scatters_; }
  uint64_t allocation_count() const { return allocations_; }
  // Waits for streams that were not ready. A thread that polls makes none.
  uint64_t blocking_wait_count() const { return blocking_waits_; }

  // Does the work of all streams, as time does on a device.
  void DoAll() {
    std::vector<std::shared_ptr<Queue>> live;
    {
      const std::lock_guard lock(mu_);
      for (const auto& queue : queues_) {
        if (auto one = queue.lock()) live.push_back(std::move(one));
      }
    }
    for (const auto& queue : live) queue->DoUpTo(queue->put_count()).IgnoreError();
  }
  // Called by each of those waits, before any work is done, and by each NewStream.
  void OnBlockingWait(std::function<void()> call) { on_blocking_wait_ = std::move(call); }
  void OnNewStream(std::function<void()> call) { on_new_stream_ = std::move(call); }
  // Called by each attend, with its pieces.
  void OnAttend(std::function<void(std::span<const AttentionPiece>)> call) {
    on_attend_ = std::move(call);
  }
  // Called by each Pin.
  void OnPin(std::function<void()> call) { on_pin_ = std::move(call); }

  // The next operation fails when it is called, or when its stream is waited for. So do all later
  // operations on that stream.
  enum class Failure { kNone, kAtCall, kAtWait };
  void Fail(Failure failure) { failure_ = failure; }
  void FailStreams(bool fail) { stream_failure_ = fail; }
  // From now on, an Allocate of more than `bytes` fails.
  void LimitMemory(size_t bytes) { memory_max_ = bytes; }

 private:
  static constexpr int kOpen = PROT_READ | PROT_WRITE;
  static constexpr size_t MappedBytes(size_t bytes) { return (bytes + 4096) / 4096 * 4096; }

  // Makes the device's memory accessible during its lifetime.
  class Opened {
   public:
    explicit Opened(DeferredBackend* backend) : backend_(backend) { backend_->Open(1); }
    ~Opened() { backend_->Open(-1); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

   private:
    DeferredBackend* const backend_;
  };

  // The work of one stream that is not done, in order. Other streams may wait for it, even after
  // the stream's end.
  struct Queue {
    using Work = std::function<void(ComputeStream& here)>;

    Queue(DeferredBackend* backend_in, uint32_t thread_count)
        : backend(backend_in), here(*Cpu()->NewStream(thread_count)) {}

    uint64_t put_count() {
      const std::lock_guard lock(mu);
      return done_count + work.size();
    }
    absl::Status Put(Work one) {
      const std::lock_guard lock(mu);
      switch (backend->failure_.exchange(Failure::kNone)) {
        case Failure::kAtCall:
          failed = true;
          break;
        case Failure::kAtWait:
          work.push_back([this](ComputeStream&) { failed = true; });
          return absl::OkStatus();
        case Failure::kNone:
          work.push_back(std::move(one));
      }
      return status();
    }
    absl::Status DoUpTo(uint64_t count) {
      const std::lock_guard lock(mu);
      const Opened opened(backend);
      while (done_count < count) {
        const Work next = std::move(work.front());
        work.pop_front();
        ++done_count;
        if (!failed) next(*here);
      }
      return status();
    }
    absl::Status status() const {
      return failed ? absl::InternalError("the device is on fire") : absl::OkStatus();
    }

    DeferredBackend* const backend;
    const std::unique_ptr<ComputeStream> here;
    // Recursive, since a queue may wait for another that waits for what the first has done.
    std::recursive_mutex mu;
    std::deque<Work> work;
    uint64_t done_count = 0;
    bool failed = false;
  };

  class Stream final : public ComputeStream {
   public:
    Stream(DeferredBackend* backend, uint32_t thread_count)
        : ComputeStream(backend), queue(std::make_shared<Queue>(backend, thread_count)) {}
    // Over the queue of another stream, whose end waits for the work.
    Stream(DeferredBackend* backend, std::shared_ptr<Queue> other)
        : ComputeStream(backend), queue(std::move(other)), owns_(false) {}
    ~Stream() override {
      if (owns_) queue->DoUpTo(queue->put_count()).IgnoreError();
    }
    absl::Status Wait() override {
      if (!Ready()) {
        ++queue->backend->blocking_waits_;
        if (queue->backend->on_blocking_wait_ != nullptr) queue->backend->on_blocking_wait_();
      }
      return queue->DoUpTo(queue->put_count());
    }
    bool Ready() const override {
      const std::lock_guard lock(queue->mu);
      return queue->work.empty();
    }

    const std::shared_ptr<Queue> queue;

   private:
    const bool owns_ = true;
  };

  static Queue& QueueOf(ComputeStream& stream) { return *static_cast<Stream&>(stream).queue; }

  void CheckRows(const RowView& rows, size_t row_bytes) const {
    if (rows.memory != MemoryKind::kPinned || rows.count == 0) return;
    pinned_.Check(rows.data, size_t{rows.count - 1} * rows.stride_bytes + row_bytes);
  }
  void CheckPartial(const ConstPartialView& partial, size_t rows, size_t d_v) const {
    if (partial.memory != MemoryKind::kPinned || rows == 0) return;
    pinned_.Check(partial.o, rows * d_v * ValueBytes(partial.dtype));
    pinned_.Check(partial.m, rows * sizeof(float));
    pinned_.Check(partial.l, rows * sizeof(float));
  }
  static size_t RowBytesOf(const AttentionShape& shape) {
    Geometry geometry;
    geometry.d_qk = shape.d_qk;
    geometry.d_v = shape.d_v;
    geometry.d_rope = shape.d_rope;
    geometry.dtype = shape.row_dtype;
    return geometry.row_bytes();
  }

  // The view as this processor's backend takes it.
  template <typename View>
  static View Here(View view) {
    view.memory = MemoryKind::kHost;
    view.after = nullptr;
    return view;
  }

  void Open(int change) {
    const std::lock_guard lock(mu_);
    const int before = std::exchange(open_count_, open_count_ + change);
    if (before != 0 && open_count_ != 0) return;
    for (const auto& [memory, bytes] : device_)
      CKV_CHECK(mprotect(memory, bytes, open_count_ > 0 ? kOpen : PROT_NONE) == 0);
  }

  absl::Status DoAttend(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                        ComputeStream& stream) override {
    ++attends_;
    if (on_attend_ != nullptr) on_attend_(pieces);
    struct Piece {
      AttentionPiece piece;
      std::vector<int32_t> indices;
      std::vector<uint32_t> limits;
    };
    for (size_t i = 0; i < pieces.size(); ++i)
      runs_ += i == 0 || !ShareRows(pieces[i - 1], pieces[i]) ? 1 : 0;
    std::vector<Piece> copies;
    const size_t row_bytes = RowBytesOf(shape);
    for (const AttentionPiece& piece : pieces) {
      CheckRows(piece.q.Bytes(), size_t{shape.d_qk} * 2);
      CheckRows(piece.rows, row_bytes);
      CheckPartial(piece.out, piece.q.count, shape.d_v);
      Piece& copy = copies.emplace_back();
      copy.piece = piece;
      copy.piece.q = Here(piece.q);
      copy.piece.rows = Here(piece.rows);
      copy.piece.out = Here(piece.out);
      const Selection& chosen = piece.selection;
      if (chosen.present()) {
        const size_t groups = (size_t{piece.q.count} + chosen.group_rows - 1) / chosen.group_rows;
        copy.indices.assign(chosen.indices, chosen.indices + groups * chosen.k);
        copy.indices.reserve(1);  // never null
      }
      if (piece.row_limits != nullptr)
        copy.limits.assign(piece.row_limits, piece.row_limits + piece.q.count);
    }
    return QueueOf(stream).Put([shape, copies = std::move(copies)](ComputeStream& here) {
      std::vector<AttentionPiece> all;
      for (const Piece& copy : copies) {
        AttentionPiece& piece = all.emplace_back(copy.piece);
        if (piece.selection.present()) piece.selection.indices = copy.indices.data();
        if (piece.row_limits != nullptr) piece.row_limits = copy.limits.data();
      }
      CKV_CHECK(Cpu()->AttendPartials(shape, all, here).ok());
    });
  }
  absl::Status DoMerge(std::span<const MergeJob> jobs, ComputeStream& stream) override {
    ++merges_;
    struct Job {
      MergeJob job;
      std::vector<ConstPartialView> parts;
      std::vector<uint8_t> levels;
    };
    std::vector<Job> copies;
    for (const MergeJob& job : jobs) {
      for (const ConstPartialView& part : job.parts) CheckPartial(part, job.row_count, job.d_v);
      CheckPartial(job.out, job.row_count, job.d_v);
      Job& copy = copies.emplace_back();
      copy.job = job;
      copy.job.out = Here(job.out);
      for (const ConstPartialView& part : job.parts) copy.parts.push_back(Here(part));
      copy.levels.assign(job.levels.begin(), job.levels.end());
    }
    return QueueOf(stream).Put([copies = std::move(copies)](ComputeStream& here) {
      for (const Job& copy : copies) {
        MergeJob job = copy.job;
        job.parts = copy.parts;
        job.levels = copy.levels;
        CKV_CHECK(Cpu()->Merge({&job, 1}, here).ok());
      }
    });
  }
  absl::Status DoRotate(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                        const RowPlace& to, ComputeStream& stream) override {
    ++rotates_;
    CheckRows(rows, row_bytes);
    if (to.memory == MemoryKind::kPinned && rows.data != to.data)
      pinned_.Check(to.data, size_t{rows.count} * row_bytes);
    return QueueOf(stream).Put(
        [rotation, rows = Here(rows), row_bytes, to = Here(to)](ComputeStream& here) {
          CKV_CHECK(Cpu()->Rotate(rotation, rows, row_bytes, to, here).ok());
        });
  }
  absl::Status DoScatter(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                         const PagedPlace& to, ComputeStream& stream) override {
    ++scatters_;
    CheckRows(rows, row_bytes);
    if (to.memory == MemoryKind::kPinned) pinned_.Check(to.layer.data(), to.layer.size());
    return QueueOf(stream).Put(
        [rotation, rows = Here(rows), row_bytes, to = Here(to),
         table = std::vector<uint32_t>(to.table.begin(), to.table.end())](ComputeStream& here) {
          PagedPlace place = to;
          place.table = table;
          CKV_CHECK(Cpu()->Scatter(rotation, rows, row_bytes, place, here).ok());
        });
  }
  absl::Status DoOrder(ComputeStream& first, ComputeStream& stream) override {
    const std::shared_ptr<Queue> queue = static_cast<Stream&>(first).queue;
    return QueueOf(stream).Put([queue, count = queue->put_count()](ComputeStream&) {
      queue->DoUpTo(count).IgnoreError();
    });
  }
  void DoFree(std::span<std::byte> bytes, MemoryKind kind) override {
    const std::lock_guard lock(mu_);
    device_.erase(bytes.data());
    if (kind == MemoryKind::kPinned) pinned_.Remove({bytes.data(), MappedBytes(bytes.size())});
    munmap(bytes.data(), MappedBytes(bytes.size()));
  }

  const std::string kernel_target_;
  std::atomic<uint64_t> attends_{0}, runs_{0}, merges_{0}, rotates_{0}, scatters_{0};
  std::atomic<uint64_t> allocations_{0}, blocking_waits_{0};
  std::atomic<size_t> memory_max_{SIZE_MAX};
  std::function<void(std::span<const AttentionPiece>)> on_attend_;
  std::function<void()> on_blocking_wait_, on_new_stream_, on_pin_;
  std::atomic<Failure> failure_{Failure::kNone};
  std::atomic<bool> stream_failure_{false};
  std::atomic<bool> pin_failure_{false};
  PinnedRanges pinned_;
  mutable std::mutex mu_;
  std::map<void*, size_t> device_;  // guarded by mu_, as is all below
  std::vector<std::weak_ptr<Queue>> queues_;
  int open_count_ = 0;
};

}  // namespace ckv::test
