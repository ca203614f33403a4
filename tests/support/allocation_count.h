// Counts what a thread allocates with operator new. Replaces the global operators, so one source
// file of a test includes it.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#include "tests/support/sanitized.h"

// The sanitizers have an allocator of their own.
inline constexpr bool kCountsAllocations = !ckv::kSanitized;
inline thread_local uint64_t allocation_count = 0;
#if !defined(CKV_TEST_ADDRESS_SANITIZER) && !defined(CKV_TEST_THREAD_SANITIZER)
// Not inlined: gcc would pair an inlined malloc with a delete and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocation_count;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  ++allocation_count;
  const size_t align = static_cast<size_t>(alignment);
  void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif
