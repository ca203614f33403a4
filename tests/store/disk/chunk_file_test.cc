// Goal: a chunk file has, byte by byte and for ever, the layout that its header comment documents;
// and no byte of it can change unnoticed. Method: a golden file, every truncation, seeded flips,
// contradicting counts.

#include "store/disk/chunk_file.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string_view>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/stripe.h"
#include "proto/base/xxh3.h"
#include "store/memory/chunk_id.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

// The bytes of a chunk's whole file.
struct Image {
  Image(const Geometry& of, uint32_t token_count, std::string_view tenant = "")
      : geometry(of), chunk(MakeSmallChunk(geometry, token_count, /*seed=*/7)) {
    const ChunkLayout layout(geometry, token_count);
    std::vector<std::byte> rows(layout.total_bytes());
    std::vector<uint64_t> stripes;
    for (uint32_t t = 0; t < geometry.tensor_count(); ++t) {
      const std::span<const std::byte> tensor = chunk.layers[t];
      if (!tensor.empty()) std::memcpy(rows.data() + layout.begin(t), tensor.data(), tensor.size());
      const size_t stripe_bytes = size_t{kStripeTokens} * layout.row_bytes(t);
      for (size_t at = 0; at < tensor.size(); at += stripe_bytes) {
        stripes.push_back(
            StripeChecksum(tensor.subspan(at, std::min(stripe_bytes, tensor.size() - at))));
      }
    }
    bytes = EncodeChunkFileHeader(chunk.info, geometry, tenant, stripes);
    header_bytes = bytes.size();
    bytes.insert(bytes.end(), rows.begin(), rows.end());
  }

  Geometry geometry;
  SmallChunk chunk;
  std::vector<std::byte> bytes;
  size_t header_bytes = 0;
};

// What a reader of everything does.
absl::StatusOr<ChunkFileHeader> ReadAll(std::span<const std::byte> bytes) {
  CKV_ASSIGN_OR_RETURN(
      const ChunkFilePrefix prefix,
      DecodeChunkFilePrefix(bytes.first(std::min<size_t>(bytes.size(), kChunkFilePrefixBytes))));
  if (bytes.size() != prefix.file_bytes) return absl::DataLossError("another length");
  CKV_ASSIGN_OR_RETURN(ChunkFileHeader header,
                       DecodeChunkFileHeader(prefix, bytes.first(prefix.header_bytes)));
  const ChunkLayout layout = header.layout();
  for (uint32_t t = 0; t < layout.tensor_count(); ++t) {
    const std::span<const std::byte> padded =
        bytes.subspan(prefix.header_bytes + layout.begin(t), layout.padded_bytes(t));
    const std::span<const std::byte> rows = padded.first(layout.bytes(t));
    const size_t stripe_bytes = size_t{kStripeTokens} * layout.row_bytes(t);
    for (size_t at = 0; at < rows.size(); at += stripe_bytes) {
      CKV_RETURN_IF_ERROR(CheckStripe(header, t, static_cast<uint32_t>(at / stripe_bytes),
                                      rows.subspan(at, std::min(stripe_bytes, rows.size() - at))));
    }
    CKV_RETURN_IF_ERROR(CheckPadding(header, t, padded.subspan(rows.size())));
  }
  return header;
}

