// Goal: a kept choice read back is the one written, and no byte of its file can change unnoticed.

#include "client/cost/kernel_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace ckv {
namespace {

const KernelRecord kRecord = {"AVX512_BF16",
                              {.f32 = 270.125, .amx = 0, .dot = 504.0 / 7},
                              "AuthenticAMD 26.2.1, hypervisor; targets AVX3 \"AVX2\""};

TEST(KernelRecord, RoundTrips) {
  const std::string text = FormatKernelRecord(kRecord);
  EXPECT_LT(text.size(), kKernelRecordBytesMax);
  const auto read = ParseKernelRecord(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, kRecord);
  EXPECT_EQ(FormatKernelRecord(*read), text);
}

TEST(KernelRecord, NoByteChangesUnnoticed) {
  const std::string text = FormatKernelRecord(kRecord);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] ^= 1;
    EXPECT_EQ(ParseKernelRecord(damaged).status().code(), absl::StatusCode::kDataLoss) << i;
    EXPECT_EQ(ParseKernelRecord(text.substr(0, i)).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(ParseKernelRecord(text + "\n").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ParseKernelRecord(std::string(kKernelRecordBytesMax + 1, ' ')).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(KernelRecord, RefusesImplausibleFieldsByName) {
  const nlohmann::json good = KernelRecordJson(kRecord);
  ASSERT_TRUE(ReadKernelRecord(good).ok());
  for (const auto& [key, value] : std::vector<std::pair<std::string, nlohmann::json>>{
           {"target", 7},
           {"machine", nullptr},
           {"f32_gflop_per_s", -1.0},
           {"amx_gflop_per_s", "x"},
           {"avx512_bf16_gflop_per_s", std::numeric_limits<double>::infinity()}}) {
    nlohmann::json lie = good;
    lie[key] = value;
    const absl::Status status = ReadKernelRecord(lie).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("kernel: " + key));
    lie.erase(key);
    EXPECT_EQ(ReadKernelRecord(lie).status().code(), absl::StatusCode::kInvalidArgument) << key;
  }
  EXPECT_FALSE(ReadKernelRecord(nlohmann::json::array()).ok());
}

}  // namespace
}  // namespace ckv
