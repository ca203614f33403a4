#include "client/paged/cache_flush.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace ckv {

void FlushFromCaches([[maybe_unused]] std::span<const std::byte> rows) {
#if defined(__x86_64__)
  constexpr size_t kLineBytes = 64;
  if (rows.empty()) return;
  for (size_t i = 0; i < rows.size(); i += kLineBytes) _mm_clflush(rows.data() + i);
  _mm_clflush(&rows.back());
  _mm_mfence();
#endif
}

}  // namespace ckv
