// The layout of a chunk file, written and read. HeaderLayout computes the offset of every part of
// the header from its counts, for both directions. EncodeChunkFileHeader fills it. Reading, in
// order: DecodeChunkFilePrefix bounds the counts; the whole header is read and its checksum
// compared; DecodeChunkFileHeader decodes its parts. Rows are read by the caller, and checked by
// stripe (CheckStripe, CheckPadding).

#include "store/disk/chunk_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "proto/base/xxh3.h"
#include "store/formats/geometry_json.h"
#include "store/formats/json.h"

namespace ckv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are written in the byte order of memory");

// The layout in the file.
struct RawPrefix {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint8_t id[32];
  uint8_t parent[32];
  uint64_t position;
  uint32_t token_count;
  uint32_t tensors;
  uint32_t zero;
  uint16_t geometry_bytes;
  uint16_t tenant_bytes;
  uint64_t tensor_bytes;
  uint64_t file_bytes;
  uint64_t header_checksum;
};
static_assert(sizeof(RawPrefix) == kChunkFilePrefixBytes);
static_assert(sizeof(ChunkId) == 32);
static_assert(offsetof(RawPrefix, position) == 80 && offsetof(RawPrefix, header_checksum) == 120);

constexpr uint64_t RoundUp(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

// The offsets of the header's parts. Counts within their limits cannot wrap.
struct HeaderLayout {
  uint64_t tenant = 0, verification_tag = 0, keys = 0, token_ids = 0, tensor_checksums = 0;
  uint64_t stripe_checksums = 0, header_bytes = 0;

  // `keys_bytes` is the size of the extra keys, 0 if there are none.
  HeaderLayout(uint64_t geometry_bytes, uint64_t tenant_bytes, uint64_t keys_bytes,
               uint32_t token_count, uint32_t tensors) {
    tenant = kChunkFilePrefixBytes + RoundUp(geometry_bytes, 8);
    verification_tag = tenant + RoundUp(tenant_bytes, 8);
    keys = verification_tag + sizeof(VerificationTag);
    token_ids = keys + RoundUp(sizeof(uint32_t) + keys_bytes, 8);
    tensor_checksums = token_ids + RoundUp(uint64_t{token_count} * 4, 8);
    stripe_checksums = tensor_checksums + uint64_t{tensors} * 8;
    const uint64_t end = stripe_checksums + uint64_t{tensors} * StripeCount(token_count) * 8;
    header_bytes = RoundUp(end, kChunkFileAlignment);
  }
};

uint64_t HeaderChecksum(std::span<const std::byte> header) {
  constexpr size_t kAt = offsetof(RawPrefix, header_checksum);
  constexpr uint64_t kZero = 0;
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, header.data(), kAt);
  XXH3_64bits_update(&state, &kZero, sizeof(kZero));
  XXH3_64bits_update(&state, header.data() + kChunkFilePrefixBytes,
                     header.size() - kChunkFilePrefixBytes);
  return XXH3_64bits_digest(&state);
}

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(absl::StrFormat("chunk file: %s", what));
}

absl::Status CheckPrefix(const ChunkFilePrefix& p) {
  if (p.token_count > kChunkTokenCountMax || p.tensors == 0 || p.tensors > kChunkTensorCountMax ||
      p.geometry_bytes > kChunkFileGeometryBytesMax || p.tenant_bytes > kCorpusNameBytesMax ||
      p.position > kPositionMax) {
    return Damaged(absl::StrFormat(
        "%d tokens x %d tensors at %d, geometry of %d bytes, tenant of %d: beyond the limits",
        p.token_count, p.tensors, p.position, p.geometry_bytes, p.tenant_bytes));
  }
  // The size of the extra keys is in the header. Here it is only bounded; TakeKeys checks it.
  const auto header_bytes = [&p](uint64_t keys_bytes) {
    return HeaderLayout(p.geometry_bytes, p.tenant_bytes, keys_bytes, p.token_count, p.tensors)
        .header_bytes;
  };
  const uint64_t least = header_bytes(0);
  const uint64_t most = header_bytes(kExtraKeysBytesMax);
  if (p.header_bytes < least || p.header_bytes > most ||
      p.header_bytes % kChunkFileAlignment != 0) {
    return Damaged(
        absl::StrFormat("a header of %d bytes, its counts make %d", p.header_bytes, least));
  }
  const uint64_t tensor_bytes_max =
      p.tensors * RoundUp(uint64_t{p.token_count} * kRowWidthMax * 2, ChunkLayout::kAlignment);
  if (p.tensor_bytes > tensor_bytes_max || p.file_bytes != p.header_bytes + p.tensor_bytes) {
    return Damaged(absl::StrFormat("%d bytes of rows and %d in all contradict its counts",
                                   p.tensor_bytes, p.file_bytes));
  }
  return absl::OkStatus();
}

