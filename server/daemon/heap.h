// Heap settings of a ckvd. Call one of them once, before other threads start.

#pragma once

#include <malloc.h>

namespace ckv {

// For a holder. Besides rows, its heap has control messages of up to 1 MiB, freed by other threads
// than those that allocate them. By default glibc keeps this memory in one arena per thread, and no
// longer unmaps it once the first message is freed. That took 74 to 103 MiB over `store.capacity`
// while one loader sent as fast as it could. With these settings it takes 45 to 63 MiB and is no
// slower.
inline void KeepHeapSmall() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

// For a requester, whose replies are messages of up to 4 MiB. By default their memory returns to
// the kernel after each reply, and the next reply needs fresh pages. As a result, an attend of 256
// rows over gRPC (half a megabyte) took 1,050 us in addition to its kernel. It takes 620 us if 8
// MiB at the top of an arena are kept; more did not make it faster. In a process of both roles this
// function applies.
inline void KeepHeapForAnswers() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 8 << 20);
}

}  // namespace ckv
