// The entry points of Backend, and the backend of this processor. Each operation, in order:
//   Refuse  checks that the backend reaches the memory of every view; else names the first it does
//           not
//   Order   lets the stream wait for the streams that still write the views
//   Do...   queues the work on the stream; CpuBackend has done it when it returns
// CpuBackend calls the kernels of the target in use. Its streams are thread pools, so they are
// always ready, and waiting for one does nothing.

#include "attention/backend.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/worker_pool.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr size_t kAlignment = 64;

std::string Names(MemoryKinds kinds) {
  std::string names;
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kPinned, MemoryKind::kDevice}) {
    if (!kinds.Has(kind)) continue;
    absl::StrAppendFormat(&names, "%s%s", names.empty() ? "" : " or ", MemoryKindName(kind));
  }
  return names;
}

// The requirements of all views of one role in a call, added without a branch for each.
struct Asked {
  MemoryKinds kinds;
  bool ordered = false;  // one of them has to wait for a stream

  template <typename View>
  void Add(const View& view) {
    kinds.Add(view.memory);
    ordered |= view.after != nullptr;
  }
};

// Returns the refusal of the first of `count` views that is of a kind outside `reach`.
template <typename ViewAt>
absl::Status Refuse(const Backend& backend, std::string_view role, MemoryKinds reach, size_t count,
                    const ViewAt& view_at) {
  for (size_t i = 0; i < count; ++i) {
    const MemoryKind kind = view_at(i).memory;
    if (reach.Has(kind)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s (%d of %d) are in %s memory, which kernels of %s do not reach: they may be in %s "
        "memory",
        role, i, count, MemoryKindName(kind), backend.kernel_target(), Names(reach)));
  }
  return absl::OkStatus();
}

class CpuStream final : public ComputeStream {
 public:
  CpuStream(Backend* backend, uint32_t thread_count) : ComputeStream(backend), pool(thread_count) {}
  absl::Status Wait() override { return absl::OkStatus(); }
  bool Ready() const override { return true; }

  WorkerPool pool;
};

// Kernels of the target in use. Every operation is done when it returns.
class CpuBackend final : public Backend {
 public:
  CpuBackend() : Backend(Reach(), MemoryKind::kHost) {}

  std::string_view kernel_target() const override { return KernelTarget(); }

  absl::StatusOr<std::unique_ptr<ComputeStream>> NewStream(uint32_t thread_count) override {
    return std::make_unique<CpuStream>(this, thread_count);
  }

  // It reaches any memory as it is.
  absl::Status Pin(std::span<std::byte> /*memory*/) override { return absl::OkStatus(); }
  void Unpin(std::span<std::byte> /*memory*/) noexcept override {}

  absl::StatusOr<BackendMemory> Allocate(MemoryKind kind, size_t bytes) override {
    if (kind != MemoryKind::kHost) {
      return absl::InvalidArgumentError(
          absl::StrFormat("kernels of %s have no %s memory, only host memory", KernelTarget(),
                          MemoryKindName(kind)));
    }
    void* const memory = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (memory == nullptr)
      return absl::ResourceExhaustedError(absl::StrFormat("no %d bytes of host memory", bytes));
    return BackendMemory(this, {static_cast<std::byte*>(memory), bytes}, kind);
  }

 private:
  static constexpr BackendReach Reach() {
    constexpr MemoryKinds kReached = {MemoryKind::kHost, MemoryKind::kPinned};
    return {kReached, kReached, kReached, kReached, kReached,
            kReached, kReached, kReached, kReached, /*paged_rows=*/true};
  }
  static WorkerPool& PoolOf(ComputeStream& stream) { return static_cast<CpuStream&>(stream).pool; }

