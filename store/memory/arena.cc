// Allocates extents of one mapping. Free ranges are in two orders, under one lock: by size, to find
// the smallest that fits, and by offset, to join neighbours. Allocate takes the front of a range;
// Free joins the range with those before and after it. With AddressSanitizer free ranges are
// poisoned.

#include "store/memory/arena.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace ckv {
namespace {

// Poisons only what was in use, never the whole mapping: its shadow would be an eighth of a
// capacity that mostly has no pages.
void Poison([[maybe_unused]] const void* begin, [[maybe_unused]] size_t bytes) {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  ASAN_POISON_MEMORY_REGION(begin, bytes);
#endif
}

void Unpoison([[maybe_unused]] const void* begin, [[maybe_unused]] size_t bytes) {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
#endif
}

constexpr size_t RoundUp(size_t bytes) {
  return (bytes + Arena::kAlignment - 1) & ~(Arena::kAlignment - 1);
}

}  // namespace

Extent::Extent(Extent&& other) noexcept
    : arena_(std::exchange(other.arena_, nullptr)), bytes_(std::exchange(other.bytes_, {})) {}

Extent& Extent::operator=(Extent&& other) noexcept {
  if (this != &other) {
    if (arena_ != nullptr) arena_->Free(bytes_);
    arena_ = std::exchange(other.arena_, nullptr);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

Extent::~Extent() {
  if (arena_ != nullptr) arena_->Free(bytes_);
}

void Extent::Shrink(size_t bytes) {
  CKV_CHECK(bytes > 0 && bytes <= bytes_.size());
  const size_t kept = RoundUp(bytes);
  // Ranges are freed by their first byte and in whole units: the rest of the last one is freed as
  // well.
  if (kept < RoundUp(bytes_.size())) arena_->Free({bytes_.data() + kept, bytes_.size() - kept});
  bytes_ = bytes_.first(bytes);
}

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(size_t capacity_bytes, PagePolicy pages) {
  if (capacity_bytes == 0) return absl::InvalidArgumentError("arena: zero capacity");
  if (capacity_bytes > SIZE_MAX - kAlignment) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("arena: cannot map %d bytes", capacity_bytes));
  }
  const size_t bytes = RoundUp(capacity_bytes);
  auto memory = PagedMemory::Map(bytes, pages);
  if (!memory.ok()) return Annotate(memory.status(), "arena");
  return std::unique_ptr<Arena>(new Arena(*std::move(memory), bytes));
}

Arena::Arena(PagedMemory memory, size_t capacity_bytes)
    : memory_(std::move(memory)), base_(memory_.base()), capacity_bytes_(capacity_bytes) {
  absl::MutexLock lock(&mu_);
  AddFree(0, capacity_bytes_);
}

Arena::~Arena() {
  CKV_CHECK(used_bytes() == 0);  // an extent that outlives its arena points into nothing
  absl::MutexLock lock(&mu_);
  Unpoison(base_, used_end_);  // otherwise the next mapping of these addresses is poisoned
}

absl::StatusOr<Extent> Arena::Allocate(size_t bytes) {
  if (bytes == 0) return Extent();
  absl::MutexLock lock(&mu_);
  const size_t free_bytes = capacity_bytes_ - used_bytes_;
  // Compared before it is rounded: a size near SIZE_MAX would round to zero.
  const auto best =
      bytes > free_bytes ? free_by_size_.end() : free_by_size_.lower_bound({RoundUp(bytes), 0});
  if (best == free_by_size_.end()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "arena: no room for %d bytes: %d of %d bytes are free, the largest range has %d", bytes,
        free_bytes, capacity_bytes_, free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first));
  }
  const auto [range_bytes, offset] = *best;
  const size_t taken_bytes = RoundUp(bytes);
  RemoveFree(offset, range_bytes);
  if (range_bytes > taken_bytes) AddFree(offset + taken_bytes, range_bytes - taken_bytes);
  used_bytes_ += taken_bytes;
  used_end_ = std::max(used_end_, offset + taken_bytes);
  Unpoison(base_ + offset, bytes);
  return Extent(this, {base_ + offset, bytes});
}

bool Arena::Fits(size_t bytes) const {
  absl::MutexLock lock(&mu_);
  return bytes <= capacity_bytes_ - used_bytes_ &&
         free_by_size_.lower_bound({RoundUp(bytes), 0}) != free_by_size_.end();
}

size_t Arena::used_bytes() const {
  absl::MutexLock lock(&mu_);
  return used_bytes_;
}

void Arena::Free(std::span<std::byte> bytes) {
  size_t offset = static_cast<size_t>(bytes.data() - base_);
  size_t freed_bytes = RoundUp(bytes.size());
  Poison(bytes.data(), freed_bytes);
  absl::MutexLock lock(&mu_);
  used_bytes_ -= freed_bytes;
  const auto after = free_.lower_bound(offset);
  if (after != free_.end() && offset + freed_bytes == after->first) {
    const auto [after_offset, after_bytes] = *after;
    RemoveFree(after_offset, after_bytes);
    freed_bytes += after_bytes;
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto [before_offset, before_bytes] = *std::prev(next);
    if (before_offset + before_bytes == offset) {
      RemoveFree(before_offset, before_bytes);
      offset = before_offset;
      freed_bytes += before_bytes;
    }
  }
  AddFree(offset, freed_bytes);
}

void Arena::AddFree(size_t offset, size_t bytes) {
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void Arena::RemoveFree(size_t offset, size_t bytes) {
  free_.erase(offset);
  free_by_size_.erase({bytes, offset});
}

}  // namespace ckv
