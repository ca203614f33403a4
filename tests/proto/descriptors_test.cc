#include "proto/host/descriptors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace ckv {
namespace {

// The exit code of a child that runs `body`.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool IsNull(int fd) {
  struct stat there = {}, null = {};
  return fstat(fd, &there) == 0 && stat("/dev/null", &null) == 0 && there.st_rdev == null.st_rdev;
}

// Goal: whichever of the three are closed, nothing else can become one of them. Method: each of the
// eight sets of closed ones, in a child.
TEST(OpenStandardDescriptors, OpensThoseThatAreClosedAndNoOther) {
  for (int set = 0; set < 8; ++set) {
    EXPECT_EQ(InChild([set] {
                struct stat before[3] = {};
                for (int fd = 0; fd < 3; ++fd) {
                  fstat(fd, &before[fd]);
                  if ((set >> fd & 1) != 0) close(fd);
                }
                OpenStandardDescriptors();
                for (int fd = 0; fd < 3; ++fd) {
                  struct stat now = {};
                  if (fstat(fd, &now) != 0) return 1;
                  if ((set >> fd & 1) != 0 && !IsNull(fd)) return 2;
                  if ((set >> fd & 1) == 0 && now.st_ino != before[fd].st_ino) return 3;
                }
                const int next = dup(0);
                return next > 2 ? 0 : 4;
              }),
              0)
        << "set " << set;
  }
}

TEST(RaiseDescriptorLimit, RaisesTheSoftLimitToTheHardOne) {
  EXPECT_EQ(InChild([] {
              const rlimit limit = {40, 60};
              if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              const DescriptorLimit raised = RaiseDescriptorLimit();
              if (raised.before != 40 || raised.now != 60) return 2;
              const DescriptorLimit again = RaiseDescriptorLimit();
              return again.before == 60 && again.now == 60 ? 0 : 3;
            }),
            0);
}

}  // namespace
}  // namespace ckv