template <typename T>
T At(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

TEST(ChunkFile, ReadsBackAsItWasWritten) {
  for (const uint32_t tokens : {0u, 1u, 31u, 32u, 33u, 100u, 133u}) {
    const Image image(tokens < 100 ? SmallGeometry() : IndexedGeometry(), tokens, "tenant-a");
    const auto header = ReadAll(image.bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->info.id, image.chunk.info.id);
    EXPECT_EQ(header->info.token_ids, image.chunk.info.token_ids);
    EXPECT_EQ(header->info.tensor_checksums, image.chunk.info.tensor_checksums);
    EXPECT_EQ(header->geometry, image.geometry);
    EXPECT_EQ(header->tenant, "tenant-a");
    EXPECT_EQ(image.header_bytes,
              ChunkFileHeaderBytes(image.chunk.info, image.geometry, "tenant-a"));
    EXPECT_EQ(image.header_bytes % kChunkFileAlignment, 0u);
  }
}

// A chunk with a keyed id has its verification tag in its file.
TEST(ChunkFile, KeepsASeal) {
  const Geometry geometry = SmallGeometry();
  SmallChunk chunk = MakeSmallChunk(geometry, 33, 1);
  VerificationTag verification_tag;
  verification_tag.bytes[7] = 1;
  chunk.info.id = TaggedChunkId(chunk.info.id, verification_tag);
  chunk.info.verification_tag = verification_tag;
  const std::vector<uint64_t> stripes(geometry.layers * StripeCount(33));
  std::vector<std::byte> bytes = EncodeChunkFileHeader(chunk.info, geometry, "t", stripes);
  EXPECT_EQ(bytes.size(), ChunkFileHeaderBytes(chunk.info, geometry, "t"));
  EXPECT_EQ(At<uint32_t>(bytes, 8), 1u);
  const auto prefix = DecodeChunkFilePrefix(std::span(bytes).first(kChunkFilePrefixBytes));
  ASSERT_TRUE(prefix.ok()) << prefix.status();
  const auto header = DecodeChunkFileHeader(*prefix, bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->info.verification_tag, verification_tag);
  EXPECT_EQ(header->info.id, chunk.info.id);
  EXPECT_EQ(header->info.token_ids, chunk.info.token_ids);
  // Another verification tag does not give this id.
  chunk.info.verification_tag.bytes[7] = 2;
  bytes = EncodeChunkFileHeader(chunk.info, geometry, "t", stripes);
  const auto other = DecodeChunkFilePrefix(std::span(bytes).first(kChunkFilePrefixBytes));
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(absl::IsDataLoss(DecodeChunkFileHeader(*other, bytes).status()));
}

// Goal: a chunk keeps its extra keys in its file, with and without a verification tag, few and
// many.
// Method: written and read back; then every bit of the part that has them is damaged, with a
// checksum that fits, so that only the checks of the keys themselves can refuse it.
TEST(ChunkFile, KeepsExtraKeys) {
  const Geometry geometry = SmallGeometry();
  const std::vector<uint64_t> stripes(geometry.layers * StripeCount(33));
  for (const bool is_sealed : {false, true}) {
    for (const size_t count : {size_t{1}, size_t{3}, kExtraKeysMax}) {
      SmallChunk chunk = MakeSmallChunk(geometry, 33, 1);
      for (size_t i = 0; i < count; ++i) {
        chunk.info.extra_keys.push_back(
            {static_cast<int64_t>(i % 33) - 1, 2, std::to_string(i) + std::string(i % 60, 'x')});
      }
      chunk.info.extra_keys = *SortExtraKeys(chunk.info.extra_keys, 33);
      const ChunkId plain =
          ComputeChunkId(ModelFingerprint(geometry), chunk.info.parent, chunk.info.position,
                         chunk.info.token_ids, chunk.info.extra_keys);
      if (is_sealed) chunk.info.verification_tag.bytes[7] = 1;
      chunk.info.id = TaggedChunkId(plain, chunk.info.verification_tag);
      const auto bytes = EncodeChunkFileHeader(chunk.info, geometry, "t", stripes);
      EXPECT_EQ(bytes.size(), ChunkFileHeaderBytes(chunk.info, geometry, "t"));
      EXPECT_EQ(At<uint32_t>(bytes, 8), 1u);
      const auto prefix = DecodeChunkFilePrefix(std::span(bytes).first(kChunkFilePrefixBytes));
      ASSERT_TRUE(prefix.ok()) << prefix.status();
      const auto header = DecodeChunkFileHeader(*prefix, bytes);
      ASSERT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->info.extra_keys, chunk.info.extra_keys);
      EXPECT_EQ(header->info.verification_tag, chunk.info.verification_tag);
      EXPECT_EQ(header->info.token_ids, chunk.info.token_ids);
      EXPECT_EQ(header->info.tensor_checksums, chunk.info.tensor_checksums);
      // Other keys do not give this id.
      chunk.info.extra_keys.back().digest += 'y';
      const auto other = EncodeChunkFileHeader(chunk.info, geometry, "t", stripes);
      const auto decoded = DecodeChunkFilePrefix(std::span(other).first(kChunkFilePrefixBytes));
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_TRUE(absl::IsDataLoss(DecodeChunkFileHeader(*decoded, other).status()));
    }
  }
}