HeaderLayout LayoutOf(const ChunkInfo& info, size_t geometry_bytes, std::string_view tenant,
                      uint32_t tensors) {
  return HeaderLayout(geometry_bytes, tenant.size(), EncodeExtraKeys(info.extra_keys).size(),
                      info.token_count(), tensors);
}

// Decodes the extra keys, and returns their size in bytes. `bytes` must have the length that the
// prefix gives.
absl::StatusOr<uint32_t> TakeKeys(const ChunkFilePrefix& prefix, std::span<const std::byte> bytes,
                                  ExtraKeys& keys) {
  const HeaderLayout least(prefix.geometry_bytes, prefix.tenant_bytes, 0, prefix.token_count,
                           prefix.tensors);
  uint32_t keys_bytes;
  std::memcpy(&keys_bytes, bytes.data() + least.keys, sizeof(keys_bytes));
  const HeaderLayout layout(prefix.geometry_bytes, prefix.tenant_bytes, keys_bytes,
                            prefix.token_count, prefix.tensors);
  if (keys_bytes > kExtraKeysBytesMax || layout.header_bytes != prefix.header_bytes)
    return Damaged(absl::StrFormat("extra keys of %d bytes in a header of %d", keys_bytes,
                                   prefix.header_bytes));
  if (keys_bytes == 0) return 0;
  auto decoded = DecodeExtraKeys(
      {reinterpret_cast<const char*>(bytes.data()) + layout.keys + sizeof(keys_bytes), keys_bytes},
      prefix.token_count);
  if (!decoded.ok()) return Damaged(std::string(decoded.status().message()));
  keys = *std::move(decoded);
  return keys_bytes;
}

}  // namespace

std::span<const uint64_t> ChunkFileHeader::stripes(uint32_t tensor) const {
  const size_t count = StripeCount(info.token_count());
  assert(tensor < geometry.tensor_count());
  return std::span(stripe_checksums).subspan(tensor * count, count);
}

uint32_t ChunkFileHeaderBytes(const ChunkInfo& info, const Geometry& geometry,
                              std::string_view tenant) {
  const HeaderLayout layout =
      LayoutOf(info, EncodeGeometry(geometry).dump().size(), tenant, geometry.tensor_count());
  return static_cast<uint32_t>(layout.header_bytes);
}

