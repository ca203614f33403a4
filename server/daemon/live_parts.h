// The view of a daemon for a service manager: the parts that the watchdog checks, and a status
// line. Also counts the calls to the store's files, which shows that a start makes progress.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/daemon/service_manager.h"
#include "server/directory/registration.h"
#include "server/holder/holder.h"
#include "server/services/requester_service.h"
#include "store/disk/file_system.h"

namespace ckv {

// Returns the parts that make no progress only if the daemon hangs: a holder's dispatcher, a
// requester's stream loop, and the server. A pointer is null if the daemon lacks that role.
// `server` is where this process reaches its own server.
std::vector<LivePart> LivePartsOf(const Holder* holder, RequesterServiceImpl* requester,
                                  const std::string& server);

// Returns a daemon's state, in one line for people.
std::string DescribeDaemon(const std::vector<std::unique_ptr<Registration>>& registrations,
                           bool ready, bool serving, const std::string& address);

// The real file system, with a count of its calls, which shows the progress of a store's start.
class CountedFiles final : public FileSystem {
 public:
  uint64_t call_count() const { return call_count_.load(std::memory_order_relaxed); }

  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    return Real().Create(path);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForReading(const std::string& path) override {
    return Real().OpenForReading(path);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForWriting(const std::string& path) override {
    return Real().OpenForWriting(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Real().Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return Real().Remove(path); }
  absl::Status MakeFolder(const std::string& path) override { return Real().MakeFolder(path); }
  absl::Status SyncFolder(const std::string& path) override { return Real().SyncFolder(path); }
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) override {
    return Real().List(path);
  }

 private:
  FileSystem& Real() {
    call_count_.fetch_add(1, std::memory_order_relaxed);
    return *FileSystem::Real();
  }
  std::atomic<uint64_t> call_count_{0};
};

}  // namespace ckv
