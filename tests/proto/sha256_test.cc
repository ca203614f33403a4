#include "proto/base/sha256.h"

#include <gtest/gtest.h>

#include <string>

#include "proto/ids.h"

namespace ckv {
namespace {

std::string HexOf(Sha256& sha) { return ChunkId{sha.Finish()}.ToHex(); }

// The examples of FIPS 180-2: nothing, "abc", and a million times 'a' in uneven pieces.
TEST(Sha256, PublishedVectors) {
  Sha256 nothing;
  EXPECT_EQ(HexOf(nothing), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 abc;
  abc.Append(std::as_bytes(std::span("abc", 3)));
  EXPECT_EQ(HexOf(abc), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 million;
  size_t left = 1'000'000;
  for (size_t piece = 1; left > 0; piece = piece * 2 + 1) {
    const std::string text(std::min(piece, left), 'a');
    million.Append(std::as_bytes(std::span(text)));
    left -= text.size();
  }
  EXPECT_EQ(HexOf(million), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, StringsDoNotRunIntoEachOther) {
  Sha256 ab_c, a_bc;
  ab_c.AppendString("ab");
  ab_c.AppendString("c");
  a_bc.AppendString("a");
  a_bc.AppendString("bc");
  EXPECT_NE(ab_c.Finish(), a_bc.Finish());
}

TEST(Sha256, ValuesAreLittleEndian) {
  Sha256 value, bytes;
  value.AppendValue(uint32_t{0x04030201});
  bytes.Append(std::as_bytes(std::span("\1\2\3\4", 4)));
  EXPECT_EQ(value.Finish(), bytes.Finish());
}

}  // namespace
}  // namespace ckv
