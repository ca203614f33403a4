// Goal: a reference is decoded as it was written, and any change to it is noticed: an engine must
// not attend rows other than those that were meant.
// Method: references of every kind through a row and back; every bit of a row flipped; rows that an
// engine may have.

#include "store/formats/reference_cell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "proto/geometry.h"

namespace ckv {
namespace {

using testing::HasSubstr;

CellReference Reference() {
  CellReference reference;
  reference.corpus = "manual";
  reference.tenant = "acme";
  for (size_t i = 0; i < 32; ++i) reference.digest[i] = static_cast<uint8_t>(7 * i + 1);
  reference.chunk_begin = 3;
  reference.chunk_end = 9;
  reference.position = 1u << 20;
  reference.token_count = 12345;
  reference.layer = 26;
  return reference;
}

std::vector<std::byte> Row(const CellReference& reference, size_t values = 576) {
  std::vector<std::byte> row(values * 2);
  const absl::Status status = EncodeReference(reference, row);
  EXPECT_TRUE(status.ok()) << status;
  return row;
}

float FloatOf(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

std::vector<uint16_t> ValuesOf(std::span<const std::byte> row) {
  std::vector<uint16_t> values(row.size() / 2);
  std::memcpy(values.data(), row.data(), row.size());
  return values;
}

TEST(ReferenceCell, RoundTripsAReference) {
  CellReference longest = Reference();
  longest.corpus = std::string(128, 'c');
  longest.tenant = std::string(128, 't');
  longest.position = kPositionMax - longest.token_count;
  longest.chunk_end = UINT32_MAX;
  longest.layer = kLayerCountMax - 1;
  longest.digest.fill(0xff);
  CellReference shared = Reference();
  shared.tenant = "";
  for (const CellReference& reference : {Reference(), longest, shared}) {
    for (const size_t values : {576u, 577u, 1024u}) {
      const auto row = Row(reference, values);
      EXPECT_TRUE(IsReference(row));
      const auto decoded = DecodeReference(row);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(*decoded, reference);
    }
  }
}

// An engine that computes with a reference must notice it.
TEST(ReferenceCell, IsNanThroughout) {
  for (const uint16_t value : ValuesOf(Row(Reference()))) {
    EXPECT_TRUE(std::isnan(FloatOf(value)));
    EXPECT_NE(value & 0x40, 0);  // quiet
    EXPECT_TRUE(std::isnan(0 * FloatOf(value)));
  }
}

TEST(ReferenceCell, EveryFlippedBitIsNoticed) {
  for (const size_t values : {576u, 577u}) {
    const auto row = Row(Reference(), values);
    for (size_t bit = 0; bit < row.size() * 8; ++bit) {
      std::vector<std::byte> flipped = row;
      flipped[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_FALSE(DecodeReference(flipped).ok()) << bit;
    }
  }
}

// Rows of any width that begin as a reference does and continue at random.
TEST(ReferenceCell, RefusesOtherRowsWithItsMark) {
  std::mt19937 rng(5);
  const auto valid = ValuesOf(Row(Reference()));
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint16_t> values(rng() % 700);
    for (uint16_t& value : values) value = static_cast<uint16_t>(0x7fc0 | (rng() & 0x803f));
    // The mark, and in half of them the version, too.
    const size_t kept = std::min<size_t>(values.size(), round % 2 == 0 ? 10 : 14);
    std::copy(valid.begin(), valid.begin() + static_cast<ptrdiff_t>(kept), values.begin());
    EXPECT_FALSE(DecodeReference(std::as_bytes(std::span(values))).ok()) << round;
  }
}

TEST(ReferenceCell, ReportsHowItWasChanged) {
  std::vector<std::byte> row = Row(Reference());
  // Bit 0 of value 20 is bit 140 of the reference: of its digest.
  row[40] ^= std::byte{1};
  EXPECT_TRUE(absl::IsDataLoss(DecodeReference(row).status()));
  row = Row(Reference());
  // The version begins with bit 64: bit 1 of value 9.
  row[18] ^= std::byte{2};
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodeReference(row).status()));
  EXPECT_TRUE(IsReference(row));
  row = Row(Reference());
  row[1] = std::byte{0};
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeReference(row).status()));
}

TEST(ReferenceCell, RowsOfEnginesAreNoReferences) {
  std::vector<uint16_t> values(576, 0x7fc0);
  const auto row = [&] { return std::as_bytes(std::span(values)); };
  EXPECT_FALSE(IsReference(row()));  // what a kernel gives for 0 / 0
  for (uint16_t& value : values) value = 0xffff;
  EXPECT_FALSE(IsReference(row()));
  for (uint16_t& value : values) value = 0;
  EXPECT_FALSE(IsReference(row()));
  EXPECT_FALSE(IsReference({}));
  EXPECT_FALSE(IsReference(row().first(9)));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeReference(row()).status()));
}

TEST(ReferenceCell, RefusesWhatNamesNoRows) {
  const auto refused = [](auto change, const char* what, size_t row_bytes = 1152) {
    CellReference reference = Reference();
    change(reference);
    std::vector<std::byte> row(row_bytes);
    const absl::Status status = EncodeReference(reference, row);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  refused([](CellReference& reference) { reference.corpus = ""; }, "no corpus");
  refused([](CellReference& reference) { reference.corpus = "a b"; }, "name");
  refused([](CellReference& reference) { reference.tenant = std::string(129, 'x'); }, "name");
  refused([](CellReference& reference) { reference.chunk_end = 3; }, "no chunk");
  refused([](CellReference& reference) { reference.token_count = 0; }, "no token");
  refused([](CellReference& reference) { reference.position = kPositionMax; }, "limit");
  refused([](CellReference& reference) { reference.layer = kLayerCountMax; }, "layer 512");
  const auto nothing = [](CellReference&) {};
  refused(nothing, "92 bytes, and a row of 80 has room for 35", 80);
  refused(nothing, "room for", 1151);
}

TEST(ReferenceCell, ADigestNamesTheChunksTheirOrderAndTheModel) {
  Geometry geometry;
  geometry.model = "m";
  std::vector<ChunkPlacement> chunks(2);
  chunks[0].id.bytes[0] = 1;
  chunks[1].id.bytes[0] = 2;
  const auto digest = DigestOfChunks(geometry, chunks);
  chunks[0].set_holders({{"h"}});
  EXPECT_EQ(DigestOfChunks(geometry, chunks), digest);
  std::swap(chunks[0], chunks[1]);
  EXPECT_NE(DigestOfChunks(geometry, chunks), digest);
  std::swap(chunks[0], chunks[1]);
  EXPECT_NE(DigestOfChunks(geometry, std::span(chunks).first(1)), digest);
  geometry.revision = "2";
  EXPECT_NE(DigestOfChunks(geometry, chunks), digest);
}

}  // namespace
}  // namespace ckv
