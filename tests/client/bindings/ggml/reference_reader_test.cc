// Goal: a reference in a cache is read as it was written, in the layer that it was written for, or
// refused. No ordinary row is taken for one.
// Method: references of several layers; damaged ones; more than are kept.

#include "client/bindings/ggml/reference_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/client/bindings/ggml/engine_cache.h"

namespace ckv::ggml {
namespace {

using testing::HasSubstr;

CellReference Reference(uint32_t layer, uint64_t position = 40) {
  CellReference reference;
  reference.corpus = "docs";
  reference.tenant = "acme";
  reference.digest.fill(9);
  reference.chunk_begin = 2;
  reference.chunk_end = 5;
  reference.position = position;
  reference.token_count = 100;
  reference.layer = layer;
  return reference;
}

std::vector<std::byte> Row(const CellReference& reference) {
  std::vector<std::byte> row(576 * 2);
  EXPECT_TRUE(EncodeReference(reference, row).ok());
  return row;
}

TEST(ReferenceReader, ReadsTheSameReferenceInAllLayers) {
  ReferenceReader reader;
  const auto first = reader.Read(Row(Reference(0)), 0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->corpus, "docs");
  EXPECT_EQ((*first)->tenant, "acme");
  EXPECT_EQ((*first)->digest, Reference(0).digest);
  EXPECT_EQ((*first)->chunk_begin, 2u);
  EXPECT_EQ((*first)->chunk_end, 5u);
  EXPECT_EQ((*first)->position, 40);
  for (const uint32_t layer : {1u, 26u, 0u}) {
    const auto again = reader.Read(Row(Reference(layer)), layer);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *first);
  }
  const auto elsewhere = reader.Read(Row(Reference(0, 41)), 0);
  ASSERT_TRUE(elsewhere.ok());
  EXPECT_NE(*elsewhere, *first);
}

// A cell that an engine moved to another layer's cache would answer for that layer.
TEST(ReferenceReader, RefusesAReferenceOfAnotherLayer) {
  ReferenceReader reader;
  for (int round = 0; round < 2; ++round) {  // unknown, then known
    const auto read = reader.Read(Row(Reference(3)), 4);
    ASSERT_TRUE(absl::IsDataLoss(read.status())) << read.status();
    EXPECT_THAT(read.status().message(), HasSubstr("of layer 3 is in the cache of layer 4"));
    EXPECT_TRUE(reader.Read(Row(Reference(3)), 3).ok());
  }
}

TEST(ReferenceReader, DamageIsRefused) {
  ReferenceReader reader;
  const std::vector<std::byte> good = Row(Reference(0));
  ASSERT_TRUE(reader.Read(good, 0).ok());
  std::mt19937 rng(1);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::byte> row = good;
    row[rng() % row.size()] ^= std::byte{static_cast<uint8_t>(1 + rng() % 255)};
    EXPECT_TRUE(absl::IsDataLoss(reader.Read(row, 0).status()));
  }
  const std::vector<std::byte> nan(576 * 2, std::byte{0xff});
  const auto read = reader.Read(nan, 0);
  EXPECT_TRUE(absl::IsDataLoss(read.status()));
  EXPECT_THAT(read.status().message(), HasSubstr("NaN and no reference"));
}

TEST(ReferenceReader, ReadsMoreThanItKeeps) {
  ReferenceReader reader;
  for (uint32_t i = 0; i < ReferenceReader::kRowCountMax + 100; ++i) {
    const auto read = reader.Read(Row(Reference(i % 7, i)), i % 7);
    ASSERT_TRUE(read.ok());
    EXPECT_EQ((*read)->position, i);
  }
}

TEST(ReferenceReader, OrdinaryRowsPass) {
  std::mt19937 rng(2);
  for (int round = 0; round < 1000; ++round) {
    const std::vector<uint16_t> row = test::RandomBf16(8, rng, 1e30f);
    EXPECT_FALSE(MayBeReference(std::as_bytes(std::span(row))));
  }
  EXPECT_TRUE(MayBeReference(Row(Reference(0))));
  // One NaN is an ordinary row's, too: the attention finds it.
  const std::vector<uint16_t> row = {0x7fc0, 0x3f80, 0x7fc0, 0x7fc0};
  EXPECT_FALSE(MayBeReference(std::as_bytes(std::span(row))));
}

}  // namespace
}  // namespace ckv::ggml
