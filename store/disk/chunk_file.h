// The durable form of a chunk: one file, whole or quarantined.
//
// Byte by byte, version 1. Integers are little-endian, checksums XXH3-64, tokens counted from the
// chunk's first.
//
//   offset  bytes  what
//        0      8  magic "ckvchunk"
//        8      4  version: 1
//       12      4  header_bytes: where the rows begin; a multiple of 4096
//       16     32  id
//       48     32  parent; zero: the chunk starts a chain
//       80      8  position of the first token
//       88      4  token_count
//       92      4  layers
//       96      4  row_bytes
//      100      2  geometry_bytes
//      102      2  tenant_bytes
//      104      8  layer_stride_bytes: token_count x row_bytes, rounded up to 64
//      112      8  file_bytes: header_bytes + layers x layer_stride_bytes, the whole file
//      120      8  header_checksum: of bytes [0, header_bytes), taken as if these 8 were zero
//      128         geometry, as JSON (store/geometry_json.h), padded with zeros to 8
//                  tenant that it was put for, padded with zeros to 8; none: everyone reads it
//                  token ids, i32 [token_count], padded with zeros to 8
//                  layer checksums, u64 [layers]: of token_count x row_bytes each
//                  stripe checksums, u64 [layers][StripeCount(token_count)] (proto/stripe.h)
//                  zeros up to header_bytes
//   header_bytes   rows [layer][token][row], each layer padded with zeros to its stride: as in
//   memory
//                  (ChunkLayout), so that a chunk is one transfer from its file to its extent
//
// Every byte of a file is covered: the header by its checksum, rows by their stripe's, padding by
// being zero. So some rows are checked without the rest, 36 KiB of 1152-byte rows at a time. The
// layers' checksums are what the chunk was put with, and what says that two puts are of the same
// rows.

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
#include "store/chunk.h"
#include "store/file_system.h"

namespace ckv {

inline constexpr uint32_t kChunkFileVersion = 1;
inline constexpr std::string_view kChunkFileMagic = "ckvchunk";
// Direct reads need offsets of a block, and no block is larger than a page.
inline constexpr uint32_t kChunkFileAlignment = 4096;
// The prefix that tells how long the header is.
inline constexpr uint32_t kChunkFilePrefixBytes = 128;
// Token ids of the longest chunk and 8 bytes a stripe and layer of the deepest model: 4 + 134 MB.
inline constexpr uint32_t kChunkFileHeaderBytesMax = 144u << 20;
inline constexpr uint32_t kChunkFileGeometryBytesMax = 4096;

// The first 128 bytes, checked by themselves: limits, and that the counts agree with each other.
struct ChunkFilePrefix {
  uint32_t header_bytes = 0;
  ChunkId id;
  ChunkId parent;
  uint64_t position = 0;
  uint32_t token_count = 0;
  uint32_t layers = 0;
  uint32_t row_bytes = 0;
  uint16_t geometry_bytes = 0;
  uint16_t tenant_bytes = 0;
  uint64_t layer_stride_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t header_checksum = 0;
};

// All that a file says of its chunk before the rows.
struct ChunkFileHeader {
  ChunkFilePrefix prefix;
  ChunkInfo info;
  Geometry geometry;
  std::string tenant;
  std::vector<uint64_t> stripe_checksums;  // [layers][StripeCount]

  ChunkLayout layout() const { return LayOutChunk(geometry, info.token_count()); }
  std::span<const uint64_t> stripes(uint32_t layer) const;
};

// The header of a chunk's file. `stripe_checksums` are Chunk::stripe_checksums of all layers; the
// tenant's name has at most kCorpusNameBytesMax bytes.
std::vector<std::byte> EncodeChunkFileHeader(const ChunkInfo& info, const Geometry& geometry,
                                             std::string_view tenant,
                                             std::span<const uint64_t> stripe_checksums);
// How long that will be.
uint32_t ChunkFileHeaderBytes(const Geometry& geometry, std::string_view tenant,
                              uint32_t token_count);

// `bytes` are the first kChunkFilePrefixBytes of a file, or all it has if it is shorter.
//   DataLoss            not a chunk file, cut short, or its numbers contradict each other.
//   FailedPrecondition  written by a later version of ckv; says which.
absl::StatusOr<ChunkFilePrefix> DecodeChunkFilePrefix(std::span<const std::byte> bytes);

// `bytes` are prefix.header_bytes from the file's beginning. Checks the header's checksum, that the
// id is the one that its inputs give, and that the geometry gives the prefix's widths.
//   DataLoss            says what does not fit.
absl::StatusOr<ChunkFileHeader> DecodeChunkFileHeader(const ChunkFilePrefix& prefix,
                                                      std::span<const std::byte> bytes);

// The header of an open file, whose length must be what it says.
//   DataLoss, FailedPrecondition  as above; and what File says.
absl::StatusOr<ChunkFileHeader> ReadChunkFileHeader(File& file);

// One stripe of a layer.
//   DataLoss            names the chunk, the layer and the tokens.
absl::Status CheckStripe(const ChunkFileHeader& header, uint32_t layer, uint32_t stripe,
                         std::span<const std::byte> rows);
// What lies between a layer's rows and the next layer.
//   DataLoss            it is not zero; names the chunk and the layer.
absl::Status CheckPadding(const ChunkFileHeader& header, uint32_t layer,
                          std::span<const std::byte> padding);

}  // namespace ckv