  absl::Status DoAttend(const AttentionShape& shape, std::span<const AttentionPiece> pieces,
                        ComputeStream& stream) override {
    ckv::AttendPartials(shape, pieces, PoolOf(stream));
    return absl::OkStatus();
  }
  absl::Status DoMerge(std::span<const MergeJob> jobs, ComputeStream& stream) override {
    PoolOf(stream).Run(static_cast<uint32_t>(jobs.size()), [jobs](uint32_t task, uint32_t) {
      const MergeJob& job = jobs[task];
      if (job.order == MergeOrder::kTree) {
        MergeTree(job.parts, job.levels, job.row_count, job.d_v, job.out);
      } else {
        MergePartials(job.parts, job.row_count, job.d_v, job.out);
      }
    });
    return absl::OkStatus();
  }
  absl::Status DoRotate(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                        const RowPlace& to, ComputeStream& /*stream*/) override {
    if (rows.data == to.data) {
      RotateBandsFp8DsMla(rotation, to.data, rows.count, row_bytes, rows.stride_bytes);
    } else {
      CopyRotatedRows(rotation, rows.data, rows.stride_bytes, to.data, rows.count, row_bytes);
    }
    return absl::OkStatus();
  }
  absl::Status DoScatter(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                         const PagedPlace& to, ComputeStream& /*stream*/) override {
    ScatterRotatedRows(rotation, rows, row_bytes, to);
    return absl::OkStatus();
  }
  absl::Status DoOrder(ComputeStream& /*first*/, ComputeStream& /*stream*/) override {
    return absl::OkStatus();
  }
  void DoFree(std::span<std::byte> bytes, MemoryKind /*kind*/) override {
    ::operator delete (bytes.data(), std::align_val_t{kAlignment});
  }
};

}  // namespace

BackendMemory& BackendMemory::operator=(BackendMemory&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(bytes_, other.bytes_);
  std::swap(kind_, other.kind_);
  return *this;
}

BackendMemory::~BackendMemory() {
  if (backend_ != nullptr) backend_->DoFree(bytes_, kind_);
}

PartialView PartialIn(const BackendMemory& memory, size_t begin, uint32_t row_count, uint32_t d_v) {
  float* const o = reinterpret_cast<float*>(memory.data()) + begin;
  float* const m = o + size_t{row_count} * d_v;
  return {o, m, m + row_count, PartialDtype::kF32, memory.kind()};
}

Backend* Backend::Cpu() {
  static CpuBackend* const backend = new CpuBackend;
  return backend;
}

absl::StatusOr<std::unique_ptr<ComputeStream>> Backend::StreamOver(void* /*native*/) {
  return absl::UnimplementedError(absl::StrFormat(
      "kernels of %s have no streams of others: only those of a device do", kernel_target()));
}

absl::Status Backend::Grow(BackendMemory& memory, size_t bytes, MemoryKind kind) {
  if (memory.size() >= bytes && memory.kind() == kind) return absl::OkStatus();
  const size_t ample = std::max(bytes, memory.size() + memory.size() / 2);
  memory = BackendMemory();
  absl::StatusOr<BackendMemory> grown = Allocate(kind, ample);
  if (!grown.ok() && ample > bytes) grown = Allocate(kind, bytes);
  CKV_ASSIGN_OR_RETURN(memory, std::move(grown));
  return absl::OkStatus();
}

absl::Status Backend::Order(ComputeStream* first, ComputeStream& stream) {
  if (first == nullptr || first == &stream) return absl::OkStatus();
  if (&first->backend() != this) return first->Wait();
  return DoOrder(*first, stream);
}

