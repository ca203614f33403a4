// Reads chunks from a NumPy array. Open plans: it reads the options' geometry and token ids, checks
// the array's shape against them, and cuts the tokens. Read then returns one chunk, and rounds rows
// of f16 or f32 to bf16. The readers of geometry and extra keys also serve other sources.

#include "client/tools/ctl/corpus/npy_source.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/bf16.h"
#include "proto/base/status.h"
#include "proto/token_id.h"
#include "store/formats/extra_keys_json.h"
#include "store/formats/geometry_json.h"
#include "store/formats/json.h"
#include "store/formats/npy.h"

namespace ckv::ctl {
namespace {

constexpr size_t kGeometryBytesMax = 64u << 10;
constexpr size_t kExtraKeysFileBytesMax = 1u << 20;  // 1024 keys take some 200 bytes each

struct DtypeName {
  std::string_view name;
  NpyRowDtype dtype;
};
constexpr DtypeName kDtypeNames[] = {{"bf16", NpyRowDtype::kBf16},
                                     {"f16", NpyRowDtype::kF16},
                                     {"f32", NpyRowDtype::kF32},
                                     {"fp8_ds_mla", NpyRowDtype::kFp8DsMla}};

// Whether an array of `npy` may have rows of `dtype`.
bool Fits(const NpyDtype& npy, NpyRowDtype dtype) {
  switch (dtype) {
    case NpyRowDtype::kBf16:
      return npy.item_bytes == 2 && (npy.kind == 'V' || npy.kind == 'u');
    case NpyRowDtype::kF16:
      return npy == NpyDtype{'f', 2};
    case NpyRowDtype::kF32:
      return npy == NpyDtype{'f', 4};
    case NpyRowDtype::kFp8DsMla:
      return npy.item_bytes == 1 && (npy.kind == 'V' || npy.kind == 'u');
  }
  return false;
}

float FloatFromHalf(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  // Subnormal: mantissa x 2^-24, exact in binary32.
  const float value = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -value : value;
}

absl::Status CheckOptions(const std::string& path, const NpyOptions& options) {
  const std::pair<const char*, const std::string*> needed[] = {{"--dtype", &options.dtype},
                                                               {"--geometry", &options.geometry},
                                                               {"--token-ids", &options.token_ids}};
  for (const auto& [name, value] : needed) {
    if (!value->empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: an array does not describe its rows: it needs %s\n  ckvctl corpus "
                        "load --help describes each",
                        path, name));
  }
  return absl::OkStatus();
}

class NpySource final : public ChunkSource {
 public:
  static absl::StatusOr<std::unique_ptr<ChunkSource>> Open(const std::string& path,
                                                           const NpyOptions& options,
                                                           const CutOptions& cut,
                                                           uint32_t token_count_max);
  std::span<const int32_t> TokensOf(uint32_t ordinal) const override {
    const TokenRange range = ranges_.at(ordinal);
    return std::span(token_ids_).subspan(range.begin, range.end - range.begin);
  }
  absl::StatusOr<SourceChunk> Read(uint32_t ordinal) override;
  absl::Status CheckUnchanged() const override { return file_->CheckUnchanged(); }

 private:
  NpySource(std::shared_ptr<const NpyFile> file, NpyRowDtype dtype)
      : file_(std::move(file)), dtype_(dtype) {}
  absl::Status CheckShape(const std::string& path) const;
  // Tokens of a layer as they are stored in the file.
  std::span<const std::byte> Raw(uint32_t layer, TokenRange range) const;
  // Reads a layer's rows to `to`, as bf16 if they are of another type.
  absl::Status ReadLayer(uint32_t layer, TokenRange range, std::byte* to) const;

