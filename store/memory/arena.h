// One mapping that holds the rows of every resident chunk, in 64-byte aligned extents.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "store/memory/huge_pages.h"

namespace ckv {

class Arena;

// Owns a range of the arena and gives it back when destroyed. Movable; one thread at a time may
// change it. The arena must outlive it.
class Extent {
 public:
  Extent() = default;
  Extent(Extent&& other) noexcept;
  Extent& operator=(Extent&& other) noexcept;
  ~Extent();

  std::span<std::byte> bytes() const { return bytes_; }
  bool empty() const { return bytes_.empty(); }
  // Keeps the first `bytes` and gives the rest back. `bytes` is at least 1 and at most what it has.
  void Shrink(size_t bytes);

 private:
  friend class Arena;
  Extent(Arena* arena, std::span<std::byte> bytes) : arena_(arena), bytes_(bytes) {}

  Arena* arena_ = nullptr;
  std::span<std::byte> bytes_;
};

// Thread-safe. Every extent must be gone before the arena is destroyed.
class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  // Reserves address space for `capacity_bytes`, rounded up to kAlignment. Pages are committed when
  // they are first touched; reserved huge pages at once.
  //   InvalidArgument     the capacity is zero.
  //   ResourceExhausted   the kernel refuses the mapping, or has too few of the policy's pages.
  static absl::StatusOr<std::unique_ptr<Arena>> Create(size_t capacity_bytes,
                                                       PagePolicy pages = PagePolicy::kSmall);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Takes the smallest free range that is large enough, the lowest if there are several. The bytes
  // are not cleared. Zero bytes give an empty extent.
  //   ResourceExhausted   no free range is large enough; the message says how much is free.
  absl::StatusOr<Extent> Allocate(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns whether Allocate would succeed now.
  bool Fits(size_t bytes) const ABSL_LOCKS_EXCLUDED(mu_);

  size_t capacity_bytes() const { return capacity_bytes_; }
  size_t used_bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  const std::byte* base() const { return base_; }
  PageKind page_kind() const { return memory_.kind(); }

 private:
  friend class Extent;
  Arena(PagedMemory memory, size_t capacity_bytes);
  void Free(std::span<std::byte> bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void AddFree(size_t offset, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveFree(size_t offset, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PagedMemory memory_;
  std::byte* const base_;
  const size_t capacity_bytes_;
  mutable absl::Mutex mu_;
  std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mu_);  // offset to bytes; neighbours are joined
  // The same ranges as (bytes, offset), so that best fit is one look-up at any fragmentation.
  std::set<std::pair<size_t, size_t>> free_by_size_ ABSL_GUARDED_BY(mu_);
  size_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t used_end_ ABSL_GUARDED_BY(mu_) = 0;  // no extent ever reached further
};

}  // namespace ckv
