// Reads files of rows. RowFile::Read, in order: ReadMetadata, ReadTokens, ReadExtraKeys,
// ReadIndex, ReadLayers, ReadIndexKeys, then a check of the geometry. Each names the key or tensor
// that is wrong; a missing tensor suggests one with a similar name. Rows stay in the file: Rows
// gives their place, and Copy reads them. CutFixed and DescribeChunk make chunks of a range of
// tokens.

#include "store/formats/import.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/words.h"
#include "proto/token_id.h"
#include "store/formats/extra_keys_json.h"
#include "store/formats/geometry_json.h"
#include "store/formats/json.h"
#include "store/formats/safetensors_header.h"
#include "store/memory/chunk_id.h"

namespace ckv {
namespace {

using Metadata = std::map<std::string, std::string, std::less<>>;

constexpr std::string_view kTokenIds = "token_ids";
constexpr std::string_view kExtraKeys = "extra_keys";
constexpr std::string_view kIndex = "index";
constexpr size_t kSuggestedNameMax = 64;  // longer ones are no slip of a finger

absl::Status RefuseKey(std::string_view key, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("metadata '%s': %s", key, what));
}

absl::Status RefuseTensor(std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("tensor %s: %s", QuotedName(name), what));
}

constexpr std::string_view kRowsEnd = ".ckv", kKeysEnd = ".index_k";

std::string TensorNameOf(size_t layer, std::string_view end) {
  return absl::StrFormat("layers.%d%s", layer, end);
}

bool IsTensorName(std::string_view name, std::string_view end) {
  constexpr std::string_view kBegin = "layers.";
  uint32_t layer = 0;
  return name.starts_with(kBegin) && name.size() > kBegin.size() + end.size() &&
         absl::SimpleAtoi(
             std::string(name.substr(kBegin.size(), name.size() - kBegin.size() - end.size())),
             &layer) &&
         name == TensorNameOf(layer, end);
}

// The error of a file without the tensor `missing`: a name that no file of rows has explains more
// than its absence.
absl::Status RefuseWithout(const std::string& missing, const SafetensorsSet& set,
                           std::string_view why) {
  for (const auto& [name, view] : set.tensors) {
    if (name == kTokenIds || IsTensorName(name, kRowsEnd) || IsTensorName(name, kKeysEnd)) continue;
    const bool near =
        name.size() <= kSuggestedNameMax && !NearestWord(name, std::span(&missing, 1)).empty();
    return RefuseTensor(
        name, "is not known; a file of rows has token_ids and layers.0.ckv, layers.1.ckv, ..." +
                  (near ? "; did you mean " + missing + "?" : ""));
  }
  return RefuseTensor(missing, why);
}

absl::StatusOr<std::string> Text(const Metadata& metadata, std::string_view key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return RefuseKey(key, "is missing");
  return found->second;
}

absl::StatusOr<uint64_t> Whole(const Metadata& metadata, std::string_view key, uint64_t max) {
  CKV_ASSIGN_OR_RETURN(const std::string text, Text(metadata, key));
  uint64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value > max) {
    return RefuseKey(
        key, absl::StrFormat("%s, must be a whole number of at most %d", QuotedName(text), max));
  }
  return value;
}

absl::StatusOr<double> Positive(const Metadata& metadata, std::string_view key) {
  CKV_ASSIGN_OR_RETURN(const std::string text, Text(metadata, key));
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value) || value <= 0) {
    return RefuseKey(key, absl::StrFormat("%s, must be a positive number", QuotedName(text)));
  }
  return value;
}

absl::StatusOr<RopeParams> ReadRope(const Metadata& metadata, uint32_t d_rope) {
  RopeParams rope;
  const auto style = metadata.find("rope_style");
  if (d_rope == 0) {
    if (style != metadata.end() && style->second != "none") {
      return RefuseKey("rope_style", "d_rope is 0, so it must be 'none' or absent");
    }
    rope.style = RopeStyle::kNone;
    return rope;
  }
  CKV_ASSIGN_OR_RETURN(const std::string name, Text(metadata, "rope_style"));
  if (name != "interleaved" && name != "half") {
    return RefuseKey("rope_style",
                     absl::StrFormat("%s, must be 'interleaved' or 'half'", QuotedName(name)));
  }
  rope.style = name == "half" ? RopeStyle::kHalfSplit : RopeStyle::kInterleaved;
  CKV_ASSIGN_OR_RETURN(rope.theta, Positive(metadata, "rope_theta"));
  if (const auto scaling = metadata.find("rope_scaling"); scaling != metadata.end()) {
    CKV_ASSIGN_OR_RETURN(rope.yarn, ParseRopeScaling(scaling->second));
  }
  return rope;
}

std::string ShapeText(const TensorView& tensor) {
  std::string text = absl::StrFormat("%s [", TensorDtypeName(tensor.dtype));
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  }
  return text + "]";
}

// Reads `key` of a rope_scaling object, or leaves `value` as it is.
absl::Status ReadNumber(const nlohmann::json& object, const char* key, double& value) {
  const auto found = object.find(key);
  if (found == object.end()) return absl::OkStatus();
  if (!found->is_number()) {
    return absl::InvalidArgumentError(absl::StrFormat("rope_scaling: %s: must be a number", key));
  }
  value = found->get<double>();
  return absl::OkStatus();
}

absl::StatusOr<YarnParams> ReadYarn(const nlohmann::json& object) {
  YarnParams yarn;
  const std::pair<const char*, double*> fields[] = {
      {"factor", &yarn.factor},
      {"original_max_position_embeddings", &yarn.original_max_position},
      {"beta_fast", &yarn.beta_fast},
      {"beta_slow", &yarn.beta_slow},
      {"mscale", &yarn.mscale},
      {"mscale_all_dim", &yarn.mscale_all_dim},
  };
  for (const char* key : {"factor", "original_max_position_embeddings"}) {
    if (!object.contains(key)) {
      return absl::InvalidArgumentError(absl::StrFormat("rope_scaling: %s: is missing", key));
    }
  }
  for (const auto& [key, value] : fields) CKV_RETURN_IF_ERROR(ReadNumber(object, key, *value));
  for (const auto& entry : object.items()) {
    const bool known = entry.key() == "type" || entry.key() == "rope_type" ||
                       std::any_of(std::begin(fields), std::end(fields),
                                   [&](const auto& field) { return entry.key() == field.first; });
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rope_scaling: %s: is not known", QuotedName(entry.key())));
    }
  }
  return yarn;
}

}  // namespace

absl::StatusOr<std::optional<YarnParams>> ParseRopeScaling(std::string_view json) {
  if (json.empty()) return std::nullopt;
  auto parsed = ParseJson(json, /*depth_max=*/1);
  if (!parsed.ok()) return Annotate(parsed.status(), "rope_scaling");
  if (parsed->is_null()) return std::nullopt;
  if (!parsed->is_object()) {
    return absl::InvalidArgumentError("rope_scaling: must be a JSON object or null");
  }
  std::string type;
  for (const char* key : {"type", "rope_type"}) {  // the older and the newer name
    const auto found = parsed->find(key);
    if (found == parsed->end()) continue;
    if (!found->is_string() || (!type.empty() && *found != type)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rope_scaling: %s: must be one name of a type", key));
    }
    type = found->get_ref<const std::string&>();
  }
  if (type == "default") return std::nullopt;
  if (type != "yarn") {
    return absl::InvalidArgumentError(
        absl::StrFormat("rope_scaling: type: %s, must be 'yarn'", QuotedName(type)));
  }
  CKV_ASSIGN_OR_RETURN(const YarnParams yarn, ReadYarn(*parsed));
  return yarn;
}

absl::StatusOr<RowFile> RowFile::Open(const std::string& path, FileReading reading) {
  CKV_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path, reading));
  auto rows = Read(std::move(file));
  if (!rows.ok()) return AnnotateOnce(rows.status(), path);
  return rows;
}

absl::StatusOr<RowFile> RowFile::Parse(std::span<const std::byte> bytes) {
  CKV_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Parse(bytes));
  return Read(std::move(file));
}

absl::StatusOr<RowFile> RowFile::OpenFolder(const std::string& folder, FileReading reading) {
  CKV_ASSIGN_OR_RETURN(SafetensorsSet set, OpenSafetensorsFolder(folder, reading));
  auto rows = Read(std::move(set));
  if (!rows.ok()) return AnnotateOnce(rows.status(), folder);
  return rows;
}

absl::StatusOr<RowFile> RowFile::Read(SafetensorsFile file) {
  SafetensorsSet set;
  set.tensors = file.tensors();
  set.metadata = file.metadata();
  set.files.push_back(std::move(file));
  return Read(std::move(set));
}

absl::Status RowFile::Copy(std::span<const std::byte> rows, std::byte* out) const {
  if (rows.empty()) return absl::OkStatus();
  for (const SafetensorsFile& file : set_.files) {
    if (file.Has(rows)) return file.Copy(rows, out);
  }
  return absl::InternalError("rows of no file");
}

absl::Status RowFile::CheckUnchanged() const {
  for (const SafetensorsFile& file : set_.files) CKV_RETURN_IF_ERROR(file.CheckUnchanged());
  return absl::OkStatus();
}

