// The interface to the kernels that compute attention, on this processor or on a device.
//
//   Backend& backend = *Backend::Cpu();
//   CKV_ASSIGN_OR_RETURN(const auto stream, backend.NewStream(/*thread_count=*/2));
//   CKV_RETURN_IF_ERROR(backend.AttendPartials(shape, pieces, *stream));
//   CKV_RETURN_IF_ERROR(backend.Merge({&job, 1}, *stream));
//   CKV_RETURN_IF_ERROR(stream->Wait());  // the answer is in job.out
//
// An operation checks its views, puts work on a stream, and may return before the work is done. On
// the processor, the work is done when the operation returns.
//
// Order      A stream does its work in the order in which it was put there. A view's `after` orders
//            work between streams. An operation touches the view's memory only once all work that
//            was on `after` at the time of the call is done. `after` may belong to another backend;
//            the call then waits for it.
// Lifetimes  Arrays of views, selections, row limits, levels, block tables and rotations are host
//            memory. They are read before the operation returns. The memory that views point at is
//            borrowed until a Wait that begins after the call has returned, even after an error.
// Aliasing   Memory that an operation writes must not overlap other memory that it reads or writes,
//            except for Rotate in place.
// Bits       A result depends on the values alone, never on kinds of memory, streams, threads or
//            the rest of a call. One build, kernel target and precision give one set of bits.
// Errors     InvalidArgument  a view is in a kind of memory that the operation does not reach. The
//                             text names both. Nothing was put on the stream.
//            Unimplemented    rows are in blocks of a paged cache, and the kernels do not read them
//                             in place.
//            Internal         the device failed. Results since the last successful Wait are
//                             undefined, and the stream fails from now on. A processor's stream
//                             never fails.
//            A wrong count or width is a bug (CKV_CHECK), as in the functions of this folder.
//
// A device's backend derives from Backend and ComputeStream, and tests/attention/backend_*_test.cc
// run over it. deploy/adr/0025-backend-seam.md lists its other obligations.

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/merge.h"
#include "attention/mla_partial.h"
#include "attention/partial.h"
#include "attention/rope.h"

namespace ckv {

class Backend;

// A queue of one backend's work. Only one thread at a time may put work on it; the caller
// synchronizes a hand-over. Streams do not wait for each other. A processor's stream owns its
// worker threads, and computes on them and on the calling thread.
class ComputeStream {
 public:
  // Waits for the stream's work.
  virtual ~ComputeStream() = default;
  ComputeStream(const ComputeStream&) = delete;
  ComputeStream& operator=(const ComputeStream&) = delete;

  Backend& backend() const { return *backend_; }
  // Returns once all work put on the stream so far is done. Even after an error, none of that work
  // touches memory any more.
  //   Internal            the device failed.
  virtual absl::Status Wait() = 0;
  // Whether Wait would return immediately. For threads that poll.
  virtual bool Ready() const = 0;

 protected:
  explicit ComputeStream(Backend* backend) : backend_(backend) {}

 private:
  Backend* const backend_;
};

// A set of kinds of memory.
class MemoryKinds {
 public:
  constexpr MemoryKinds() = default;
  constexpr MemoryKinds(std::initializer_list<MemoryKind> kinds) {
    for (const MemoryKind kind : kinds) Add(kind);
  }
  constexpr void Add(MemoryKind kind) { bits_ |= 1u << static_cast<unsigned>(kind); }
  constexpr bool Has(MemoryKind kind) const { return HasAll({kind}); }
  constexpr bool HasAll(MemoryKinds other) const { return (other.bits_ & ~bits_) == 0; }

 private:
  uint32_t bits_ = 0;
};

// The kinds of memory that each operation reads and writes.
struct BackendReach {
  MemoryKinds queries;       // AttendPartials: AttentionPiece::q
  MemoryKinds rows;          // AttendPartials: AttentionPiece::rows
  MemoryKinds partials;      // AttendPartials: AttentionPiece::out
  MemoryKinds parts;         // Merge: MergeJob::parts
  MemoryKinds merged;        // Merge: MergeJob::out
  MemoryKinds rotated_from;  // Rotate
  MemoryKinds rotated_to;
  MemoryKinds scattered_from;  // Scatter
  MemoryKinds scattered_to;
  bool paged_rows = false;  // AttendPartials: whether rows may be in blocks of a paged cache

  // Whether every operation reads and writes memory of this kind.
  constexpr bool Everywhere(MemoryKind kind) const {
    for (const MemoryKinds& kinds : {queries, rows, partials, parts, merged, rotated_from,
                                     rotated_to, scattered_from, scattered_to}) {
      if (!kinds.Has(kind)) return false;
    }
    return true;
  }
};

enum class MergeOrder : uint8_t {
  kTree = 0,    // MergeTree
  kInTurn = 1,  // MergePartials
};

// Partials to merge into one (attention/merge.h).
struct MergeJob {
  MergeOrder order = MergeOrder::kTree;
  std::span<const ConstPartialView> parts;
  std::span<const uint8_t> levels;  // one per part, as in MergeTree; not read by kInTurn
  uint32_t row_count = 0;
  uint32_t d_v = 0;
  PartialView out;
};

// Memory that a backend allocated; the destructor frees it. The backend must outlive it.
class BackendMemory {
 public:
  BackendMemory() = default;
  BackendMemory(Backend* backend, std::span<std::byte> bytes, MemoryKind kind)
      : backend_(backend), bytes_(bytes), kind_(kind) {}
  BackendMemory(BackendMemory&& other) noexcept { *this = std::move(other); }
  BackendMemory& operator=(BackendMemory&& other) noexcept;
  ~BackendMemory();

