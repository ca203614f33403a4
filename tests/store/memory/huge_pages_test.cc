// Goal: memory is in the pages that were requested, or in the next best, and reports which; what
// cannot be had is an error, never a fault at the first touch.

#include "store/memory/huge_pages.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "store/memory/arena.h"

namespace ckv {
namespace {

// A line of /proc/meminfo, in its unit.
uint64_t MemInfo(const std::string& name) {
  std::ifstream in("/proc/meminfo");
  for (std::string word; in >> word;) {
    uint64_t value = 0;
    if (word == name + ":" && in >> value) return value;
  }
  return 0;
}

// The size of the huge pages in the mapping at `address`, as the kernel reports it, in KiB.
uint64_t HugeKiBAt(const std::byte* address) {
  std::ifstream in("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool here = false;
  for (std::string line; std::getline(in, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      here = wanted >= begin && wanted < end;
    uint64_t kib = 0;
    if (here && std::sscanf(line.c_str(), "AnonHugePages: %lu", &kib) == 1) return kib;
  }
  return 0;
}

TEST(HugePages, AutoTakesTheBestThereIs) {
  constexpr size_t kBytes = 3 * kHugePageBytes + 5;
  const PagedMemory memory = *PagedMemory::Map(kBytes, PagePolicy::kAuto);
  std::memset(memory.base(), 1, kBytes);
  EXPECT_EQ(memory.base()[kBytes - 1], std::byte{1});
  if (MemInfo("HugePages_Free") >= 4) {
    EXPECT_EQ(memory.kind(), PageKind::kReserved);
  } else {
    EXPECT_NE(memory.kind(), PageKind::kReserved);
  }
  if (memory.kind() != PageKind::kSmall) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.base()) % kHugePageBytes, 0u);
  }
  // If the kernel may make huge pages, it does so for touched memory.
  std::ifstream enabled("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string setting;
  std::getline(enabled, setting);
  const bool never = setting.empty() || setting.find("[never]") != std::string::npos;
  if (memory.kind() == PageKind::kTransparent && !never && MemInfo("MemAvailable") > 1 << 20) {
    EXPECT_GT(HugeKiBAt(memory.base()), 0u);
  }
}

TEST(HugePages, LittleMemoryIsInSmallOnes) {
  EXPECT_EQ(PagedMemory::Map(4096, PagePolicy::kAuto)->kind(), PageKind::kSmall);
  EXPECT_EQ(PagedMemory::Map(16 * kHugePageBytes, PagePolicy::kSmall)->kind(), PageKind::kSmall);
}

TEST(HugePages, ReservedOnesOrAnError) {
  const uint64_t pages = MemInfo("HugePages_Total") + 1;
  const auto memory = PagedMemory::Map(pages * kHugePageBytes, PagePolicy::kReserved);
  ASSERT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(memory.status().message().find("vm.nr_hugepages"), std::string::npos);
  const auto arena = Arena::Create(pages * kHugePageBytes, PagePolicy::kReserved);
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(HugePages, AbsurdSizesAreRefused) {
  for (const PagePolicy policy : {PagePolicy::kAuto, PagePolicy::kSmall, PagePolicy::kReserved}) {
    for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2})
      EXPECT_EQ(PagedMemory::Map(bytes, policy).status().code(),
                absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace ckv
