#include "client/tools/ctl/fleet/backup_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

constexpr std::string_view kMagic = "ckvdir1\n";
constexpr size_t kDigestBytes = 32;
constexpr size_t kReadBytes = size_t{1} << 20;

absl::Status Damaged(const std::string& path, std::string_view what) {
  return absl::DataLossError(
      absl::StrFormat("%s: %s: export the directory again, or take another copy", path, what));
}

absl::StatusOr<std::ifstream> OpenBackup(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (file) return file;
  const std::string text = absl::StrFormat("%s: %s", path, std::strerror(errno));
  return errno == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

// Checks the digest at the file's end.
absl::Status CheckDigest(const std::string& path) {
  CKV_ASSIGN_OR_RETURN(std::ifstream file, OpenBackup(path));
  file.seekg(0, std::ios::end);
  const auto size = static_cast<uint64_t>(file.tellg());
  file.seekg(0);
  if (size < kMagic.size() + sizeof(uint32_t) + kDigestBytes)
    return Damaged(path, "it is shorter than an exported directory");
  Sha256 digest;
  std::string bytes(kReadBytes, '\0');
  for (uint64_t left = size - kDigestBytes; left > 0;) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(left, bytes.size()));
    if (!file.read(bytes.data(), static_cast<std::streamsize>(count)))
      return absl::UnavailableError(absl::StrFormat("%s: it cannot be read", path));
    digest.Append(std::as_bytes(std::span(bytes).first(count)));
    left -= count;
  }
  std::array<uint8_t, kDigestBytes> stored{};
  file.read(reinterpret_cast<char*>(stored.data()), kDigestBytes);
  if (!file || digest.Finish() != stored) return Damaged(path, "it is damaged or cut off");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BackupWriter> BackupWriter::Create(const std::string& path) {
  const mode_t before = umask(S_IRWXG | S_IRWXO);
  auto file = OutputFile::Create(path);
  umask(before);
  if (!file.ok()) return file.status();
  BackupWriter writer(*std::move(file));
  CKV_RETURN_IF_ERROR(writer.Append(kMagic));
  return writer;
}

absl::Status BackupWriter::Append(std::string_view bytes) {
  const auto span = std::as_bytes(std::span(bytes));
  digest_->Append(span);
  CKV_RETURN_IF_ERROR(file_.Write(bytes_, span));
  bytes_ += bytes.size();
  return absl::OkStatus();
}

absl::Status BackupWriter::Add(std::string_view message) {
  const auto length = static_cast<uint32_t>(message.size());
  CKV_RETURN_IF_ERROR(Append({reinterpret_cast<const char*>(&length), sizeof(length)}));
  return Append(message);
}

absl::Status BackupWriter::Finish() && {
  CKV_RETURN_IF_ERROR(Add(""));
  const auto digest = digest_->Finish();
  CKV_RETURN_IF_ERROR(file_.Write(bytes_, std::as_bytes(std::span(digest))));
  return std::move(file_).Finish();
}

absl::Status ReadBackup(const std::string& path,
                        absl::FunctionRef<absl::Status(std::string message)> take) {
  CKV_RETURN_IF_ERROR(CheckDigest(path));
  CKV_ASSIGN_OR_RETURN(std::ifstream file, OpenBackup(path));
  std::string magic(kMagic.size(), '\0');
  if (!file.read(magic.data(), static_cast<std::streamsize>(magic.size())) || magic != kMagic)
    return Damaged(path, "it is no exported directory");
  while (true) {
    uint32_t length = 0;
    if (!file.read(reinterpret_cast<char*>(&length), sizeof(length)) ||
        length > kBackupMessageBytesMax) {
      return Damaged(path, "a message has no length");
    }
    if (length == 0) return absl::OkStatus();
    std::string message(length, '\0');
    if (!file.read(message.data(), length)) return Damaged(path, "a message is cut off");
    CKV_RETURN_IF_ERROR(take(std::move(message)));
  }
}

}  // namespace ckv::ctl