  const std::shared_ptr<const NpyFile> file_;
  const NpyRowDtype dtype_;
  uint64_t base_position_ = 0;
  std::vector<int32_t> token_ids_;
  ExtraKeys extra_keys_;
  std::vector<TokenRange> ranges_;  // one for each chunk
};

absl::Status NpySource::CheckShape(const std::string& path) const {
  const bool fp8 = dtype_ == NpyRowDtype::kFp8DsMla;
  const uint64_t width = fp8 ? geometry_.row_bytes() : geometry_.d_qk;
  const std::vector<uint64_t>& shape = file_->shape();
  if (fp8 != (geometry_.dtype == RowDtype::kFp8DsMla)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: rows of --dtype %s, and a geometry of the other kind: %s", path,
                        fp8 ? "fp8_ds_mla" : "bf16, f16 or f32 become bf16", geometry_.ToString()));
  }
  if (!Fits(file_->dtype(), dtype_) || shape.size() != 3 || shape[0] != geometry_.layers ||
      shape[1] > kRowFileTokenCountMax || shape[2] != width) {
    constexpr const char* kDue[] = {"V2 or u2", "f2", "f4", "V1 or u1"};
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s, must be %s [%d, tokens, %d] by --dtype and --geometry", path, file_->ShapeText(),
        kDue[static_cast<size_t>(dtype_)], geometry_.layers, width));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ChunkSource>> NpySource::Open(const std::string& path,
                                                             const NpyOptions& options,
                                                             const CutOptions& cut,
                                                             uint32_t token_count_max) {
  CKV_RETURN_IF_ERROR(CheckOptions(path, options));
  CKV_ASSIGN_OR_RETURN(const NpyRowDtype dtype, ParseNpyRowDtype(options.dtype));
  CKV_ASSIGN_OR_RETURN(NpyFile opened, NpyFile::Open(path, FileReading::kParts));
  const auto file = std::make_shared<const NpyFile>(std::move(opened));
  std::unique_ptr<NpySource> source(new NpySource(file, dtype));
  CKV_ASSIGN_OR_RETURN(source->geometry_, ReadGeometryWithoutIndex(options.geometry));
  CKV_RETURN_IF_ERROR(source->CheckShape(path));
  const uint64_t count = file->shape()[1];
  if (options.base_position > kPositionMax - count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--base-position: the last token's position is over %d", kPositionMax));
  }
  source->base_position_ = options.base_position;
  CKV_ASSIGN_OR_RETURN(source->token_ids_, ReadNpyTokenIds(options.token_ids, count));
  FilePlanner planner(source->geometry_, cut, token_count_max, &source->chunks_);
  CKV_ASSIGN_OR_RETURN(source->extra_keys_, ReadExtraKeysFile(options.extra_keys, count));
  CKV_ASSIGN_OR_RETURN(source->ranges_, planner.Add(path, options.base_position, source->token_ids_,
                                                    source->extra_keys_));
  return source;
}

std::span<const std::byte> NpySource::Raw(uint32_t layer, TokenRange range) const {
  const uint64_t row_bytes = file_->shape()[2] * file_->dtype().item_bytes;
  return file_->data().subspan((layer * file_->shape()[1] + range.begin) * row_bytes,
                               (range.end - range.begin) * row_bytes);
}

absl::Status NpySource::ReadLayer(uint32_t layer, TokenRange range, std::byte* to) const {
  const std::span<const std::byte> raw = Raw(layer, range);
  if (dtype_ != NpyRowDtype::kF16 && dtype_ != NpyRowDtype::kF32) return file_->Copy(raw, to);
  const size_t count = size_t{range.end - range.begin} * geometry_.d_qk;
  auto* const out = reinterpret_cast<uint16_t*>(to);
  std::vector<float> values((raw.size() + sizeof(float) - 1) / sizeof(float));
  CKV_RETURN_IF_ERROR(file_->Copy(raw, reinterpret_cast<std::byte*>(values.data())));
  if (dtype_ == NpyRowDtype::kF16) {
    Bf16FromHalves(reinterpret_cast<const std::byte*>(values.data()), out, count);
  } else {
    Bf16FromFloats(values.data(), out, count);
  }
  return absl::OkStatus();
}

