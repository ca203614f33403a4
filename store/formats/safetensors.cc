#include "store/formats/safetensors.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/formats/safetensors_header.h"

namespace ckv {

uint64_t TensorView::element_count() const { return data.size() / TensorDtypeBytes(dtype); }

absl::Status SafetensorsFile::Read(std::span<const std::byte> bytes) {
  if (bytes.size() < kSafetensorsLengthBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes, a safetensors file has at least %d", bytes.size(), kSafetensorsLengthBytes));
  }
  all_ = bytes;
  CKV_RETURN_IF_ERROR(Need(bytes.first(kSafetensorsLengthBytes)));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kSafetensorsLengthBytes);
  if (header_bytes > kSafetensorsHeaderBytesMax ||
      header_bytes > bytes.size() - kSafetensorsLengthBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("header: %d bytes, of a file of %d; limit %d",
                                                      header_bytes, bytes.size(),
                                                      kSafetensorsHeaderBytesMax));
  }
  CKV_RETURN_IF_ERROR(Need(bytes.subspan(kSafetensorsLengthBytes, header_bytes)));
  const std::string_view header(
      reinterpret_cast<const char*>(bytes.data()) + kSafetensorsLengthBytes, header_bytes);
  const std::span<const std::byte> data = bytes.subspan(kSafetensorsLengthBytes + header_bytes);
  CKV_ASSIGN_OR_RETURN(SafetensorsHeader parsed, ParseSafetensorsHeader(header, data.size()));
  metadata_ = std::move(parsed.metadata);
  for (TensorHeader& tensor : parsed.tensors) {
    tensors_.emplace(
        std::move(tensor.name),
        TensorView{tensor.dtype, std::move(tensor.shape),
                   data.subspan(tensor.begin_bytes, tensor.end_bytes - tensor.begin_bytes)});
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::span<const std::byte> bytes) {
  SafetensorsFile file;
  CKV_RETURN_IF_ERROR(file.Read(bytes));
  return file;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path,
                                                      FileReading reading) {
  SafetensorsFile file;
  CKV_ASSIGN_OR_RETURN(file.file_, FileBytes::Open(path, reading));
  CKV_RETURN_IF_ERROR(AnnotateOnce(file.Read(file.file_->bytes()), path));
  return file;
}

absl::Status SafetensorsFile::Need(std::span<const std::byte> part) const {
  return file_ == nullptr ? absl::OkStatus() : file_->Need(part);
}

bool SafetensorsFile::Has(std::span<const std::byte> part) const {
  return part.data() >= all_.data() && part.data() + part.size() <= all_.data() + all_.size();
}

absl::Status SafetensorsFile::Copy(std::span<const std::byte> part, std::byte* out) const {
  if (file_ != nullptr) return file_->Copy(part, out);
  if (!part.empty()) std::memcpy(out, part.data(), part.size());
  return absl::OkStatus();
}

absl::Status SafetensorsFile::CheckUnchanged() const {
  return file_ == nullptr ? absl::OkStatus() : file_->CheckUnchanged();
}

absl::StatusOr<TensorView> SafetensorsFile::Tensor(std::string_view name) const {
  if (const auto found = tensors_.find(name); found != tensors_.end()) return found->second;
  constexpr size_t kListed = 16;
  std::string names;
  size_t listed = 0;
  for (const auto& [other, view] : tensors_) {
    if (listed++ == kListed) {
      names += absl::StrFormat(" and %d more", tensors_.size() - kListed);
      break;
    }
    names += (names.empty() ? "" : ", ") + QuotedName(other);
  }
  return absl::NotFoundError(absl::StrFormat("no tensor %s; there are %s", QuotedName(name),
                                             names.empty() ? "none" : names));
}

}  // namespace ckv
