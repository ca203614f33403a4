// Goal: one rule for token ids, whatever array holds them. Method: each number in each type that
// can hold it; those within 0 to 2^31 - 1 are taken, and others are refused by index and value.

#include "proto/token_id.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace ckv {
namespace {

template <typename T>
absl::StatusOr<std::vector<int32_t>> Read(const std::vector<T>& values, size_t shift = 0) {
  std::vector<std::byte> bytes(shift + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data() + shift, values.data(), values.size() * sizeof(T));
  return ReadTokenIds("ids", std::span(bytes).subspan(shift),
                      {.bytes = sizeof(T), .is_signed = std::is_signed_v<T>});
}

template <typename T>
void ExpectRefused(T value) {
  const absl::Status status = Read<T>({0, value, value}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(std::string(status.message()).find("ids[1] is " + std::to_string(value) + ", no token"),
            std::string::npos)
      << status;
}

TEST(TokenId, EveryTypeHasTheSameRule) {
  const std::vector<int32_t> good = {0, 1, 151643, INT32_MAX};
  EXPECT_EQ(*Read<int32_t>({0, 1, 151643, INT32_MAX}), good);
  EXPECT_EQ(*Read<uint32_t>({0, 1, 151643, INT32_MAX}), good);
  EXPECT_EQ(*Read<int64_t>({0, 1, 151643, INT32_MAX}), good);
  EXPECT_EQ(*Read<uint64_t>({0, 1, 151643, INT32_MAX}), good);
  EXPECT_TRUE(Read<int64_t>({})->empty());
  ExpectRefused<int32_t>(-1);
  ExpectRefused<int32_t>(INT32_MIN);
  ExpectRefused<uint32_t>(1u << 31);
  ExpectRefused<uint32_t>(UINT32_MAX);
  ExpectRefused<int64_t>(-1);
  ExpectRefused<int64_t>(INT64_MIN);
  ExpectRefused<int64_t>(int64_t{1} << 31);
  ExpectRefused<int64_t>((int64_t{1} << 32) + 1);
  ExpectRefused<uint64_t>(uint64_t{1} << 31);
  ExpectRefused<uint64_t>(UINT64_MAX);
}

TEST(TokenId, ReadsArraysAtAnyAlignment) {
  for (const size_t shift : {1, 2, 3, 7})
    EXPECT_EQ(*Read<int64_t>({5, 6}, shift), (std::vector<int32_t>{5, 6}));
  EXPECT_FALSE(ReadTokenIds("ids", std::vector<std::byte>(7), {}).ok());
  EXPECT_FALSE(
      ReadTokenIds("ids", std::vector<std::byte>(8), {.bytes = 2, .is_signed = true}).ok());
}

TEST(TokenId, Messages) {
  const std::vector<int32_t> ids = {3, -7};
  const std::string bytes(reinterpret_cast<const char*>(ids.data()), 8);
  EXPECT_EQ(TokenIdsFromBytes("token_ids", bytes, 2).status().message(),
            "token_ids[1] is -7, no token id: those are whole numbers from 0 to 2^31 - 1");
  EXPECT_EQ(CheckTokenIds("token_ids", ids), TokenIdsFromBytes("token_ids", bytes, 2).status());
  EXPECT_EQ(TokenIdsFromBytes("token_ids", bytes, 1).status().message(),
            "token_ids: 2 ids, limit 1");
  EXPECT_EQ(*TokenIdsFromBytes("token_ids", bytes.substr(0, 4), 1), std::vector<int32_t>{3});
  EXPECT_TRUE(TokenIdsFromBytes("token_ids", "", 1)->empty());
}

}  // namespace
}  // namespace ckv