absl::StatusOr<RowFile> RowFile::Read(SafetensorsSet set) {
  RowFile rows(std::move(set));
  CKV_RETURN_IF_ERROR(rows.ReadMetadata());
  CKV_RETURN_IF_ERROR(rows.ReadTokens());
  CKV_RETURN_IF_ERROR(rows.ReadExtraKeys());
  CKV_RETURN_IF_ERROR(rows.ReadIndex());
  CKV_RETURN_IF_ERROR(rows.ReadLayers());
  CKV_RETURN_IF_ERROR(rows.ReadIndexKeys());
  CKV_RETURN_IF_ERROR(ValidateGeometry(rows.geometry_));
  return rows;
}

absl::Status RowFile::ReadMetadata() {
  const Metadata& metadata = set_.metadata;
  CKV_ASSIGN_OR_RETURN(geometry_.model, Text(metadata, "model"));
  CKV_ASSIGN_OR_RETURN(geometry_.revision, Text(metadata, "revision"));
  CKV_ASSIGN_OR_RETURN(const uint64_t d_v, Whole(metadata, "d_v", kRowWidthMax));
  CKV_ASSIGN_OR_RETURN(const uint64_t d_rope, Whole(metadata, "d_rope", kRowWidthMax));
  geometry_.d_v = static_cast<uint32_t>(d_v);
  geometry_.d_rope = static_cast<uint32_t>(d_rope);
  CKV_ASSIGN_OR_RETURN(geometry_.rope, ReadRope(metadata, geometry_.d_rope));
  CKV_ASSIGN_OR_RETURN(const double scale, Positive(metadata, "softmax_scale"));
  geometry_.softmax_scale = static_cast<float>(scale);
  CKV_ASSIGN_OR_RETURN(base_position_, Whole(metadata, "base_position", kPositionMax));
  return absl::OkStatus();
}

absl::Status RowFile::ReadTokens() {
  const auto tokens = set_.tensors.find(kTokenIds);
  if (tokens == set_.tensors.end()) {
    return RefuseWithout(std::string(kTokenIds), set_, "is missing");
  }
  const TensorView& view = tokens->second;
  const bool is_wide = view.dtype == TensorDtype::kI64;
  if ((view.dtype != TensorDtype::kI32 && !is_wide) || view.shape.size() != 1) {
    return RefuseTensor(kTokenIds, absl::StrFormat("%s, must be I32 or I64 [T]", ShapeText(view)));
  }
  if (view.shape[0] > kRowFileTokenCountMax) {
    return RefuseTensor(
        kTokenIds, absl::StrFormat("%d tokens, limit %d", view.shape[0], kRowFileTokenCountMax));
  }
  if (base_position_ + view.shape[0] > kPositionMax) {
    return RefuseKey("base_position",
                     absl::StrFormat("the last token's position is over %d", kPositionMax));
  }
  std::vector<std::byte> raw(view.data.size());
  CKV_RETURN_IF_ERROR(Copy(view.data, raw.data()));
  CKV_ASSIGN_OR_RETURN(token_ids_, ReadTokenIds("tensor 'token_ids': ", raw,
                                                {.bytes = is_wide ? 8u : 4u, .is_signed = true}));
  return absl::OkStatus();
}

absl::Status RowFile::ReadExtraKeys() {
  const auto found = set_.metadata.find(kExtraKeys);
  if (found == set_.metadata.end()) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(
      extra_keys_, ParseExtraKeysText(found->second, token_ids_.size(), "metadata 'extra_keys'"));
  return absl::OkStatus();
}

absl::Status RowFile::ReadIndex() {
  const auto found = set_.metadata.find(kIndex);
  if (found == set_.metadata.end()) {
    if (!set_.tensors.contains(TensorNameOf(0, kKeysEnd))) return absl::OkStatus();
    return RefuseKey(kIndex, "is missing, and the file has index keys");
  }
  const auto parsed = ParseJson(found->second, /*depth_max=*/1);
  if (!parsed.ok()) return RefuseKey(kIndex, std::string(parsed.status().message()));
  const auto index = DecodeIndex(*parsed, "");
  if (!index.ok()) return RefuseKey(kIndex, std::string(index.status().message()));
  geometry_.index = *index;
  return absl::OkStatus();
}

absl::Status RowFile::ReadLayers() {
  size_t layers = set_.tensors.size() - 1;  // all but token_ids
  const bool pairs = !geometry_.index || layers % 2 == 0;
  if (geometry_.index) layers /= 2;
  if (!pairs || layers == 0 || layers > kLayerCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d tensors, must be token_ids and, for each of 1 to %d layers, its rows%s",
        set_.tensors.size(), kLayerCountMax, geometry_.index ? " and its index keys" : ""));
  }
  geometry_.layers = static_cast<uint32_t>(layers);
  uint64_t width = 0;  // width of a row, in elements
  for (size_t i = 0; i < layers; ++i) {
    const std::string name = TensorNameOf(i, kRowsEnd);
    const auto found = set_.tensors.find(name);
    if (found == set_.tensors.end()) {
      return RefuseWithout(name, set_,
                           absl::StrFormat("is missing; the file has %d tensors and "
                                           "token_ids, so layers 0 to %d are due",
                                           layers, layers - 1));
    }
    const TensorView& view = found->second;
    const bool fp8 = view.dtype == TensorDtype::kU8;
    if (i == 0) {
      geometry_.dtype = fp8 ? RowDtype::kFp8DsMla : RowDtype::kBf16;
      // Bounded before it is narrowed.
      width = view.shape.size() == 2 ? std::min<uint64_t>(view.shape[1], 2 * kRowWidthMax + 1) : 0;
      geometry_.d_qk = fp8 ? geometry_.d_v + geometry_.d_rope : static_cast<uint32_t>(width);
      if (fp8) width = geometry_.row_bytes();
    }
    const std::string_view dtype = geometry_.dtype == RowDtype::kBf16 ? "BF16" : "U8";
    if (TensorDtypeName(view.dtype) != dtype || view.shape.size() != 2 ||
        view.shape[0] != token_ids_.size() || view.shape[1] != width) {
      const std::string due = absl::StrFormat("%s [%d, %d]", dtype, token_ids_.size(), width);
      return RefuseTensor(name, absl::StrFormat("%s, must be %s%s", ShapeText(view), due,
                                                i == 0 ? " (BF16 [T, d_qk], or U8 for fp8_ds_mla)"
                                                       : " like layer 0"));
    }
    tensors_.push_back(view.data);
  }
  return absl::OkStatus();
}

absl::Status RowFile::ReadIndexKeys() {
  if (!geometry_.index) return absl::OkStatus();
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    const TensorSpec due =
        RowTensorSpec(geometry_, geometry_.index_tensor(layer), token_ids_.size());
    const auto found = set_.tensors.find(due.name);
    if (found == set_.tensors.end())
      return RefuseWithout(due.name, set_, "is missing; metadata 'index' makes it due");
    const TensorView& view = found->second;
    if (view.dtype != due.dtype || view.shape != due.shape) {
      return RefuseTensor(
          due.name, absl::StrFormat("%s, must be %s [%d, %d] by metadata 'index'", ShapeText(view),
                                    TensorDtypeName(due.dtype), due.shape[0], due.shape[1]));
    }
    tensors_.push_back(view.data);
  }
  return absl::OkStatus();
}

std::span<const std::byte> RowFile::Rows(uint32_t tensor, uint32_t token_begin,
                                         uint32_t token_end) const {
  const size_t row_bytes = geometry_.tensor_row_bytes(tensor);
  return tensors_.at(tensor).subspan(token_begin * row_bytes,
                                     (token_end - token_begin) * row_bytes);
}

TensorSpec RowTensorSpec(const Geometry& geometry, uint32_t tensor, uint64_t token_count) {
  const bool is_key = tensor >= geometry.layers;
  const bool bf16 =
      is_key ? geometry.index->dtype == IndexDtype::kBf16 : geometry.dtype == RowDtype::kBf16;
  const uint64_t row_bytes = geometry.tensor_row_bytes(tensor);
  return {TensorNameOf(is_key ? tensor - geometry.layers : tensor, is_key ? kKeysEnd : kRowsEnd),
          bf16 ? TensorDtype::kBf16 : TensorDtype::kU8,
          {token_count, bf16 ? row_bytes / 2 : row_bytes}};
}

std::vector<TokenRange> CutFixed(uint32_t token_count, uint32_t chunk_tokens) {
  if (chunk_tokens == 0 || token_count <= chunk_tokens) return {{0, token_count}};
  std::vector<TokenRange> ranges;
  for (uint32_t begin = 0; begin < token_count;) {
    const uint32_t end = begin + std::min(chunk_tokens, token_count - begin);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

ChunkInfo DescribeChunk(const Geometry& geometry, const ChunkId& parent, uint64_t base_position,
                        std::span<const int32_t> token_ids, TokenRange range,
                        absl::FunctionRef<std::span<const std::byte>(uint32_t tensor)> tensor,
                        std::span<const ExtraKey> extra_keys) {
  const auto tokens = token_ids.subspan(range.begin, range.end - range.begin);
  ChunkInfo info;
  info.parent = parent;
  info.position = base_position + range.begin;
  info.token_ids.assign(tokens.begin(), tokens.end());
  info.extra_keys = ExtraKeysOf(extra_keys, range.begin, range.end);
  info.id =
      ComputeChunkId(ModelFingerprint(geometry), parent, info.position, tokens, info.extra_keys);
  info.tensor_checksums.reserve(geometry.tensor_count());
  for (uint32_t t = 0; t < geometry.tensor_count(); ++t)
    info.tensor_checksums.push_back(ChecksumOf(tensor(t)));
  return info;
}

}  // namespace ckv
