// Goal: structs of programs of other versions are read as VERSIONS in ckv.h defines.

#include "client/bindings/c/struct_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace ckv::c {
namespace {

// A struct to which a minor version has added `second`.
struct Known {
  size_t struct_size;
  uint64_t first;
  uint64_t second;
};
}  // namespace

template <>
inline constexpr size_t kStructBytesMin<Known> = offsetof(Known, second);

namespace {
struct Newer {
  Known known;
  uint64_t third;
};

TEST(TakeStruct, FieldsThatAnOlderProgramDoesNotHaveAreZero) {
  const Known from = {offsetof(Known, second), 5, 77};
  Known to = {};
  ASSERT_TRUE(TakeStruct("known", &from, to).ok());
  EXPECT_EQ(to.first, 5u);
  EXPECT_EQ(to.second, 0u);
}

TEST(TakeStruct, ANewerStructIsTakenIfWhatIsNewIsZero) {
  Newer from = {{sizeof(Newer), 5, 6}, 0};
  Known to = {};
  ASSERT_TRUE(TakeStruct("known", &from.known, to).ok());
  EXPECT_EQ(to.second, 6u);
  reinterpret_cast<unsigned char*>(&from.third)[7] = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(TakeStruct("known", &from.known, to)));
}

TEST(TakeStruct, ASizeThatIsOfNoVersionIsRefused) {
  Known to = {};
  EXPECT_TRUE(absl::IsInvalidArgument(TakeStruct<Known>("known", nullptr, to)));
  for (const size_t size :
       {size_t{0}, sizeof(size_t), kStructBytesMin<Known> - 1, kStructBytesMax + 1, SIZE_MAX}) {
    const Known from = {size, 5, 6};
    EXPECT_TRUE(absl::IsInvalidArgument(TakeStruct("known", &from, to))) << size;
    Known at = from;
    EXPECT_TRUE(absl::IsInvalidArgument(CheckStruct("known", &at))) << size;
    EXPECT_TRUE(absl::IsInvalidArgument(GiveStruct("known", Known{0, 1, 2}, &at))) << size;
    EXPECT_EQ(at.first, 5u);
  }
}

TEST(GiveStruct, WritesOnlyTheFieldsOfTheCallersVersion) {
  const Known made = {0, 5, 6};
  Known older = {offsetof(Known, second), 0, 77};
  ASSERT_TRUE(GiveStruct("known", made, &older).ok());
  EXPECT_EQ(older.struct_size, offsetof(Known, second));
  EXPECT_EQ(older.first, 5u);
  EXPECT_EQ(older.second, 77u);

  Newer newer = {{sizeof(Newer), 0, 0}, 0};
  ASSERT_TRUE(GiveStruct("known", made, &newer.known).ok());
  EXPECT_EQ(newer.known.struct_size, sizeof(Newer));
  EXPECT_EQ(newer.known.second, 6u);
  EXPECT_EQ(newer.third, 0u);
}

TEST(ForEachStruct, StepsByTheSizeOfAnElement) {
  const Newer from[] = {{{sizeof(Newer), 1, 2}, 0}, {{sizeof(Newer), 3, 4}, 0}};
  std::vector<uint64_t> seen;
  const auto take = [&](const Known& one) {
    seen.push_back(one.first);
    return absl::OkStatus();
  };
  ASSERT_TRUE(ForEachStruct("known", &from[0].known, 2, take).ok());
  EXPECT_THAT(seen, testing::ElementsAre(1u, 3u));
  EXPECT_TRUE(absl::IsInvalidArgument(ForEachStruct<Known>("known", nullptr, 2, take)));
  EXPECT_TRUE(ForEachStruct<Known>("known", nullptr, 0, take).ok());

  const Newer mixed[] = {{{sizeof(Newer), 1, 2}, 0}, {{sizeof(Known), 3, 4}, 0}};
  EXPECT_TRUE(absl::IsInvalidArgument(ForEachStruct("known", &mixed[0].known, 2, take)));
}

}  // namespace
}  // namespace ckv::c
