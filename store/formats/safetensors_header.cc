// Checks the header of a safetensors file. HeaderReader takes the tokens of the JSON parser one by
// one, knows by its depth what may follow, and refuses everything else. Then ParseSafetensorsHeader
// compares each shape with its bytes, and CheckCover requires that tensors cover the data without
// gaps. No JSON document is built, so the memory is limited by what is valid.

#include "store/formats/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr std::string_view kMetadataName = "__metadata__";

struct DtypeInfo {
  TensorDtype dtype;
  std::string_view name;
  uint32_t bytes;
};
constexpr DtypeInfo kDtypes[] = {
    {TensorDtype::kBf16, "BF16", 2}, {TensorDtype::kF16, "F16", 2}, {TensorDtype::kF32, "F32", 4},
    {TensorDtype::kF64, "F64", 8},   {TensorDtype::kI8, "I8", 1},   {TensorDtype::kU8, "U8", 1},
    {TensorDtype::kI16, "I16", 2},   {TensorDtype::kI32, "I32", 4}, {TensorDtype::kI64, "I64", 8},
    {TensorDtype::kBool, "BOOL", 1},
};

const DtypeInfo& InfoOf(TensorDtype dtype) {
  for (const DtypeInfo& info : kDtypes) {
    if (info.dtype == dtype) return info;
  }
  CKV_CHECK(false);
}

absl::Status Refuse(std::string_view tensor, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("tensor %s: %s", QuotedName(tensor), what));
}

struct RawTensor {
  std::string name;
  std::optional<TensorDtype> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;  // begin, end
};

// Takes the header as its JSON is read, so that a hostile one costs no document: three levels deep
// and nothing but what the format knows.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<RawTensor> tensors;
  std::map<std::string, std::string, std::less<>> metadata;
  absl::Status status;

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (at_ == At::kShape) {
      if (tensors.back().shape->size() == kTensorRankMax) {
        return Fail(Refuse(name_, absl::StrFormat("shape: more than %d axes", kTensorRankMax)));
      }
      tensors.back().shape->push_back(value);
      return true;
    }
    if (at_ == At::kOffsets && tensors.back().offsets->size() < 2) {
      tensors.back().offsets->push_back(value);
      return true;
    }
    return Unexpected("a number");
  }

  bool string(string_t& value) override {
    if (at_ == At::kMetadata) {
      metadata.emplace(field_, std::move(value));
      return true;
    }
    if (at_ != At::kTensor || field_ != "dtype") return Unexpected("a string");
    for (const DtypeInfo& info : kDtypes) {
      if (value == info.name) tensors.back().dtype = info.dtype;
    }
    if (tensors.back().dtype) return true;
    return Fail(Refuse(name_, absl::StrFormat("dtype: %s is not known", QuotedName(value))));
  }

  bool start_object(size_t) override {
    if (at_ == At::kTop) {
      at_ = At::kHeader;
    } else if (at_ == At::kHeader && name_ == kMetadataName) {
      at_ = At::kMetadata;
    } else if (at_ == At::kHeader) {
      if (tensors.size() == kTensorCountMax) {
        return Fail(absl::InvalidArgumentError(
            absl::StrFormat("header: more than %d tensors", kTensorCountMax)));
      }
      tensors.push_back({name_, {}, {}, {}});
      at_ = At::kTensor;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    if (at_ == At::kHeader) {
      name_ = name;
      if (!names_.insert(name).second) return Fail(Refuse(name, "the name is there twice"));
      return true;
    }
    field_ = name;
    if (at_ == At::kMetadata) {
      if (!metadata.contains(name)) return true;
      return Fail(absl::InvalidArgumentError(
          absl::StrFormat("metadata: the key %s is there twice", QuotedName(name))));
    }
    const RawTensor& tensor = tensors.back();
    const bool known = name == "dtype" || name == "shape" || name == "data_offsets";
    if (!known) return Fail(Refuse(name_, absl::StrFormat("%s is not known", QuotedName(name))));
    if ((name == "dtype" && tensor.dtype) || (name == "shape" && tensor.shape) ||
        (name == "data_offsets" && tensor.offsets)) {
      return Fail(Refuse(name_, absl::StrFormat("%s is there twice", name)));
    }
    return true;
  }

  bool end_object() override {
    if (at_ == At::kHeader) {
      at_ = At::kEnd;
      return true;
    }
    if (at_ == At::kTensor) {
      const RawTensor& tensor = tensors.back();
      if (!tensor.dtype || !tensor.shape || !tensor.offsets) {
        return Fail(Refuse(name_, "must have dtype, shape and data_offsets"));
      }
    }
    at_ = At::kHeader;
    return true;
  }

  bool start_array(size_t) override {
    if (at_ != At::kTensor || field_ == "dtype") return Unexpected("an array");
    if (field_ == "shape") {
      tensors.back().shape.emplace();
      at_ = At::kShape;
    } else {
      tensors.back().offsets.emplace();
      at_ = At::kOffsets;
    }
    return true;
  }

  bool end_array() override {
    if (at_ == At::kOffsets && tensors.back().offsets->size() != 2) {
      return Fail(Refuse(name_, "data_offsets must be two numbers"));
    }
    at_ = At::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::InvalidArgumentError(
        absl::StrFormat("header: not JSON in UTF-8 near byte %d", position)));
  }

 private:
  // Inside what the next token is; a tensor is tensors.back().
  enum class At { kTop, kHeader, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Fail(absl::Status why) {
    status = std::move(why);
    return false;
  }

  bool Unexpected(std::string_view what) {
    if (at_ == At::kMetadata) {
      return Fail(absl::InvalidArgumentError(
          absl::StrFormat("metadata: %s must be a string, not %s", QuotedName(field_), what)));
    }
    if (at_ == At::kTop) {
      return Fail(
          absl::InvalidArgumentError(absl::StrFormat("header: must be an object, not %s", what)));
    }
    if (at_ == At::kHeader) return Fail(Refuse(name_, absl::StrFormat("%s is no tensor", what)));
    return Fail(Refuse(name_, absl::StrFormat("%s: unexpected %s", field_, what)));
  }

  At at_ = At::kTop;
  std::string name_;   // the last key of the header
  std::string field_;  // the last key of a tensor or of the metadata
  std::set<std::string, std::less<>> names_;
};

