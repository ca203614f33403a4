// Debian's abseil checks the order in which a process takes its locks.

#pragma once

namespace ckv {

// Ends these checks in the whole process, for every user of the same abseil. Cheap, and may be
// called again. Builds with the address or the thread sanitizer keep them.
//
// Debian builds abseil without NDEBUG. Each acquisition of a Mutex then takes one lock of the
// process, to record the order, and the process is aborted if two orders differ. gRPC uses these
// locks, too (deploy/adr/0057-no-lock-order-checks.md).
void EndLockOrderChecks();

}  // namespace ckv
