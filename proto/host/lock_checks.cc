#include "proto/host/lock_checks.h"

#include "absl/synchronization/mutex.h"

namespace ckv {

void EndLockOrderChecks() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace ckv