std::vector<std::byte> EncodeChunkFileHeader(const ChunkInfo& info, const Geometry& geometry,
                                             std::string_view tenant,
                                             std::span<const uint64_t> stripe_checksums) {
  const std::string json = EncodeGeometry(geometry).dump();
  CKV_CHECK(json.size() <= kChunkFileGeometryBytesMax);
  CKV_CHECK(tenant.size() <= kCorpusNameBytesMax);
  const ChunkLayout rows(geometry, info.token_count());
  CKV_CHECK(info.tensor_checksums.size() == rows.tensor_count());
  CKV_CHECK(stripe_checksums.size() ==
            size_t{rows.tensor_count()} * StripeCount(info.token_count()));
  const std::string keys = EncodeExtraKeys(info.extra_keys);
  const auto keys_bytes = static_cast<uint32_t>(keys.size());
  const HeaderLayout layout = LayoutOf(info, json.size(), tenant, geometry.tensor_count());
  RawPrefix raw = {};
  std::memcpy(raw.magic, kChunkFileMagic.data(), sizeof(raw.magic));
  raw.version = kChunkFileVersion;
  raw.header_bytes = static_cast<uint32_t>(layout.header_bytes);
  std::memcpy(raw.id, &info.id, sizeof(raw.id));
  std::memcpy(raw.parent, &info.parent, sizeof(raw.parent));
  raw.position = info.position;
  raw.token_count = info.token_count();
  raw.tensors = rows.tensor_count();
  raw.geometry_bytes = static_cast<uint16_t>(json.size());
  raw.tenant_bytes = static_cast<uint16_t>(tenant.size());
  raw.tensor_bytes = rows.total_bytes();
  raw.file_bytes = layout.header_bytes + rows.total_bytes();
  std::vector<std::byte> header(layout.header_bytes);
  const auto put = [&](uint64_t at, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(header.data() + at, from, bytes);
  };
  put(kChunkFilePrefixBytes, json.data(), json.size());
  put(layout.tenant, tenant.data(), tenant.size());
  put(layout.verification_tag, info.verification_tag.bytes.data(),
      info.verification_tag.bytes.size());
  put(layout.keys, &keys_bytes, sizeof(keys_bytes));
  put(layout.keys + sizeof(keys_bytes), keys.data(), keys.size());
  put(layout.token_ids, info.token_ids.data(), info.token_ids.size() * 4);
  put(layout.tensor_checksums, info.tensor_checksums.data(), info.tensor_checksums.size() * 8);
  put(layout.stripe_checksums, stripe_checksums.data(), stripe_checksums.size() * 8);
  put(0, &raw, sizeof(raw));
  raw.header_checksum = HeaderChecksum(header);
  put(0, &raw, sizeof(raw));
  return header;
}

absl::StatusOr<ChunkFilePrefix> DecodeChunkFilePrefix(std::span<const std::byte> bytes) {
  if (bytes.size() < kChunkFilePrefixBytes)
    return Damaged(absl::StrFormat("%d bytes are no header", bytes.size()));
  RawPrefix raw;
  std::memcpy(&raw, bytes.data(), sizeof(raw));
  if (std::string_view(raw.magic, sizeof(raw.magic)) != kChunkFileMagic)
    return Damaged("not a chunk file: it does not begin with \"ckvchunk\"");
  if (raw.version > kChunkFileVersion && raw.version < 1u << 16) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "chunk file: version %d, this ckv reads up to %d: upgrade it, or load the corpus again",
        raw.version, kChunkFileVersion));
  }
  if (raw.version != kChunkFileVersion)
    return Damaged(absl::StrFormat("version %d is none", raw.version));
  if (raw.zero != 0) return Damaged(absl::StrFormat("%d where zero is due", raw.zero));
  ChunkFilePrefix prefix;
  prefix.header_bytes = raw.header_bytes;
  std::memcpy(&prefix.id, raw.id, sizeof(raw.id));
  std::memcpy(&prefix.parent, raw.parent, sizeof(raw.parent));
  prefix.position = raw.position;
  prefix.token_count = raw.token_count;
  prefix.tensors = raw.tensors;
  prefix.geometry_bytes = raw.geometry_bytes;
  prefix.tenant_bytes = raw.tenant_bytes;
  prefix.tensor_bytes = raw.tensor_bytes;
  prefix.file_bytes = raw.file_bytes;
  prefix.header_checksum = raw.header_checksum;
  CKV_RETURN_IF_ERROR(CheckPrefix(prefix));
  return prefix;
}

