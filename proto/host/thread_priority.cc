#include "proto/host/thread_priority.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ckv {

void LowerThreadPriority() {
  // Linux has a priority for each thread; POSIX would have one for the process.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
}

}  // namespace ckv
