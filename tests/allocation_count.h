// Counts what a thread allocates with operator new. Replaces the global operators, so one source
// file of a test includes it.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

// The sanitizers have an allocator of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsAllocations = false;
inline thread_local uint64_t allocation_count = 0;
#else
inline constexpr bool kCountsAllocations = true;
inline thread_local uint64_t allocation_count = 0;
// Not inlined: gcc would pair an inlined malloc with a delete and warn.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocation_count;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif
