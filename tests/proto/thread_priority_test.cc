// Goal: a thread whose work may wait has a lower priority, and no other thread has.

#include "proto/host/thread_priority.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/host/thread.h"

namespace ckv {
namespace {

int NiceOfThisThread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid))); }

TEST(LowerThreadPriority, IsOfTheCallingThreadAlone) {
  const int before = NiceOfThisThread();
  if (before >= 10) GTEST_SKIP() << "this process has a low priority; to run it: without nice";
  int lowered = 0;
  Thread thread([&] {
    LowerThreadPriority();
    lowered = NiceOfThisThread();
  });
  thread.join();
  EXPECT_EQ(lowered, 10);
  EXPECT_EQ(NiceOfThisThread(), before);
}

}  // namespace
}  // namespace ckv