  // 64-byte aligned. Only operations may touch device memory.
  std::byte* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  MemoryKind kind() const { return kind_; }

 private:
  Backend* backend_ = nullptr;  // null if there is no memory
  std::span<std::byte> bytes_;
  MemoryKind kind_ = MemoryKind::kHost;
};

// Returns a view of an f32 partial in `memory`: o, m and l one after another, starting at float
// number `begin`.
PartialView PartialIn(const BackendMemory& memory, size_t begin, uint32_t row_count, uint32_t d_v);
// Returns the number of floats of that partial.
constexpr size_t PartialFloats(uint32_t row_count, uint32_t d_v) {
  return size_t{row_count} * (size_t{d_v} + 2);
}

// Thread-safe. Must outlive its streams and its memory.
class Backend {
 public:
  // Returns the backend of this processor, which lives as long as the process. It reaches host and
  // pinned memory, and computes the same results as the functions of this folder.
  static Backend* Cpu();

  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Returns the name of the kernel target, which determines the bits of results. Membership and
  // replies report it (proto/kernel_target.h).
  virtual std::string_view kernel_target() const = 0;
  const BackendReach& reach() const { return reach_; }
  // The kind of memory for data that only operations touch. Every operation reaches it.
  MemoryKind home() const { return home_; }

  // Makes a stream. `thread_count` is as for WorkerPool; a device ignores it.
  //   ResourceExhausted, Internal  the device has no more streams, or failed.
  virtual absl::StatusOr<std::unique_ptr<ComputeStream>> NewStream(uint32_t thread_count) = 0;
  // Wraps a stream of the device that another party, for example an engine, owns and puts work on.
  // `native` is a cudaStream_t; null is the device's default stream. The result may only be used as
  // `after`: no operation is put on it. Any number of threads may use it at once, even while its
  // owner puts work there. The native stream must outlive the result, whose destructor does not
  // wait.
  //   Unimplemented       the backend has no native streams; the processor's has none.
  virtual absl::StatusOr<std::unique_ptr<ComputeStream>> StreamOver(void* native);

  // Allocates memory that operations reach. The contents are undefined. Slow on a device: do not
  // call it for each operation.
  //   InvalidArgument     the backend has no memory of this kind. It has memory of home(), and of
  //                       kHost if operations reach kHost, else of kPinned.
  //   ResourceExhausted   there is not enough of this memory.
  virtual absl::StatusOr<BackendMemory> Allocate(MemoryKind kind, size_t bytes) = 0;
  // Makes memory of this process kPinned for this backend until Unpin of the same span. The span
  // must be whole pages that are not pinned otherwise. Views of it may then be kPinned. Slow on a
  // device; touches every page.
  //   ResourceExhausted   the system locks no more memory, or the device maps no more.
  virtual absl::Status Pin(std::span<std::byte> memory) = 0;
  // Ends Pin; no work in progress may use the memory.
  virtual void Unpin(std::span<std::byte> memory) noexcept = 0;
  // Makes `memory` at least `bytes` long and of `kind`. Leaves it unchanged if it already is.
  // Otherwise its contents are lost, and no work in progress may use it. Grows by at least half if
  // there is enough memory, so that calls that each need a little more seldom allocate.
  //   ResourceExhausted   as Allocate; `memory` is then empty.
  absl::Status Grow(BackendMemory& memory, size_t bytes, MemoryKind kind);
  absl::Status Grow(BackendMemory& memory, size_t bytes) { return Grow(memory, bytes, home_); }

  // Makes later work of `stream`, which must belong to this backend, wait for all work put on
  // `first` so far. If `first` belongs to another backend, the caller waits. If `first` is null,
  // does nothing.
  //   Internal            the device of either failed.
  absl::Status Order(ComputeStream* first, ComputeStream& stream);

  // Computes the partial of every piece (attention/mla_partial.h).
  absl::Status AttendPartials(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                              ComputeStream& stream);
  // Merges the parts of every job (attention/merge.h). Jobs do not depend on each other.
  absl::Status Merge(std::span<const MergeJob> jobs, ComputeStream& stream);
  // Copies rows and rotates their RoPE bands (CopyRotatedRows in attention/rope.h). Rotates in
  // place if `to` is the rows' own address. With the identity rotation, copies between kinds of
  // memory.
  absl::Status Rotate(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                      const RowPlace& to, ComputeStream& stream);
  // Does the same into the blocks of a paged cache (ScatterRotatedRows in attention/rope.h).
  absl::Status Scatter(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                       const PagedPlace& to, ComputeStream& stream);

 protected:
  Backend(const BackendReach& reach, MemoryKind home) : reach_(reach), home_(home) {}

  // The operations. Their views are reachable and, in the stream's order, ready.
  virtual absl::Status DoAttend(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                                ComputeStream& stream) = 0;
  virtual absl::Status DoMerge(std::span<const MergeJob> jobs, ComputeStream& stream) = 0;
  virtual absl::Status DoRotate(const RopeRotation& rotation, const RowView& rows,
                                uint32_t row_bytes, const RowPlace& to, ComputeStream& stream) = 0;
  virtual absl::Status DoScatter(const RopeRotation& rotation, const RowView& rows,
                                 uint32_t row_bytes, const PagedPlace& to,
                                 ComputeStream& stream) = 0;
  // Makes later work of `stream` wait for all work put on `first` so far. Both belong to this
  // backend.
  virtual absl::Status DoOrder(ComputeStream& first, ComputeStream& stream) = 0;
  virtual void DoFree(std::span<std::byte> bytes, MemoryKind kind) = 0;

 private:
  friend class BackendMemory;

  const BackendReach reach_;
  const MemoryKind home_;
};

}  // namespace ckv
