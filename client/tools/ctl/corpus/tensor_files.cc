// Readers and writers of the tensors of ckvctl attend. ReadQueries and ReadSelection check name,
// dtype and shape of each tensor against the corpus. CheckOutput finds out before a call whether
// its result can be written; WritePartial writes it.

#include "client/tools/ctl/corpus/tensor_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "absl/strings/str_format.h"
#include "attention/bf16.h"
#include "nlohmann/json.hpp"
#include "proto/base/status.h"
#include "store/formats/geometry_json.h"
#include "store/formats/output_file.h"
#include "store/formats/safetensors.h"

namespace ckv::ctl {
namespace {

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

absl::Status TensorError(const std::string& path, std::string_view name, const TensorView& tensor,
                         const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor '%s' is %s %s, need %s", path, name,
                                                    TensorDtypeName(tensor.dtype),
                                                    ShapeText(tensor.shape), expected));
}

// A tensor of two dimensions, whose bytes may be at any address.
absl::StatusOr<TensorView> ReadMatrix(const SafetensorsFile& file, const std::string& path,
                                      std::string_view name, const std::string& expected) {
  auto tensor = file.Tensor(name);
  if (!tensor.ok()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s; need %s", path, std::string(tensor.status().message()), expected));
  }
  if (tensor->shape.size() != 2 || tensor->shape[0] > std::numeric_limits<uint32_t>::max() ||
      tensor->shape[1] > std::numeric_limits<uint32_t>::max()) {
    return TensorError(path, name, *tensor, expected);
  }
  return tensor;
}

absl::StatusOr<SafetensorsFile> OpenFile(const std::string& path) {
  auto file = SafetensorsFile::Open(path);
  if (!file.ok() && file.status().message().find(path) == absl::string_view::npos) {
    return Annotate(file.status(), path);
  }
  return file;
}

}  // namespace

absl::StatusOr<Queries> ReadQueries(const std::string& path, uint32_t d_qk) {
  const std::string expected = absl::StrFormat("BF16 or F32 [M, %d]", d_qk);
  CKV_ASSIGN_OR_RETURN(const SafetensorsFile file, OpenFile(path));
  CKV_ASSIGN_OR_RETURN(const TensorView tensor, ReadMatrix(file, path, "q", expected));
  const bool is_bf16 = tensor.dtype == TensorDtype::kBf16;
  if ((!is_bf16 && tensor.dtype != TensorDtype::kF32) || tensor.shape[0] == 0 ||
      tensor.shape[1] != d_qk) {
    return TensorError(path, "q", tensor, expected);
  }
  Queries queries;
  queries.rows = static_cast<uint32_t>(tensor.shape[0]);
  queries.values.resize(tensor.shape[0] * tensor.shape[1]);
  if (is_bf16) {
    std::memcpy(queries.values.data(), tensor.data.data(), tensor.data.size());
    return queries;
  }
  std::vector<float> wide(queries.values.size());
  std::memcpy(wide.data(), tensor.data.data(), tensor.data.size());
  Bf16FromFloats(wide.data(), queries.values.data(), wide.size());
  return queries;
}

absl::StatusOr<SelectedRows> ReadSelection(const std::string& path, uint32_t rows,
                                           uint64_t row_count) {
  const std::string expected = absl::StrFormat("I32 [%d, k]", rows);
  CKV_ASSIGN_OR_RETURN(const SafetensorsFile file, OpenFile(path));
  CKV_ASSIGN_OR_RETURN(const TensorView tensor, ReadMatrix(file, path, "indices", expected));
  if (tensor.dtype != TensorDtype::kI32 || tensor.shape[0] != rows) {
    return TensorError(path, "indices", tensor, expected);
  }
  SelectedRows selection;
  selection.k = static_cast<uint32_t>(tensor.shape[1]);
  selection.indices.resize(tensor.shape[0] * tensor.shape[1]);
  std::memcpy(selection.indices.data(), tensor.data.data(), tensor.data.size());
  for (size_t i = 0; i < selection.indices.size(); ++i) {
    const int32_t index = selection.indices[i];
    if (index < -1 || (index >= 0 && static_cast<uint64_t>(index) >= row_count)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor 'indices' [%d, %d] is %d; need -1 or 0 to %d, the rows of the chosen chunks",
          path, i / selection.k, i % selection.k, index, static_cast<int64_t>(row_count) - 1));
    }
  }
  return selection;
}

void PrintBeside(const Ctl& ctl, const std::string& path, const std::string& text,
                 const Json& json) {
  struct stat named, standard;
  const bool is_stdout = stat(path.c_str(), &named) == 0 && fstat(STDOUT_FILENO, &standard) == 0 &&
                         named.st_dev == standard.st_dev && named.st_ino == standard.st_ino &&
                         OutputFile::IsStream(path);
  if (!is_stdout) return ctl.Print(text, json);
  *ctl.err << (ctl.format == OutputFormat::kJson ? RenderJson(json) : PrintableLines(text));
}

absl::Status CheckOutput(const std::string& path, std::string_view option) {
  absl::Status status = OutputFile::Check(path);
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::FailedPreconditionError(
      absl::StrFormat("%s\n  name another file with %s", std::string(status.message()), option));
}

std::map<std::string, std::string, std::less<>> RowFileMetadata(const Geometry& geometry,
                                                                uint64_t base_position) {
  std::map<std::string, std::string, std::less<>> metadata = {
      {"model", geometry.model},
      {"revision", geometry.revision},
      {"d_v", std::to_string(geometry.d_v)},
      {"d_rope", std::to_string(geometry.d_rope)},
      {"softmax_scale", absl::StrFormat("%.9g", geometry.softmax_scale)},
      {"base_position", std::to_string(base_position)}};
  if (geometry.index) metadata["index"] = EncodeIndex(*geometry.index).dump();
  const RopeParams& rope = geometry.rope;
  if (rope.style == RopeStyle::kNone) {
    metadata["rope_style"] = "none";
    return metadata;
  }
  metadata["rope_style"] = rope.style == RopeStyle::kHalfSplit ? "half" : "interleaved";
  metadata["rope_theta"] = absl::StrFormat("%.17g", rope.theta);
  if (rope.yarn) {
    metadata["rope_scaling"] =
        nlohmann::json({{"type", "yarn"},
                        {"factor", rope.yarn->factor},
                        {"original_max_position_embeddings", rope.yarn->original_max_position},
                        {"beta_fast", rope.yarn->beta_fast},
                        {"beta_slow", rope.yarn->beta_slow},
                        {"mscale", rope.yarn->mscale},
                        {"mscale_all_dim", rope.yarn->mscale_all_dim}})
            .dump();
  }
  return metadata;
}

absl::Status WritePartial(const std::string& path, const PartialArrays& partial,
                          const std::map<std::string, std::string, std::less<>>& metadata) {
  const auto bytes = [](const std::vector<float>& values) {
    return std::as_bytes(std::span(values));
  };
  const TensorToWrite tensors[] = {
      {"o", TensorDtype::kF32, {partial.rows, partial.d_v}, bytes(partial.o)},
      {"m", TensorDtype::kF32, {partial.rows}, bytes(partial.m)},
      {"l", TensorDtype::kF32, {partial.rows}, bytes(partial.l)}};
  return WriteSafetensors(path, metadata, tensors);
}

}  // namespace ckv::ctl