absl::StatusOr<SourceChunk> NpySource::Read(uint32_t ordinal) {
  const TokenRange range = ranges_.at(ordinal);
  SourceChunk chunk;
  CKV_RETURN_IF_ERROR(HoldRows(
      ChunkLayout(geometry_, range.end - range.begin),
      [&](uint32_t layer, std::byte* to) { return ReadLayer(layer, range, to); }, chunk));
  chunk.info = DescribeChunk(geometry_, chunks_[ordinal].parent, base_position_, token_ids_, range,
                             chunk.rows, extra_keys_);
  NameAsPlanned(ordinal, chunk.info);
  return chunk;
}

}  // namespace

absl::StatusOr<NpyRowDtype> ParseNpyRowDtype(std::string_view name) {
  for (const DtypeName& known : kDtypeNames) {
    if (name == known.name) return known.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--dtype %s: must be bf16, f16, f32 or fp8_ds_mla", name));
}

absl::StatusOr<Geometry> ReadGeometryFile(const std::string& path) {
  CKV_ASSIGN_OR_RETURN(const std::shared_ptr<const FileBytes> file,
                       FileBytes::Open(path, FileReading::kWhole, kGeometryBytesMax));
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              file->bytes().size());
  const auto document = ParseJson(text, /*depth_max=*/3);
  if (!document.ok()) return Annotate(document.status(), path);
  if (!document->is_object()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: must be an object", path));
  }
  CKV_ASSIGN_OR_RETURN(Geometry geometry, DecodeGeometry(*document, path + ": "));
  CKV_RETURN_IF_ERROR(Annotate(ValidateGeometry(geometry), path));
  return geometry;
}

absl::StatusOr<Geometry> ReadGeometryWithoutIndex(const std::string& path) {
  CKV_ASSIGN_OR_RETURN(Geometry geometry, ReadGeometryFile(path));
  if (!geometry.index) return geometry;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: index: only a file of rows (safetensors) has index keys\n  ckvctl corpus "
      "load --help describes it",
      path));
}

absl::StatusOr<ExtraKeys> ReadExtraKeysFile(const std::string& path, uint64_t token_count) {
  if (path.empty()) return ExtraKeys();
  CKV_ASSIGN_OR_RETURN(const std::shared_ptr<const FileBytes> file,
                       FileBytes::Open(path, FileReading::kWhole, kExtraKeysFileBytesMax));
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                              file->bytes().size());
  return ParseExtraKeysText(text, token_count, path);
}

absl::StatusOr<std::unique_ptr<ChunkSource>> OpenNpyRows(const std::string& path,
                                                         const NpyOptions& options,
                                                         const CutOptions& cut,
                                                         uint32_t token_count_max) {
  return NpySource::Open(path, options, cut, token_count_max);
}

absl::StatusOr<std::vector<int32_t>> ReadNpyTokenIds(const std::string& path,
                                                     uint64_t token_count) {
  CKV_ASSIGN_OR_RETURN(const NpyFile file, NpyFile::Open(path, FileReading::kParts));
  const NpyDtype& dtype = file.dtype();
  const bool is_signed = dtype.kind == 'i';
  if ((!is_signed && dtype.kind != 'u') || (dtype.item_bytes != 4 && dtype.item_bytes != 8) ||
      file.shape() != std::vector<uint64_t>{token_count}) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s, must be i4, i8, u4 or u8 [%d], an id a token", path,
                        file.ShapeText(), token_count));
  }
  std::vector<std::byte> raw(file.data().size());
  CKV_RETURN_IF_ERROR(file.Copy(file.data(), raw.data()));
  return ReadTokenIds(path + ": ", raw, {.bytes = dtype.item_bytes, .is_signed = is_signed});
}

void Bf16FromHalves(const std::byte* in, uint16_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, in + i * sizeof(half), sizeof(half));
    out[i] = Bf16FromFloat(FloatFromHalf(half));
  }
}

}  // namespace ckv::ctl