TEST(ChunkFile, DamagedExtraKeysAreRefused) {
  const Geometry geometry = SmallGeometry();
  const std::vector<uint64_t> stripes(geometry.layers * StripeCount(33));
  SmallChunk chunk = MakeSmallChunk(geometry, 33, 1);
  chunk.info.extra_keys = {{-1, 4, "one"}, {0, 0, "adapter"}};
  chunk.info.id = ComputeChunkId(ModelFingerprint(geometry), chunk.info.parent, chunk.info.position,
                                 chunk.info.token_ids, chunk.info.extra_keys);
  const std::vector<std::byte> whole = EncodeChunkFileHeader(chunk.info, geometry, "t", stripes);
  const std::string encoded = EncodeExtraKeys(chunk.info.extra_keys);
  const auto at = std::search(whole.begin(), whole.end(), encoded.begin(), encoded.end(),
                              [](std::byte a, char b) { return a == static_cast<std::byte>(b); });
  ASSERT_NE(at, whole.end());
  const auto begin = static_cast<size_t>(at - whole.begin()) - sizeof(uint32_t);
  for (size_t bit = 0; bit < 8 * (sizeof(uint32_t) + encoded.size()); ++bit) {
    std::vector<std::byte> bytes = whole;
    bytes[begin + bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    const uint64_t zero = 0;
    std::memcpy(bytes.data() + 120, &zero, sizeof(zero));
    const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
    std::memcpy(bytes.data() + 120, &checksum, sizeof(checksum));
    const auto prefix = DecodeChunkFilePrefix(std::span(bytes).first(kChunkFilePrefixBytes));
    ASSERT_TRUE(prefix.ok()) << prefix.status();
    const absl::Status status = DecodeChunkFileHeader(*prefix, bytes).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << "bit " << bit << ": " << status;
    EXPECT_EQ(std::string(status.message()).find("checksum"), std::string::npos) << status;
  }
}

// The offsets that the header comment documents, and the bytes there in version 1.
TEST(ChunkFile, MatchesTheDocumentedLayout) {
  const Image image(SmallGeometry(/*layers=*/2), 33, "t");
  const std::span<const std::byte> bytes = image.bytes;
  EXPECT_EQ(std::memcmp(bytes.data(), "ckvchunk", 8), 0);
  EXPECT_EQ(At<uint32_t>(bytes, 8), 1u);
  EXPECT_EQ(At<uint32_t>(bytes, 12), 4096u);
  EXPECT_EQ(std::memcmp(bytes.data() + 16, &image.chunk.info.id, 32), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 48, &image.chunk.info.parent, 32), 0);
  EXPECT_EQ(At<uint64_t>(bytes, 80), 0u);
  EXPECT_EQ(At<uint32_t>(bytes, 88), 33u);
  EXPECT_EQ(At<uint32_t>(bytes, 92), 2u);
  EXPECT_EQ(At<uint32_t>(bytes, 96), 0u);
  const auto geometry_bytes = At<uint16_t>(bytes, 100);
  EXPECT_EQ(At<uint16_t>(bytes, 102), 1u);
  EXPECT_EQ(At<uint64_t>(bytes, 104), 2 * 704u);  // 33 x 20 = 660
  EXPECT_EQ(At<uint64_t>(bytes, 112), 4096 + 2 * 704u);
  EXPECT_EQ(bytes.size(), 4096 + 2 * 704u);
  EXPECT_EQ(bytes[128], std::byte{'{'});
  size_t at = 128 + (geometry_bytes + 7u) / 8 * 8;
  EXPECT_EQ(bytes[at], std::byte{'t'});
  at += 8;
  EXPECT_EQ(std::memcmp(bytes.data() + at, VerificationTag().bytes.data(), 32), 0);
  at += 32;
  EXPECT_EQ(At<uint64_t>(bytes, at), 0u);  // no extra keys: their size and the padding to 8
  at += 8;
  EXPECT_EQ(At<int32_t>(bytes, at), image.chunk.info.token_ids[0]);
  at += (33 * 4 + 7) / 8 * 8;
  EXPECT_EQ(At<uint64_t>(bytes, at), image.chunk.info.tensor_checksums[0]);
  EXPECT_EQ(At<uint64_t>(bytes, at + 16),
            StripeChecksum(std::span<const std::byte>(image.chunk.layers[0]).first(32 * 20)));
  EXPECT_EQ(bytes[4096], image.chunk.layers[0][0]);
  EXPECT_EQ(bytes[4096 + 704], image.chunk.layers[1][0]);
  // The checksum of everything before the rows, so that no build changes the file by accident.
  EXPECT_EQ(At<uint64_t>(bytes, 120), uint64_t{4283763837918896666u});
}

TEST(ChunkFile, AShorterOrLongerFileIsDamaged) {
  Image image(SmallGeometry(), 100);
  for (size_t length = 0; length < image.bytes.size(); ++length) {
    const auto read = ReadAll(std::span(image.bytes).first(length));
    ASSERT_EQ(read.status().code(), StatusCode::kDataLoss) << length;
  }
  image.bytes.push_back(std::byte{0});
  EXPECT_EQ(ReadAll(image.bytes).status().code(), StatusCode::kDataLoss);
}

