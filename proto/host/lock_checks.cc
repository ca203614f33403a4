#include "proto/host/lock_checks.h"

#include "absl/base/config.h"
#include "absl/synchronization/mutex.h"

namespace ckv {

void EndLockOrderChecks() {
#if !defined(ABSL_HAVE_ADDRESS_SANITIZER) && !defined(ABSL_HAVE_THREAD_SANITIZER)
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace ckv