absl::Status Backend::AttendPartials(const AttentionShape& shape,
                                     std::span<const AttentionPiece> pieces,
                                     ComputeStream& stream) {
  CKV_CHECK(&stream.backend() == this);
  Asked queries, rows, out;
  bool paged = false;
  for (const AttentionPiece& piece : pieces) {
    queries.Add(piece.q);
    rows.Add(piece.rows);
    paged |= piece.rows.paged();
    out.Add(piece.out);
  }
  if (!reach_.queries.HasAll(queries.kinds) || !reach_.rows.HasAll(rows.kinds) ||
      !reach_.partials.HasAll(out.kinds)) [[unlikely]] {
    const size_t count = pieces.size();
    CKV_RETURN_IF_ERROR(Refuse(*this, "attend: query rows", reach_.queries, count,
                               [&](size_t i) { return pieces[i].q; }));
    CKV_RETURN_IF_ERROR(Refuse(*this, "attend: cKV rows", reach_.rows, count,
                               [&](size_t i) { return pieces[i].rows; }));
    return Refuse(*this, "attend: partials", reach_.partials, count,
                  [&](size_t i) { return pieces[i].out; });
  }
  if (paged && !reach_.paged_rows) [[unlikely]] {
    return absl::UnimplementedError(absl::StrFormat(
        "attend: cKV rows in blocks of a paged cache, which kernels of %s do not read there",
        kernel_target()));
  }
  if (queries.ordered || rows.ordered || out.ordered) [[unlikely]] {
    for (const AttentionPiece& piece : pieces) {
      CKV_RETURN_IF_ERROR(Order(piece.q.after, stream));
      CKV_RETURN_IF_ERROR(Order(piece.rows.after, stream));
      CKV_RETURN_IF_ERROR(Order(piece.out.after, stream));
    }
  }
  return DoAttend(shape, pieces, stream);
}

absl::Status Backend::Merge(std::span<const MergeJob> jobs, ComputeStream& stream) {
  CKV_CHECK(&stream.backend() == this);
  Asked parts, out;
  for (const MergeJob& job : jobs) {
    for (const ConstPartialView& part : job.parts) parts.Add(part);
    out.Add(job.out);
  }
  if (!reach_.parts.HasAll(parts.kinds) || !reach_.merged.HasAll(out.kinds)) [[unlikely]] {
    for (const MergeJob& job : jobs) {
      CKV_RETURN_IF_ERROR(Refuse(*this, "merge: parts", reach_.parts, job.parts.size(),
                                 [&](size_t i) { return job.parts[i]; }));
    }
    return Refuse(*this, "merge: sums", reach_.merged, jobs.size(),
                  [&](size_t i) { return jobs[i].out; });
  }
  if (parts.ordered || out.ordered) [[unlikely]] {
    for (const MergeJob& job : jobs) {
      for (const ConstPartialView& part : job.parts) CKV_RETURN_IF_ERROR(Order(part.after, stream));
      CKV_RETURN_IF_ERROR(Order(job.out.after, stream));
    }
  }
  return DoMerge(jobs, stream);
}

absl::Status Backend::Rotate(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                             const RowPlace& to, ComputeStream& stream) {
  CKV_CHECK(&stream.backend() == this && row_bytes <= rows.stride_bytes);
  if (!reach_.rotated_from.Has(rows.memory) || !reach_.rotated_to.Has(to.memory)) [[unlikely]] {
    CKV_RETURN_IF_ERROR(
        Refuse(*this, "rotate: rows", reach_.rotated_from, 1, [&](size_t) { return rows; }));
    return Refuse(*this, "rotate: copied rows", reach_.rotated_to, 1, [&](size_t) { return to; });
  }
  CKV_RETURN_IF_ERROR(Order(rows.after, stream));
  CKV_RETURN_IF_ERROR(Order(to.after, stream));
  return DoRotate(rotation, rows, row_bytes, to, stream);
}

absl::Status Backend::Scatter(const RopeRotation& rotation, const RowView& rows, uint32_t row_bytes,
                              const PagedPlace& to, ComputeStream& stream) {
  CKV_CHECK(&stream.backend() == this && row_bytes <= rows.stride_bytes);
  if (!reach_.scattered_from.Has(rows.memory) || !reach_.scattered_to.Has(to.memory)) [[unlikely]] {
    CKV_RETURN_IF_ERROR(
        Refuse(*this, "scatter: rows", reach_.scattered_from, 1, [&](size_t) { return rows; }));
    return Refuse(*this, "scatter: blocks", reach_.scattered_to, 1, [&](size_t) { return to; });
  }
  CKV_RETURN_IF_ERROR(Order(rows.after, stream));
  CKV_RETURN_IF_ERROR(Order(to.after, stream));
  return DoScatter(rotation, rows, row_bytes, to, stream);
}

}  // namespace ckv
