// XXH3 in the widest vectors of this machine: the same bits from the caches at 37 instead of 15
// GB/s (AVX-512 against SSE2, which <xxhash.h> alone gives), beside a memcpy of 43.

#pragma once

#define XXH_STATIC_LINKING_ONLY  // XXH3_state_t by value
#include <xxhash.h>

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif
