// The file format of a chunk: its layout, encoding and checks.
//
// The layout of version 1. Integers are little-endian, and checksums are XXH3-64. Tokens
// count from the chunk's first.
//
//   offset  bytes  what
//        0      8  magic "ckvchunk"
//        8      4  version: 1
//       12      4  header_bytes: where the rows begin; a multiple of 4096
//       16     32  id
//       48     32  parent; zero means the chunk starts a chain
//       80      8  position of the first token
//       88      4  token_count
//       92      4  tensors
//       96      4  zero
//      100      2  geometry_bytes
//      102      2  tenant_bytes
//      104      8  tensor_bytes: of all tensors with their padding (proto/chunk_layout.h)
//      112      8  file_bytes: header_bytes + tensor_bytes, the whole file
//      120      8  header_checksum: of bytes [0, header_bytes), taken as if these 8 were zero
//      128         geometry, as JSON (store/formats/geometry_json.h), padded with zeros to 8
//                  tenant for which the chunk was put, padded with zeros to 8; no bytes mean
//                  everyone
//                  verification tag, 32 bytes (store/memory/chunk_id.h); zeros mean none
//                  extra keys: their size as u32, which may be 0, then EncodeExtraKeys
//                  (proto/extra_keys.h), padded with zeros to 8
//                  token ids, i32 [token_count], padded with zeros to 8
//                  tensor checksums, u64 [tensors]: of token_count rows each
//                  stripe checksums, u64 [tensors][StripeCount(token_count)]
//                  (proto/base/stripe.h)
//                  zeros up to header_bytes
//   header_bytes   tensors as in memory (ChunkLayout): a chunk is one transfer from its file to
//                  its extent
//
// Every byte of a file is checked: the header and the rows of each stripe by checksums, and the
// padding for zeros. A stripe, 36 KiB of 1152-byte rows, can thus be checked without the others.
// The tensor checksums are those with which the chunk was put; they show whether two puts have the
// same rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/geometry.h"
#include "store/disk/file_system.h"
#include "store/memory/chunk.h"

namespace ckv {

inline constexpr uint32_t kChunkFileVersion = 1;
inline constexpr std::string_view kChunkFileMagic = "ckvchunk";
// Rows begin at a multiple of this, because direct reads begin at a device block, and no block is
// larger.
inline constexpr uint32_t kChunkFileAlignment = 4096;
// Bytes of the prefix, which contains the length of the header.
inline constexpr uint32_t kChunkFilePrefixBytes = 128;
inline constexpr uint32_t kChunkFileGeometryBytesMax = 4096;

// The first 128 bytes. They are checked separately: values are within limits and consistent with
// each other.
struct ChunkFilePrefix {
  uint32_t header_bytes = 0;
  ChunkId id;
  ChunkId parent;
  uint64_t position = 0;
  uint32_t token_count = 0;
  uint32_t tensors = 0;
  uint16_t geometry_bytes = 0;
  uint16_t tenant_bytes = 0;
  uint64_t tensor_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t header_checksum = 0;
};

// Everything that precedes the rows in a file.
struct ChunkFileHeader {
  ChunkFilePrefix prefix;
  ChunkInfo info;
  Geometry geometry;
  std::string tenant;
  std::vector<uint64_t> stripe_checksums;  // [tensors][StripeCount]

  ChunkLayout layout() const { return {geometry, info.token_count()}; }
  // Returns the stripe checksums of one tensor.
  std::span<const uint64_t> stripes(uint32_t tensor) const;
};

// Returns the header of a chunk's file, padding included. `stripe_checksums` are
// Chunk::stripe_checksums of all tensors; `tenant` has at most kCorpusNameBytesMax bytes.
std::vector<std::byte> EncodeChunkFileHeader(const ChunkInfo& info, const Geometry& geometry,
                                             std::string_view tenant,
                                             std::span<const uint64_t> stripe_checksums);
// Returns the size of that header.
uint32_t ChunkFileHeaderBytes(const ChunkInfo& info, const Geometry& geometry,
                              std::string_view tenant);

// Decodes a prefix. `bytes` are the first kChunkFilePrefixBytes of a file, or the whole file if it
// is shorter.
//   DataLoss            the file is not a chunk file, is truncated, or has contradictory numbers.
//   FailedPrecondition  a later version of ckv wrote the file; the message names the versions.
absl::StatusOr<ChunkFilePrefix> DecodeChunkFilePrefix(std::span<const std::byte> bytes);

// Decodes a header. `bytes` are the first prefix.header_bytes of the file. Checks the header's
// checksum, that the id is the one its inputs give, and that the geometry has the prefix's tensors.
//   DataLoss            a check failed; the message states which.
absl::StatusOr<ChunkFileHeader> DecodeChunkFileHeader(const ChunkFilePrefix& prefix,
                                                      std::span<const std::byte> bytes);

// Reads and decodes the header of an open file, and checks that the file has the length in the
// header.
//   DataLoss            the file is damaged; the message states how.
//   FailedPrecondition  a later version of ckv wrote the file.
//   Unavailable         the device fails.
absl::StatusOr<ChunkFileHeader> ReadChunkFileHeader(File& file);

// Checks the rows of one stripe of a tensor.
//   DataLoss            the rows do not match; the message names the chunk, the tensor and the
//                       tokens.
absl::Status CheckStripe(const ChunkFileHeader& header, uint32_t tensor, uint32_t stripe,
                         std::span<const std::byte> rows);
// Checks the bytes between a tensor's rows and the next tensor.
//   DataLoss            the bytes are not zero; the message names the chunk and the tensor.
absl::Status CheckPadding(const ChunkFileHeader& header, uint32_t tensor,
                          std::span<const std::byte> padding);

}  // namespace ckv
