#include "store/memory/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_format.h"

namespace ckv {
namespace {

constexpr size_t RoundUp(size_t bytes) {
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

std::byte* MapAnonymous(size_t bytes, int flags) {
  void* const base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

// `bytes`, in whole huge pages, at the first of their addresses in a larger mapping; the rest of it
// is given back.
std::byte* MapAligned(size_t bytes) {
  const size_t larger = bytes + kHugePageBytes;
  std::byte* const base = MapAnonymous(larger, MAP_NORESERVE);
  if (base == nullptr) return nullptr;
  const size_t before =
      RoundUp(reinterpret_cast<uintptr_t>(base)) - reinterpret_cast<uintptr_t>(base);
  if (before > 0) munmap(base, before);
  if (before < kHugePageBytes) munmap(base + before + bytes, kHugePageBytes - before);
  return base + before;
}

absl::Status Refused(size_t bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("cannot map %d bytes: %s", bytes, std::strerror(error)));
}

}  // namespace

std::string_view PageKindName(PageKind kind) {
  switch (kind) {
    case PageKind::kReserved:
      return "reserved huge pages";
    case PageKind::kTransparent:
      return "transparent huge pages";
    case PageKind::kSmall:
      break;
  }
  return "small pages";
}

void PagedMemory::Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

absl::StatusOr<PagedMemory> PagedMemory::Map(size_t bytes, PagePolicy policy) {
  if (bytes > SIZE_MAX - 2 * kHugePageBytes) return Refused(bytes, ENOMEM);
  const size_t huge_bytes = RoundUp(bytes);
  const bool huge = policy != PagePolicy::kSmall && bytes >= kHugePageBytes;
  if (huge || policy == PagePolicy::kReserved) {
    // Not MAP_NORESERVE: too few pages are an error here, and SIGBUS at the touch otherwise.
    if (std::byte* const base = MapAnonymous(huge_bytes, MAP_HUGETLB))
      return PagedMemory(base, huge_bytes, PageKind::kReserved);
    if (policy == PagePolicy::kReserved) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "no %d reserved huge pages for %d bytes: reserve them (sysctl vm.nr_hugepages), or "
          "do not ask for them",
          huge_bytes / kHugePageBytes, bytes));
    }
  }
  if (huge) {
    std::byte* const base = MapAligned(huge_bytes);
    if (base == nullptr) return Refused(bytes, errno);
    // EINVAL: a kernel without them.
    const bool advised = madvise(base, huge_bytes, MADV_HUGEPAGE) == 0;
    return PagedMemory(base, huge_bytes, advised ? PageKind::kTransparent : PageKind::kSmall);
  }
  std::byte* const base = MapAnonymous(bytes, MAP_NORESERVE);
  if (base == nullptr) return Refused(bytes, errno);
  return PagedMemory(base, bytes, PageKind::kSmall);
}

}  // namespace ckv