TEST(ChunkFile, NoBitCanFlipUnnoticed) {
  Image image(IndexedGeometry(), 33, "t");
  for (size_t bit = 0; bit < image.bytes.size() * 8; ++bit) {
    const std::byte flip{static_cast<uint8_t>(1u << bit % 8)};
    image.bytes[bit / 8] ^= flip;
    const absl::Status status = ReadAll(image.bytes).status();
    // Damage of the version cannot be distinguished from a later version.
    const bool version = bit / 8 >= 8 && bit / 8 < 10;
    ASSERT_TRUE(status.code() == StatusCode::kDataLoss ||
                (version && status.code() == StatusCode::kFailedPrecondition))
        << "bit " << bit << ": " << status;
    image.bytes[bit / 8] ^= flip;
  }
  EXPECT_TRUE(ReadAll(image.bytes).ok());
}

TEST(ChunkFile, ALaterVersionIsRefusedClearly) {
  Image image(SmallGeometry(), 5);
  const uint32_t version = 2;
  std::memcpy(image.bytes.data() + 8, &version, 4);
  const absl::Status status = ReadAll(image.bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2, this ckv reads up to 1"));
}

TEST(ChunkFile, CountsBeyondTheLimitsAreAllNamed) {
  Image image(SmallGeometry(), 33);
  const uint16_t tenant_bytes = UINT16_MAX;
  std::memcpy(image.bytes.data() + 102, &tenant_bytes, sizeof(tenant_bytes));
  EXPECT_THAT(std::string(DecodeChunkFilePrefix(image.bytes).status().message()),
              HasSubstr("tenant of 65535: beyond the limits"));
}

// Counts are checked against limits and each other before anything is sized by them.
TEST(ChunkFile, CountsThatContradictAreDamage) {
  const Image image(SmallGeometry(), 33);
  const auto with = [&](size_t offset, auto value) {
    std::vector<std::byte> bytes(image.bytes.begin(), image.bytes.begin() + kChunkFilePrefixBytes);
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
    return DecodeChunkFilePrefix(bytes).status().code();
  };
  EXPECT_EQ(with(12, 4096u), StatusCode::kOk);
  EXPECT_EQ(with(12, 8192u), StatusCode::kDataLoss);
  EXPECT_EQ(with(88, UINT32_MAX), StatusCode::kDataLoss);
  EXPECT_EQ(with(92, 0u), StatusCode::kDataLoss);
  EXPECT_EQ(with(92, UINT32_MAX), StatusCode::kDataLoss);
  EXPECT_EQ(with(96, UINT32_MAX), StatusCode::kDataLoss);
  EXPECT_EQ(with(100, uint16_t{UINT16_MAX}), StatusCode::kDataLoss);
  EXPECT_EQ(with(102, uint16_t{UINT16_MAX}), StatusCode::kDataLoss);
  EXPECT_EQ(with(104, UINT64_MAX), StatusCode::kDataLoss);
  EXPECT_EQ(with(112, UINT64_MAX), StatusCode::kDataLoss);
  EXPECT_EQ(with(80, UINT64_MAX), StatusCode::kDataLoss);
}

// A header that was written with other counts, and whose checksum fits them.
TEST(ChunkFile, TensorsThatContradictTheGeometryAreDamage) {
  const Image image(SmallGeometry(), 33);
  const auto with = [&](size_t offset, uint64_t value, size_t bytes) {
    std::vector<std::byte> header(image.bytes.begin(), image.bytes.begin() + 4096);
    std::memcpy(header.data() + offset, &value, bytes);
    const uint64_t zero = 0;
    std::memcpy(header.data() + 120, &zero, 8);
    const uint64_t checksum = XXH3_64bits(header.data(), header.size());
    std::memcpy(header.data() + 120, &checksum, 8);
    auto prefix = DecodeChunkFilePrefix(header);
    if (!prefix.ok()) return std::string(prefix.status().message());
    return std::string(DecodeChunkFileHeader(*prefix, header).status().message());
  };
  EXPECT_EQ(with(120, 0, 8), "");
  EXPECT_THAT(with(88, 34, 4), HasSubstr("chunk file"));
  EXPECT_THAT(with(92, 2, 4), HasSubstr("chunk file"));
  EXPECT_THAT(with(104, 3 * 704 - 64, 8), HasSubstr("contradict"));
}

TEST(ChunkFile, AStripeIsCheckedByItself) {
  const Image image(SmallGeometry(), 33);
  const ChunkFileHeader header = *ReadAll(image.bytes);
  std::vector<std::byte> rows(image.chunk.layers[1].begin() + 32 * 20, image.chunk.layers[1].end());
  EXPECT_TRUE(CheckStripe(header, 1, 1, rows).ok());
  EXPECT_EQ(CheckStripe(header, 0, 1, rows).code(), StatusCode::kDataLoss);
  rows[3] ^= std::byte{1};
  EXPECT_EQ(CheckStripe(header, 1, 1, rows).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ckv
