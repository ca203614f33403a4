// Memory and streams of a stand-in library's device, for tests that act as an engine with CUDA. The
// library's backend must have been opened before. C11, and C++.
//
// Work is done when its stream is waited for, and not before (tests/support/deferred_backend.h).
// Any other access to the device's memory ends the process.

#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define STAND_IN_SHOWN [[gnu::visibility("default")]]
#else
#define STAND_IN_SHOWN
#endif

// Memory of a kind (CKV_MEMORY_...); and a copy between any kinds, done when it returns.
STAND_IN_SHOWN void* stand_in_allocate(uint32_t kind, uint64_t bytes);
STAND_IN_SHOWN void stand_in_free(void* memory);
STAND_IN_SHOWN void stand_in_copy(void* to, const void* from, uint64_t bytes);

// A native stream, and a copy to memory of the device that is put on it. The copy has an even
// number of bytes, of host memory that stays until it is done.
STAND_IN_SHOWN void* stand_in_stream_new(void);
STAND_IN_SHOWN void stand_in_stream_copy(void* native, void* to, const void* from, uint64_t bytes);
STAND_IN_SHOWN int stand_in_stream_ready(void* native);
STAND_IN_SHOWN void stand_in_stream_free(void* native);

// Does the work of all streams, as time does on a device.
STAND_IN_SHOWN void stand_in_do_all(void);
// Attends that were put on its streams.
STAND_IN_SHOWN uint64_t stand_in_attend_count(void);

#ifdef __cplusplus
}
#endif
