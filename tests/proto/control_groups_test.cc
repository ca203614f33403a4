// Goal: the least limit counts, in both versions and however groups are mounted. Method: trees of
// files as /proc and /sys have them, below a folder.

#include "proto/host/control_groups.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

class ControlGroups : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = Root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  GroupLimits Read() const { return ReadGroupLimits(Root(), "7"); }
  std::string Root() const { return root_; }

 private:
  const std::string root_ =
      test::TempPath(testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(ControlGroups, NoneIsNoLimit) {
  const GroupLimits limits = Read();
  EXPECT_EQ(limits.memory_bytes, kNoGroupLimit);
  EXPECT_EQ(limits.process_count, kNoGroupLimit);
  EXPECT_EQ(limits.processors, 0);
  EXPECT_TRUE(limits.memory_file.empty());
}

TEST_F(ControlGroups, TheSecondVersionsLeastLimitOfAllAncestors) {
  Write("/proc/7/cgroup", "0::/system.slice/ckvd.service");
  Write("/sys/fs/cgroup/system.slice/ckvd.service/memory.max", "8589934592");
  Write("/sys/fs/cgroup/system.slice/ckvd.service/cpu.max", "max 100000");
  Write("/sys/fs/cgroup/system.slice/ckvd.service/pids.max", "max");
  Write("/sys/fs/cgroup/system.slice/memory.max", "4294967296");
  Write("/sys/fs/cgroup/system.slice/cpu.max", "150000 100000");
  Write("/sys/fs/cgroup/system.slice/pids.max", "20");
  const GroupLimits limits = Read();
  EXPECT_EQ(limits.memory_bytes, 4294967296u);
  EXPECT_EQ(limits.memory_file, "/sys/fs/cgroup/system.slice/memory.max");
  EXPECT_EQ(limits.process_count, 20u);
  EXPECT_DOUBLE_EQ(limits.processors, 1.5);
}

TEST_F(ControlGroups, TheFirstVersionsTreesOfControllers) {
  Write("/proc/7/cgroup", "9:name=systemd:/\n8:pids:/a\n4:memory:/a/b\n2:cpu,cpuacct:/a/b\n0::/");
  Write("/proc/7/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
        "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 23 0:28 / /cgroups/pids rw shared:9 - cgroup cgroup rw,pids\n"
        "33 23 0:29 / /proc rw - proc proc rw");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "314572800");
  Write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712");
  Write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1");
  Write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000");
  Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000");
  Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000");
  Write("/cgroups/pids/a/pids.max", "24");
  const GroupLimits limits = Read();
  EXPECT_EQ(limits.memory_bytes, 314572800u);
  EXPECT_EQ(limits.memory_file, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
  EXPECT_EQ(limits.process_count, 24u);
  EXPECT_DOUBLE_EQ(limits.processors, 0.5);
}

// A container without a namespace of groups reads its path in the whole machine, and has its own
// group at the top of the mounts.
TEST_F(ControlGroups, AContainerSeesItsOwnGroupAtTheTop) {
  Write("/proc/7/cgroup", "4:memory:/docker/0123\n0::/docker/0123");
  Write("/proc/7/mountinfo",
        "30 23 0:26 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "31 23 0:27 /docker/0123 /sys/fs/cgroup/unified ro - cgroup2 cgroup rw");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600");
  Write("/sys/fs/cgroup/unified/pids.max", "100");
  EXPECT_EQ(Read().memory_bytes, 104857600u);
  EXPECT_EQ(Read().process_count, 100u);
}

// The name of the one begins with that of the other, and it is not below it.
TEST_F(ControlGroups, ASiblingOfTheTopIsNotBelowIt) {
  Write("/proc/7/cgroup", "0::/docker/0123");
  Write("/proc/7/mountinfo", "31 23 0:27 /docker/01 /sys/fs/cgroup ro - cgroup2 cgroup rw");
  Write("/sys/fs/cgroup/memory.max", "104857600");
  Write("/sys/fs/cgroup23/memory.max", "1000");
  EXPECT_EQ(Read().memory_bytes, 104857600u);
}

TEST_F(ControlGroups, ATopThatIsAnAncestorOfTheProcessIsRead) {
  Write("/proc/7/cgroup", "0::/../elsewhere");
  Write("/sys/fs/cgroup/memory.max", "1000");
  EXPECT_EQ(Read().memory_bytes, 1000u);
}

TEST_F(ControlGroups, WordsThatMakeNoSenseAreNoLimits) {
  Write("/proc/7/cgroup", "0::/a\nx\n::\n4:memory\n");
  Write("/proc/7/mountinfo",
        "30 23 - cgroup2\n - cgroup\n31 23 0:27 / /sys/fs/cgroup rw - cgroup2 c rw");
  Write("/sys/fs/cgroup/a/memory.max", "-5");
  Write("/sys/fs/cgroup/a/pids.max", "");
  Write("/sys/fs/cgroup/a/cpu.max", "100000");
  Write("/sys/fs/cgroup/cpu.max", "100000 0");
  const GroupLimits limits = Read();
  EXPECT_EQ(limits.memory_bytes, kNoGroupLimit);
  EXPECT_EQ(limits.process_count, kNoGroupLimit);
  EXPECT_EQ(limits.processors, 0);
}

TEST(UsableOfThisMachine, AreSomething) {
  std::string file;
  EXPECT_GT(UsableMemoryBytes(&file), 1u << 20);
  EXPECT_GE(UsableProcessors(), 1u);
}

}  // namespace
}  // namespace ckv
