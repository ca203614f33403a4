// A disk of a simulated node: files that outlive its processes, and what a loss of power leaves.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "store/disk/file_system.h"
#include "tests/sim/network.h"
#include "tests/sim/scheduler.h"

namespace ckv::sim {

// One disk. Every call of its file system takes virtual time, so threads run and processes die
// between any two. It follows the weakest promises that the store may rely on:
//
//   written bytes   in the system's memory. A process that dies loses none. A loss of power loses
//                   some writes, tears some at a multiple of 512 bytes, and keeps others
//   Sync            what was written before is on the device. After an error those bytes are gone
//                   at the next loss of power, whatever a later Sync returns
//   names           a new, renamed or removed name is on the device after SyncFolder of its folder.
//                   A loss of power keeps the first few of the others, in their order. A file whose
//                   folder has no name on the device is lost with it
class SimDisk final : public FileSystem {
 public:
  SimDisk(uint64_t seed, Network* counts) : random_(seed), counts_(*counts) {}

  // Every file that the process has open is as dead as the process is; its locks are free.
  void EndProcess(const Process* process);
  void LosePower();

  // Flips one bit of the file whose name this is, in whatever folder. Returns whether it did.
  bool FlipBit(std::string_view name, uint64_t salt);
  // Removes everything: another disk.
  void Wipe();

  // Faults, each until the scheduler's time that is given.
  void FillUntil(int64_t time) { full_until_ = time; }
  void FailUntil(int64_t time) { fails_until_ = time; }
  void NoDescriptorsUntil(int64_t time) { no_descriptors_until_ = time; }
  void SlowUntil(int64_t time) { slow_until_ = time; }
  // Kinds of calls. A loss of power during a later one may break more.
  enum class Does : uint8_t { kReads, kChanges, kSyncs };
  // Runs `trip` in the middle of the call of this number, counted from now, among those that do at
  // least `does`. 0: of none.
  void TripAt(uint32_t call, Does does, absl::AnyInvocable<void()> trip) {
    trip_in_ = call;
    trip_does_ = does;
    trip_ = std::move(trip);
  }

  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> OpenForReading(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> OpenForWriting(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path,
                                                 std::string_view text) override;

 private:
  class OpenFile;
  class HeldLock;
  // A write or a change of the length that is not on the device.
  struct Write {
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
    bool is_resize = false;  // to `offset`
  };
  struct Inode {
    std::vector<std::byte> now, durable;
    std::vector<Write> pending;
    std::vector<Write> doomed;  // a Sync of these failed
  };
  using Names = std::map<std::string, std::shared_ptr<Inode>>;
  // A change of names that is not on the device. `to` is empty if `from` was removed.
  struct NameChange {
    std::string from, to;
    std::shared_ptr<Inode> file;  // null: a folder
  };

  static std::string FolderOf(const std::string& path);
  static void Apply(const Write& write, std::vector<std::byte>& bytes);
  void ApplyName(const NameChange& change, Names& names, std::set<std::string>& folders);
  // Whether the folder of this name, and those around it, are on the device.
  bool IsFolderDurable(const std::string& path) const;
  // The time that a call takes.
  void Spend(int64_t at_least, int64_t at_most, Does does);
  absl::Status CheckDevice(const std::string& path);
  absl::Status CheckDescriptors(const std::string& path);
  absl::Status CheckSpace(const std::string& path);
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path);

  std::mt19937_64 random_;
  Network& counts_;
  uint32_t trip_in_ = 0;
  Does trip_does_ = Does::kReads;
  absl::AnyInvocable<void()> trip_;
  int64_t full_until_ = 0, fails_until_ = 0, no_descriptors_until_ = 0, slow_until_ = 0;
  Names names_, durable_names_;
  std::set<std::string> folders_{"/"}, durable_folders_{"/"};
  std::vector<NameChange> changes_;
  std::map<std::string, const Process*> locks_;
};

}  // namespace ckv::sim