// The bytes that a shape takes, or nothing if they overflow. Zero axes count as one here: a product
// of a part of the axes must not overflow either.
std::optional<uint64_t> ShapeBytes(TensorDtype dtype, const std::vector<uint64_t>& shape) {
  uint64_t bytes = TensorDtypeBytes(dtype);
  bool empty = false;
  for (const uint64_t size : shape) {
    empty |= size == 0;
    if (__builtin_mul_overflow(bytes, std::max<uint64_t>(size, 1), &bytes)) return std::nullopt;
  }
  return empty ? 0 : bytes;
}

// Checks that the tensors, in the order of their offsets, cover `data` from its start to its end.
absl::Status CheckCover(std::vector<RawTensor>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const RawTensor& a, const RawTensor& b) {
    return *a.offsets != *b.offsets ? *a.offsets < *b.offsets : a.name < b.name;
  });
  uint64_t covered_bytes = 0;
  for (const RawTensor& tensor : tensors) {
    const uint64_t begin = tensor.offsets->front();
    const uint64_t end = tensor.offsets->back();
    if (begin > end || end > data_bytes) {
      return Refuse(tensor.name, absl::StrFormat("data_offsets %d to %d, the file has %d bytes",
                                                 begin, end, data_bytes));
    }
    if (begin != covered_bytes) {
      return Refuse(tensor.name,
                    absl::StrFormat("starts at byte %d of the data, %s %d", begin,
                                    begin < covered_bytes ? "inside the tensor that ends at"
                                                          : "leaving a gap after",
                                    covered_bytes));
    }
    const std::optional<uint64_t> bytes = ShapeBytes(*tensor.dtype, *tensor.shape);
    if (!bytes) return Refuse(tensor.name, "shape: its size overflows");
    if (*bytes != end - begin) {
      return Refuse(tensor.name, absl::StrFormat("its shape takes %d bytes, its data_offsets %d",
                                                 *bytes, end - begin));
    }
    covered_bytes = end;
  }
  if (covered_bytes != data_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat("%d bytes after the last tensor's end at %d",
                                                      data_bytes - covered_bytes, covered_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

std::string QuotedName(std::string_view name) {
  return absl::StrFormat("'%s%s'", absl::Utf8SafeCHexEscape(std::string(name.substr(0, 64))),
                         name.size() > 64 ? "..." : "");
}

std::string_view TensorDtypeName(TensorDtype dtype) { return InfoOf(dtype).name; }

uint32_t TensorDtypeBytes(TensorDtype dtype) { return InfoOf(dtype).bytes; }

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view header,
                                                         uint64_t data_bytes) {
  // The format starts with a brace: no byte order mark, no blanks. nlohmann's lexer takes a NUL for
  // the end of the text.
  if (!header.starts_with('{')) return absl::InvalidArgumentError("header: does not start with {");
  if (header.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError("header: a NUL byte");
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header.begin(), header.end(), &reader)) return reader.status;
  CKV_RETURN_IF_ERROR(CheckCover(reader.tensors, data_bytes));
  SafetensorsHeader result;
  result.metadata = std::move(reader.metadata);
  result.tensors.reserve(reader.tensors.size());
  for (RawTensor& tensor : reader.tensors) {
    result.tensors.push_back({std::move(tensor.name), *tensor.dtype, *std::move(tensor.shape),
                              tensor.offsets->front(), tensor.offsets->back()});
  }
  return result;
}

}  // namespace ckv
