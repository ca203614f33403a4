// How a ckvd keeps the memory of messages. Called once, before other threads are started.

#pragma once

#include <malloc.h>

namespace ckv {

// For a holder. Besides rows, its heap holds control messages of up to 1 MiB, which other threads
// free than allocate. By default glibc keeps that memory in one arena per thread and no longer
// unmaps it after the first is freed. That took 74 to 103 MiB over `store.capacity` while one
// loader sent as fast as it could. With these settings it takes 45 to 63 MiB and is no slower.
inline void KeepHeapSmall() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

// For a requester, whose answers leave in messages of up to 4 MiB. Memory that goes back to the
// kernel after each answer comes as fresh pages for the next. An attend of 256 rows over gRPC (half
// a megabyte) took 1,050 us beside its kernel so. It takes 620 where 8 MiB at the top of an arena
// are kept; more made it no faster. In a process of both roles this one counts.
inline void KeepHeapForAnswers() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 8 << 20);
}

}  // namespace ckv
