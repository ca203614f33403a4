// Chunks of rows that NumPy saved: one array, and what an array does not say from elsewhere.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/ctl/corpus/load_source.h"

namespace ckv::ctl {

// The kind of bytes in the array. NumPy has no bf16 and no fp8: it saves bf16 as V2 (of ml_dtypes)
// or as u2 (of a view), and fp8_ds_mla rows as u1.
enum class NpyRowDtype : uint8_t { kBf16, kF16, kF32, kFp8DsMla };
//   InvalidArgument     names them.
absl::StatusOr<NpyRowDtype> ParseNpyRowDtype(std::string_view name);

struct NpyOptions {
  std::string dtype;      // "bf16", "f16", "f32", "fp8_ds_mla"
  std::string geometry;   // a JSON file (store/formats/geometry_json.h)
  std::string token_ids;  // a .npy file of integers of 4 or 8 bytes, [tokens]
  // A JSON file (store/formats/extra_keys_json.h); empty if there are none.
  std::string extra_keys = {};
  uint64_t base_position = 0;
};

// The chunks of `path`, [layers][tokens][d_qk] (fp8_ds_mla: [layers][tokens][656]); f16 and f32 are
// rounded to bf16, to nearest even, as a chunk is read. The file is mapped, and of its rows only
// those of chunks that are given out stay in memory.
//   NotFound            no such file.
//   InvalidArgument     an option is missing, or a file is not what it should be; says which.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenNpyRows(const std::string& path,
                                                         const NpyOptions& options,
                                                         const CutOptions& cut,
                                                         uint32_t token_count_max);

// The geometry in a JSON file.
//   NotFound            no such file.
//   InvalidArgument     not one; names the file and the field.
absl::StatusOr<Geometry> ReadGeometryFile(const std::string& path);
// The same for rows in a format that has no index keys.
//   InvalidArgument     also: the geometry has an index.
absl::StatusOr<Geometry> ReadGeometryWithoutIndex(const std::string& path);

// The extra keys in a JSON file, sorted; none if `path` is empty.
//   NotFound            no such file.
//   InvalidArgument     they are not, or do not fit the tokens; names the file and the key.
absl::StatusOr<ExtraKeys> ReadExtraKeysFile(const std::string& path, uint64_t token_count);

// The token ids in a .npy file of i4, i8, u4 or u8 [token_count] (proto/token_id.h).
//   NotFound            no such file.
//   InvalidArgument     not one, or of another number of tokens; names the file.
absl::StatusOr<std::vector<int32_t>> ReadNpyTokenIds(const std::string& path, uint64_t token_count);

// `count` binary16 values at any address, rounded to bf16: to nearest, ties to even.
void Bf16FromHalves(const std::byte* in, uint16_t* out, size_t count);

}  // namespace ckv::ctl
