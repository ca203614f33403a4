#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
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
    std::span<const TensorToWrite> tensors) {
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
  for (const TensorToWrite& tensor : tensors) {
    if (head.back() != '{') head += ',';
    if (!AppendJsonString(tensor.name, head)) return not_utf8();
    head += absl::StrFormat(":{\"dtype\":\"%s\",\"shape\":[", TensorDtypeName(tensor.dtype));
    const char* comma = "";
    for (const uint64_t size : tensor.shape) {
      head += absl::StrFormat("%s%d", std::exchange(comma, ","), size);
    }
    head += absl::StrFormat("],\"data_offsets\":[%d,%d]}", offset, offset + tensor.data.size());
    offset += tensor.data.size();
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

bool WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

// A rename is durable once its directory is.
bool SyncDirectoryOf(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  const int fd =
      open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const absl::Cleanup close_fd = [fd] { close(fd); };
  return fsync(fd) == 0;
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, std::string, std::less<>>& metadata,
                              std::span<const TensorToWrite> tensors) {
  CKV_ASSIGN_OR_RETURN(const std::string head, EncodeHead(metadata, tensors));
  uint64_t data_bytes = 0;
  for (const TensorToWrite& tensor : tensors) data_bytes += tensor.data.size();
  // What the reader would refuse is not written; so the rules stand in one place.
  const std::string_view header = std::string_view(head).substr(kSafetensorsLengthBytes);
  CKV_RETURN_IF_ERROR(ParseSafetensorsHeader(header, data_bytes).status());
  const auto failed = [&path] {
    return absl::UnavailableError(
        absl::StrFormat("cannot write %s: %s", path, std::strerror(errno)));
  };
  // Unique among the threads and processes that write this name at once.
  static std::atomic<uint64_t> counter{0};
  const std::string temporary =
      absl::StrFormat("%s.%d.%d.tmp", path, getpid(), counter.fetch_add(1));
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return failed();
  absl::Cleanup remove = [&temporary] { unlink(temporary.c_str()); };
  bool written = WriteAll(fd, std::as_bytes(std::span(head)));
  for (const TensorToWrite& tensor : tensors) written = written && WriteAll(fd, tensor.data);
  written = written && fsync(fd) == 0;
  const int error = errno;
  if (close(fd) != 0 || !written) {
    if (!written) errno = error;
    return failed();
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) return failed();
  std::move(remove).Cancel();
  return SyncDirectoryOf(path) ? absl::OkStatus() : failed();
}

}  // namespace ckv