absl::StatusOr<ChunkFileHeader> DecodeChunkFileHeader(const ChunkFilePrefix& prefix,
                                                      std::span<const std::byte> bytes) {
  if (bytes.size() != prefix.header_bytes) {
    return Damaged(absl::StrFormat("%d bytes of header, there should be %d", bytes.size(),
                                   prefix.header_bytes));
  }
  if (const uint64_t checksum = HeaderChecksum(bytes); checksum != prefix.header_checksum) {
    return Damaged(absl::StrFormat("the header's checksum is %016x, should be %016x", checksum,
                                   prefix.header_checksum));
  }
  ChunkFileHeader header;
  CKV_ASSIGN_OR_RETURN(const uint32_t keys_bytes, TakeKeys(prefix, bytes, header.info.extra_keys));
  const HeaderLayout layout(prefix.geometry_bytes, prefix.tenant_bytes, keys_bytes,
                            prefix.token_count, prefix.tensors);
  header.prefix = prefix;
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + kChunkFilePrefixBytes,
                              prefix.geometry_bytes);
  const auto document = ParseJson(json, /*depth_max=*/2);
  if (!document.ok()) return Damaged(std::string(document.status().message()));
  auto geometry = DecodeGeometry(*document, "geometry.");
  if (!geometry.ok()) return Damaged(std::string(geometry.status().message()));
  header.geometry = *std::move(geometry);
  header.tenant.assign(reinterpret_cast<const char*>(bytes.data()) + layout.tenant,
                       prefix.tenant_bytes);
  if (absl::Status status = ValidateName("tenant", header.tenant); !status.ok())
    return Damaged(std::string(status.message()));
  const auto take = [&](uint64_t at, auto& to, size_t count) {
    to.resize(count);
    if (count > 0) std::memcpy(to.data(), bytes.data() + at, count * sizeof(to[0]));
  };
  header.info.id = prefix.id;
  header.info.parent = prefix.parent;
  header.info.position = prefix.position;
  std::memcpy(header.info.verification_tag.bytes.data(), bytes.data() + layout.verification_tag,
              sizeof(VerificationTag));
  take(layout.token_ids, header.info.token_ids, prefix.token_count);
  take(layout.tensor_checksums, header.info.tensor_checksums, prefix.tensors);
  take(layout.stripe_checksums, header.stripe_checksums,
       size_t{prefix.tensors} * StripeCount(prefix.token_count));
  const ChunkLayout rows(header.geometry, prefix.token_count);
  if (rows.tensor_count() != prefix.tensors || rows.total_bytes() != prefix.tensor_bytes) {
    return Damaged(absl::StrFormat("%d tensors of %d bytes, its geometry has %d of %d",
                                   prefix.tensors, prefix.tensor_bytes, rows.tensor_count(),
                                   rows.total_bytes()));
  }
  if (absl::Status status = ValidateChunkInfo(header.info, header.geometry); !status.ok())
    return Damaged(std::string(status.message()));
  return header;
}

absl::StatusOr<ChunkFileHeader> ReadChunkFileHeader(File& file) {
  CKV_ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  std::array<std::byte, kChunkFilePrefixBytes> first;
  const auto begin = std::span(first).first(std::min<uint64_t>(size, first.size()));
  CKV_RETURN_IF_ERROR(file.ReadAt(0, begin));
  CKV_ASSIGN_OR_RETURN(const ChunkFilePrefix prefix, DecodeChunkFilePrefix(begin));
  if (size != prefix.file_bytes)
    return Damaged(absl::StrFormat("%d bytes long, should be %d", size, prefix.file_bytes));
  std::vector<std::byte> bytes(prefix.header_bytes);
  CKV_RETURN_IF_ERROR(file.ReadAt(0, bytes));
  return DecodeChunkFileHeader(prefix, bytes);
}

absl::Status CheckStripe(const ChunkFileHeader& header, uint32_t tensor, uint32_t stripe,
                         std::span<const std::byte> rows) {
  if (StripeChecksum(rows) == header.stripes(tensor)[stripe]) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "chunk %s: %s, tokens from %d on disk: their checksum is not theirs",
      header.info.id.ShortHex(), header.geometry.TensorName(tensor), stripe * kStripeTokens));
}

absl::Status CheckPadding(const ChunkFileHeader& header, uint32_t tensor,
                          std::span<const std::byte> padding) {
  if (std::all_of(padding.begin(), padding.end(), [](std::byte b) { return b == std::byte{0}; }))
    return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("chunk %s: %s on disk: bytes after its rows are not zero",
                      header.info.id.ShortHex(), header.geometry.TensorName(tensor)));
}

}  // namespace ckv
