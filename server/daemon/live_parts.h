// A daemon as a service manager sees it: parts that must move, and a line about how it is. The
// files of its store are counted, to see that a start goes on.

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

// Returns the parts that stand still only if the daemon hangs: a holder's dispatcher, a requester's
// loop of streams, and the server. Null pointers are roles that it does not have. `server` is where
// this process reaches its own server.
std::vector<LivePart> LivePartsOf(const Holder* holder, RequesterServiceImpl* requester,
                                  const std::string& server);

// Returns how a daemon is, in one line for people.
std::string DescribeDaemon(const std::vector<std::unique_ptr<Registration>>& registrations,
                           bool ready, bool serving, const std::string& address);

// The real file system, with a count of its calls: how far the start of a store has come.
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
