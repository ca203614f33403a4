#include "proto/host/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace ckv {

void OpenStandardDescriptors() {
  int fd;
  // The lowest free number is given. It is not close-on-exec: a child needs these, too.
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

DescriptorLimit RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const uint64_t before = limit.rlim_cur;
  rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return {.before = before, .now = limit.rlim_cur};
}

}  // namespace ckv
