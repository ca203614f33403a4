// Goal: one grammar for sizes, which refuses what it does not know.

#include "proto/base/byte_size.h"

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(ByteSize, TakesEveryUnit) {
  EXPECT_EQ(*ParseByteSize("0"), 0u);
  EXPECT_EQ(*ParseByteSize("4096"), 4096u);
  EXPECT_EQ(*ParseByteSize("17B"), 17u);
  EXPECT_EQ(*ParseByteSize("3 KiB"), 3072u);
  EXPECT_EQ(*ParseByteSize("512MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseByteSize("8GiB"), uint64_t{8} << 30);
  EXPECT_EQ(*ParseByteSize("64TiB"), uint64_t{64} << 40);
}

TEST(ByteSize, RefusesTheRest) {
  for (const char* text : {"", "GiB", "-1", "1.5GiB", "1GB", "1 G iB", "1kib",
                           "99999999999999999999", "18446744073709551615TiB"}) {
    EXPECT_EQ(ParseByteSize(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace ckv
