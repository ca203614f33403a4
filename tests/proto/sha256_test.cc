#include "proto/base/sha256.h"

#include <gtest/gtest.h>

#include <string>

#include "proto/ids.h"

namespace ckv {
namespace {

std::string HexOf(Sha256& sha) { return ChunkId{sha.Finish()}.ToHex(); }

// Test cases 1, 2 and 6 of RFC 4231.
TEST(HmacSha256, PublishedVectors) {
  const auto hmac = [](const std::string& key, const std::string& text) {
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(key.data()), key.size());
    return ChunkId{HmacSha256(bytes, std::as_bytes(std::span(text)))}.ToHex();
  };
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(
      hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

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
