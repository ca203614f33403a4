// Writes a safetensors file. Create makes the header from names, types and shapes, checks it with
// the reader's own rules (CheckedHead), and writes it. Write puts bytes at an offset of a tensor,
// without leaving a gap. Finish requires that every tensor is whole, and gives the file its name.

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/formats/safetensors.h"
#include "store/formats/safetensors_header.h"

namespace ckv {
namespace {

constexpr size_t kDataAlignment = 64;

// Appends `text` as a JSON string. Returns false if it is not UTF-8.
bool AppendJsonString(std::string_view text, std::string& out) {
  using nlohmann::json;
  // The strict handler would throw. With the replacing one, text that is not UTF-8 does not survive
  // the round trip.
  const std::string quoted = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  if (json::parse(quoted, nullptr, /*allow_exceptions=*/false) != text) return false;
  out += quoted;
  return true;
}

// Returns the length, the header and its padding: everything before the data.
absl::StatusOr<std::string> EncodeHead(
    const std::map<std::string, std::string, std::less<>>& metadata,
    std::span<const TensorSpec> tensors, std::span<const uint64_t> sizes_bytes) {
  const auto not_utf8 = [] {
    return absl::InvalidArgumentError("safetensors: a name or metadata that is not UTF-8");
  };
  std::string head(kSafetensorsLengthBytes, '\0');
  head += '{';
  if (!metadata.empty()) {
    head += "\"__metadata__\":{";
    const char* comma = "";
    for (const auto& [key, value] : metadata) {
      head += std::exchange(comma, ",");
      if (!AppendJsonString(key, head)) return not_utf8();
      head += ':';
      if (!AppendJsonString(value, head)) return not_utf8();
    }
    head += '}';
  }
  uint64_t offset = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (head.back() != '{') head += ',';
    if (!AppendJsonString(tensors[i].name, head)) return not_utf8();
    head += absl::StrFormat(":{\"dtype\":\"%s\",\"shape\":[", TensorDtypeName(tensors[i].dtype));
    const char* comma = "";
    for (const uint64_t size : tensors[i].shape) {
      head += absl::StrFormat("%s%d", std::exchange(comma, ","), size);
    }
    head += absl::StrFormat("],\"data_offsets\":[%d,%d]}", offset, offset + sizes_bytes[i]);
    offset += sizes_bytes[i];
  }
  head += '}';
  head.append((kDataAlignment - head.size() % kDataAlignment) % kDataAlignment, ' ');
  const uint64_t header_bytes = head.size() - kSafetensorsLengthBytes;
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("safetensors: a header of %d bytes, limit %d",
                                                      header_bytes, kSafetensorsHeaderBytesMax));
  }
  std::memcpy(head.data(), &header_bytes, sizeof(header_bytes));
  return head;
}

// Returns the bytes of data that follow the head, or nothing if they overflow.
std::optional<uint64_t> Sum(std::span<const uint64_t> sizes_bytes) {
  uint64_t sum = 0;
  for (const uint64_t size : sizes_bytes) {
    if (__builtin_add_overflow(sum, size, &sum)) return std::nullopt;
  }
  return sum;
}

absl::StatusOr<std::string> CheckedHead(
    const std::map<std::string, std::string, std::less<>>& metadata,
    std::span<const TensorSpec> tensors, std::span<const uint64_t> sizes_bytes) {
  CKV_ASSIGN_OR_RETURN(std::string head, EncodeHead(metadata, tensors, sizes_bytes));
  const std::optional<uint64_t> data_bytes = Sum(sizes_bytes);
  // pwrite's offsets are signed.
  if (!data_bytes || *data_bytes > INT64_MAX - head.size()) {
    return absl::InvalidArgumentError("safetensors: the size of the tensors overflows");
  }
  // A header that the reader would refuse is not written. So the rules are in one place.
  const std::string_view header = std::string_view(head).substr(kSafetensorsLengthBytes);
  CKV_RETURN_IF_ERROR(ParseSafetensorsHeader(header, *data_bytes).status());
  return head;
}

// Returns the bytes of a shape. A size that overflows becomes UINT64_MAX, which no header can have.
uint64_t SizeOf(const TensorSpec& tensor) {
  uint64_t bytes = TensorDtypeBytes(tensor.dtype);
  for (const uint64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return UINT64_MAX;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, const std::map<std::string, std::string, std::less<>>& metadata,
    std::span<const TensorSpec> tensors) {
  std::vector<uint64_t> sizes_bytes;
  for (const TensorSpec& tensor : tensors) sizes_bytes.push_back(SizeOf(tensor));
  CKV_ASSIGN_OR_RETURN(const std::string head, CheckedHead(metadata, tensors, sizes_bytes));
  CKV_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  CKV_RETURN_IF_ERROR(file.Write(0, std::as_bytes(std::span(head))));
  SafetensorsWriter writer(std::move(file));
  uint64_t offset = head.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    writer.tensors_.push_back({tensors[i].name, offset, sizes_bytes[i]});
    offset += sizes_bytes[i];
  }
  return writer;
}

absl::Status SafetensorsWriter::Write(size_t tensor, uint64_t offset_bytes,
                                      std::span<const std::byte> bytes) {
  Tensor& to = tensors_.at(tensor);
  if (offset_bytes > to.written_bytes || bytes.size() > to.size_bytes - offset_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "safetensors: tensor %s: %d bytes at %d, of %d with %d written", QuotedName(to.name),
        bytes.size(), offset_bytes, to.size_bytes, to.written_bytes));
  }
  CKV_RETURN_IF_ERROR(file_.Write(to.begin_bytes + offset_bytes, bytes));
  to.written_bytes = std::max<uint64_t>(to.written_bytes, offset_bytes + bytes.size());
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() && {
  for (const Tensor& tensor : tensors_) {
    if (tensor.written_bytes == tensor.size_bytes) continue;
    return absl::InvalidArgumentError(absl::StrFormat("safetensors: tensor %s has %d bytes of %d",
                                                      QuotedName(tensor.name), tensor.written_bytes,
                                                      tensor.size_bytes));
  }
  return std::move(file_).Finish();
}

absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string, std::less<>>& metadata,
                              std::span<const TensorToWrite> tensors) {
  std::vector<TensorSpec> specs;
  std::vector<uint64_t> sizes_bytes;
  for (const TensorToWrite& tensor : tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    sizes_bytes.push_back(tensor.data.size());
  }
  // Uses the sizes of the data, so that a shape of another size is reported.
  CKV_RETURN_IF_ERROR(CheckedHead(metadata, specs, sizes_bytes).status());
  CKV_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, metadata, specs));
  for (size_t i = 0; i < tensors.size(); ++i) {
    CKV_RETURN_IF_ERROR(writer.Write(i, 0, tensors[i].data));
  }
  return std::move(writer).Finish();
}

}  // namespace ckv
