#include "store/disk/owned_folder.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

constexpr size_t kFormatBytesMax = 64;

std::string Prefix(const FolderKind& kind) {
  return absl::StrCat("ckv ", std::string(kind.name), " ");
}

// The first thing in a new folder, so that it is known as one whatever else is there.
absl::Status MakeFormat(FileSystem& files, const std::string& path, const FolderKind& kind) {
  CKV_ASSIGN_OR_RETURN(const std::vector<FolderEntry> there, files.List(path));
  const std::string temporary = absl::StrCat(path, "/FORMAT.new");
  for (const FolderEntry& entry : there) {
    if (entry.name == "FORMAT.new") {
      CKV_RETURN_IF_ERROR(files.Remove(temporary));  // left by a process that died here
    } else if (entry.name != "LOCK" && entry.name != "lost+found") {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s %s: it has no FORMAT but \"%s\": name an empty folder", kind.name, path, entry.name));
    }
  }
  return WriteSmallFile(files, temporary, path, "FORMAT",
                        absl::StrCat(Prefix(kind), kind.version, "\n"));
}

absl::Status CheckFormat(std::string_view format, const std::string& path, const FolderKind& kind) {
  const std::string prefix = Prefix(kind);
  if (format == absl::StrCat(prefix, kind.version, "\n")) return absl::OkStatus();
  uint32_t version = 0;
  const bool known = format.starts_with(prefix) && format.ends_with('\n') &&
                     absl::SimpleAtoi(std::string(format.substr(prefix.size())), &version);
  if (known && version > kind.version) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s %s: its format is %d, this build reads up to %d: it was made by a "
                        "later version of ckv: upgrade this one",
                        kind.name, path, version, kind.version));
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("%s %s: its FORMAT is not that of a %s", kind.name, path, kind.name));
}

std::string ParentOf(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// "process 1234", as its owner wrote it.
std::string OwnerOf(FileSystem& files, const std::string& lock) {
  const auto text = ReadSmallFile(files, lock, kFormatBytesMax);
  uint64_t pid = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &pid)) return "another process";
  return absl::StrCat("process ", pid);
}

}  // namespace

absl::Status OwnedFolder::CheckThere() const {
  return Annotate(CheckNamed(absl::StrCat(path_, "/LOCK"), lock_->identity()),
                  absl::StrFormat("the folder %s is not the one that was opened", path_));
}

absl::StatusOr<OwnedFolder> OwnedFolder::Open(FileSystem& files, const std::string& path,
                                              const FolderKind& kind) {
  CKV_RETURN_IF_ERROR(files.MakeFolder(path));
  const std::string lock = absl::StrCat(path, "/LOCK");
  // For the message below only. A full disk may refuse it: then the message names no process.
  const std::string pid = absl::StrFormat("%-20d\n", getpid());  // over any that was there
  auto taken = files.Lock(lock, pid);
  if (absl::IsFailedPrecondition(taken.status())) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s %s: %s uses it: two %s need two folders", kind.name, path,
                        OwnerOf(files, lock), kind.owners));
  }
  if (!taken.ok()) return Annotate(taken.status(), absl::StrFormat("%s %s", kind.name, path));
  OwnedFolder folder(*std::move(taken), path);
  const auto format = ReadSmallFile(files, absl::StrCat(path, "/FORMAT"), kFormatBytesMax);
  if (absl::IsNotFound(format.status())) {
    CKV_RETURN_IF_ERROR(MakeFormat(files, path, kind));
    // A folder whose own name is lost is lost with all that is in it.
    CKV_RETURN_IF_ERROR(files.SyncFolder(ParentOf(path)));
    return folder;
  }
  CKV_RETURN_IF_ERROR(format.status());
  CKV_RETURN_IF_ERROR(CheckFormat(*format, path, kind));
  return folder;
}

}  // namespace ckv
