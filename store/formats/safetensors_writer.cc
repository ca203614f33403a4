#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "proto/status.h"
#include "store/safetensors.h"
#include "store/safetensors_header.h"

namespace ckv {
namespace {

constexpr size_t kDataAlignment = 64;

// Appends `text` as a JSON string; false if it is not UTF-8.
bool AppendJsonString(std::string_view text, std::string& out) {
  using nlohmann::json;
  // The strict handler would throw. With the replacing one, text that is not UTF-8 does not survive
  // the way there and back.
  const std::string quoted = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  if (json::parse(quoted, nullptr, /*allow_exceptions=*/false) != text) return false;
  out += quoted;
  return true;
}

// The length, the header and its padding: all that stands before the data.
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

// Unique among the threads and processes that write this name at once.
std::string TemporaryName(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  return absl::StrFormat("%s.%d.%d.tmp", path, getpid(), counter.fetch_add(1));
}

std::string FolderOf(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

bool WriteAll(int fd, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return true;
}

// A rename is durable once its directory is.
bool SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const absl::Cleanup close_fd = [fd] { close(fd); };
  return fsync(fd) == 0;
}

// The bytes of data that follow the head; nothing where they overflow.
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
  // What the reader would refuse is not written; so the rules stand in one place.
  const std::string_view header = std::string_view(head).substr(kSafetensorsLengthBytes);
  CKV_RETURN_IF_ERROR(ParseSafetensorsHeader(header, *data_bytes).status());
  return head;
}

// What a shape takes; a size that overflows is cut, and then no header's.
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
  SafetensorsWriter writer;
  writer.path_ = path;
  uint64_t offset = head.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    writer.tensors_.push_back({tensors[i].name, offset, sizes_bytes[i]});
    offset += sizes_bytes[i];
  }
  CKV_RETURN_IF_ERROR(writer.Open());
  if (!WriteAll(writer.fd_, 0, std::as_bytes(std::span(head)))) return writer.Failed();
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, "")),
      fd_(std::exchange(other.fd_, -1)),
      tensors_(std::move(other.tensors_)) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status SafetensorsWriter::Failed() const {
  return absl::UnavailableError(
      absl::StrFormat("cannot write %s: %s", path_, std::strerror(errno)));
}

absl::Status SafetensorsWriter::Open() {
  fd_ = open(FolderOf(path_).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (fd_ >= 0) return absl::OkStatus();
  // NFS, FUSE and overlays of old kernels have no files without names.
  const std::string name = TemporaryName(path_);
  fd_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) return Failed();
  temporary_ = name;
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Write(size_t tensor, uint64_t offset_bytes,
                                      std::span<const std::byte> bytes) {
  Tensor& to = tensors_.at(tensor);
  if (offset_bytes > to.written_bytes || bytes.size() > to.size_bytes - offset_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "safetensors: tensor %s: %d bytes at %d, of %d with %d written", QuotedName(to.name),
        bytes.size(), offset_bytes, to.size_bytes, to.written_bytes));
  }
  if (!WriteAll(fd_, to.begin_bytes + offset_bytes, bytes)) return Failed();
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
  if (fsync(fd_) != 0) return Failed();
  if (temporary_.empty()) {
    // A link replaces nothing, so it gets a name that it has for the moment until the rename.
    const std::string name = TemporaryName(path_);
    const std::string self = absl::StrFormat("/proc/self/fd/%d", fd_);
    if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      return Failed();
    }
    temporary_ = name;
  }
  if (close(std::exchange(fd_, -1)) != 0) return Failed();
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Failed();
  temporary_.clear();
  return SyncFolder(FolderOf(path_)) ? absl::OkStatus() : Failed();
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
  // By the sizes of the data, so that a shape of another size is told.
  CKV_RETURN_IF_ERROR(CheckedHead(metadata, specs, sizes_bytes).status());
  CKV_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, metadata, specs));
  for (size_t i = 0; i < tensors.size(); ++i) {
    CKV_RETURN_IF_ERROR(writer.Write(i, 0, tensors[i].data));
  }
  return std::move(writer).Finish();
}

}  // namespace ckv
