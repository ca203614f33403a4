// A file system whose calls fail as a test decides, in front of the real one. Syncs are not passed
// on: no process death shows what they did, and a real one takes milliseconds.

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/base/status.h"
#include "store/disk/file_system.h"

namespace ckv {

// Thread-safe if the hook is.
class FaultFileSystem final : public FileSystem {
 public:
  enum class Call {
    kCreate,
    kOpen,
    kRename,
    kRemove,
    kMakeFolder,
    kSyncFolder,
    kList,
    kWrite,
    kResize,
    kSync,
    kRead
  };
  // Called before every call. If it returns an error, the call fails with that error and does
  // nothing; only a write that fails has written its first half.
  using Hook = std::function<absl::Status(Call call, const std::string& path)>;
  // Calls that other threads make meanwhile may still call the hook before.
  void set_hook(Hook hook) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    hook_ = std::move(hook);
  }

  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    CKV_RETURN_IF_ERROR(Ask(Call::kCreate, path));
    return Wrap(real_->Create(path), path);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForReading(const std::string& path) override {
    CKV_RETURN_IF_ERROR(Ask(Call::kOpen, path));
    return Wrap(real_->OpenForReading(path), path);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForWriting(const std::string& path) override {
    CKV_RETURN_IF_ERROR(Ask(Call::kOpen, path));
    return Wrap(real_->OpenForWriting(path), path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    CKV_RETURN_IF_ERROR(Ask(Call::kRename, to));
    return real_->Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    CKV_RETURN_IF_ERROR(Ask(Call::kRemove, path));
    return real_->Remove(path);
  }
  absl::Status MakeFolder(const std::string& path) override {
    CKV_RETURN_IF_ERROR(Ask(Call::kMakeFolder, path));
    return real_->MakeFolder(path);
  }
  absl::Status SyncFolder(const std::string& path) override {
    CKV_RETURN_IF_ERROR(Ask(Call::kSyncFolder, path));
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) override {
    CKV_RETURN_IF_ERROR(Ask(Call::kList, path));
    return real_->List(path);
  }

 private:
  class FaultFile final : public File {
   public:
    FaultFile(FaultFileSystem* files, std::unique_ptr<File> real, std::string path)
        : files_(files), real_(std::move(real)), path_(std::move(path)) {}
    absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
      const absl::Status requested = files_->Ask(Call::kWrite, path_);
      const absl::Status written =
          real_->WriteAt(offset, requested.ok() ? bytes : bytes.first(bytes.size() / 2));
      return requested.ok() ? written : requested;
    }
    absl::Status Resize(uint64_t bytes) override {
      CKV_RETURN_IF_ERROR(files_->Ask(Call::kResize, path_));
      return real_->Resize(bytes);
    }
    void StartWriteback(uint64_t offset, uint64_t bytes) override {
      real_->StartWriteback(offset, bytes);
    }
    absl::Status Sync() override {
      CKV_RETURN_IF_ERROR(files_->Ask(Call::kSync, path_));
      return absl::OkStatus();
    }
    absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
      CKV_RETURN_IF_ERROR(files_->Ask(Call::kRead, path_));
      return real_->ReadAt(offset, bytes);
    }
    absl::StatusOr<uint64_t> Size() override { return real_->Size(); }

   private:
    FaultFileSystem* const files_;
    const std::unique_ptr<File> real_;
    const std::string path_;
  };

  absl::Status Ask(Call call, const std::string& path) ABSL_LOCKS_EXCLUDED(mu_) {
    Hook hook;
    {
      absl::MutexLock lock(&mu_);
      hook = hook_;
    }
    return hook ? hook(call, path) : absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<File>> Wrap(absl::StatusOr<std::unique_ptr<File>> file,
                                             const std::string& path) {
    if (!file.ok()) return file;
    return std::make_unique<FaultFile>(this, *std::move(file), path);
  }

  FileSystem* const real_ = FileSystem::Real();
  absl::Mutex mu_;
  Hook hook_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv
