// The safetensors files of `ckvctl attend`: queries and a selection as input, a partial as output.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tools/ctl/ctl.h"
#include "proto/geometry.h"

namespace ckv::ctl {

// bf16 [rows][d_qk].
struct Queries {
  uint32_t rows = 0;
  std::vector<uint16_t> values;
};
// Reads tensor `q` [M, d_qk], BF16 or F32. F32 is rounded to bf16, to nearest even, as the wire
// requires.
//   NotFound            no such file.
//   InvalidArgument     names the file, the tensor and the expected shape.
absl::StatusOr<Queries> ReadQueries(const std::string& path, uint32_t d_qk);

// i32 [rows][k], -1 is skipped.
struct SelectedRows {
  uint32_t k = 0;
  std::vector<int32_t> indices;
};
// Reads tensor `indices` [rows, k], I32. Each index is -1 or below `row_count`, the number of rows
// of the chosen chunks.
//   NotFound            no such file.
//   InvalidArgument     names the file, the tensor, and the shape or the index.
absl::StatusOr<SelectedRows> ReadSelection(const std::string& path, uint32_t rows,
                                           uint64_t row_count);

// Runs OutputFile::Check for a path that was given with `option`.
//   FailedPrecondition  the file cannot be written; names the cause and the remedy.
absl::Status CheckOutput(const std::string& path, std::string_view option = "--out");
// Prints the summary of a command that wrote `path`. If `path` is stdout itself, the summary is
// printed to stderr, so that it does not follow the file's bytes.
void PrintBeside(const Ctl& ctl, const std::string& path, const std::string& text,
                 const Json& json);

// Returns the metadata of a row file (store/formats/import.h) of this geometry.
std::map<std::string, std::string, std::less<>> RowFileMetadata(const Geometry& geometry,
                                                                uint64_t base_position);

// f32: o [rows][d_v], m and l [rows].
struct PartialArrays {
  uint32_t rows = 0;
  uint32_t d_v = 0;
  std::vector<float> o, m, l;
};
// Writes tensors `o` [rows, d_v], `m` and `l` [rows], F32. The file is complete or absent.
//   Errors of WriteSafetensors.
absl::Status WritePartial(const std::string& path, const PartialArrays& partial,
                          const std::map<std::string, std::string, std::less<>>& metadata);

}  // namespace ckv::ctl
