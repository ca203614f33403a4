#include "tests/sim/sim_disk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::sim {
namespace {

constexpr uint64_t kSectorBytes = 512;

}  // namespace

class SimDisk::OpenFile final : public File {
 public:
  OpenFile(SimDisk* disk, std::string path, std::shared_ptr<Inode> inode)
      : disk_(*disk), path_(std::move(path)), inode_(std::move(inode)) {}

  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
    disk_.Spend(5 * kUs, 40 * kUs, Does::kChanges);
    CKV_RETURN_IF_ERROR(disk_.CheckDevice(path_));
    CKV_RETURN_IF_ERROR(disk_.CheckSpace(path_));
    Change({offset, {bytes.begin(), bytes.end()}, false});
    return absl::OkStatus();
  }
  absl::Status Resize(uint64_t bytes) override {
    disk_.Spend(5 * kUs, 20 * kUs, Does::kChanges);
    if (bytes > inode_->now.size()) CKV_RETURN_IF_ERROR(disk_.CheckSpace(path_));
    Change({bytes, {}, true});
    return absl::OkStatus();
  }
  void StartWriteback(uint64_t, uint64_t) override {}
  absl::Status Sync() override {
    // Writes that come during the sync are not part of it.
    const size_t count = inode_->pending.size();
    disk_.Spend(200 * kUs, 2 * kMs, Does::kSyncs);
    auto& pending = inode_->pending;
    const auto end = pending.begin() + static_cast<ptrdiff_t>(std::min(count, pending.size()));
    if (absl::Status bad = disk_.CheckDevice(path_); !bad.ok()) {
      std::move(pending.begin(), end, std::back_inserter(inode_->doomed));
      pending.erase(pending.begin(), end);
      return bad;
    }
    for (auto one = pending.begin(); one != end; ++one) Apply(*one, inode_->durable);
    pending.erase(pending.begin(), end);
    return absl::OkStatus();
  }
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    disk_.Spend(10 * kUs, 100 * kUs, Does::kReads);
    CKV_RETURN_IF_ERROR(disk_.CheckDevice(path_));
    if (offset > inode_->now.size() || bytes.size() > inode_->now.size() - offset) {
      return absl::DataLossError(absl::StrFormat("%s ends before", path_));
    }
    if (!bytes.empty()) std::memcpy(bytes.data(), inode_->now.data() + offset, bytes.size());
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Size() override { return inode_->now.size(); }

 private:
  void Change(Write write) {
    Apply(write, inode_->now);
    inode_->pending.push_back(std::move(write));
  }
  SimDisk& disk_;
  const std::string path_;
  const std::shared_ptr<Inode> inode_;
};

class SimDisk::HeldLock final : public FileLock {
 public:
  HeldLock(SimDisk* disk, std::string path) : disk_(*disk), path_(std::move(path)) {}
  ~HeldLock() override { disk_.locks_.erase(path_); }

 private:
  SimDisk& disk_;
  const std::string path_;
};

std::string SimDisk::FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == 0 || slash == path.npos ? "/" : path.substr(0, slash);
}

void SimDisk::Apply(const Write& write, std::vector<std::byte>& bytes) {
  if (write.is_resize) return bytes.resize(write.offset);
  const uint64_t end = write.offset + write.bytes.size();
  if (bytes.size() < end) bytes.resize(end);
  std::copy(write.bytes.begin(), write.bytes.end(),
            bytes.begin() + static_cast<ptrdiff_t>(write.offset));
}

void SimDisk::ApplyName(const NameChange& change, Names& names, std::set<std::string>& folders) {
  if (change.file == nullptr) {
    folders.insert(change.to);
    return;
  }
  if (!change.from.empty()) names.erase(change.from);
  if (!change.to.empty()) names[change.to] = change.file;
}

void SimDisk::Spend(int64_t at_least, int64_t at_most, Does does) {
  int64_t time =
      at_least + static_cast<int64_t>(random_() % static_cast<uint64_t>(at_most - at_least));
  if (Sim().now() < slow_until_) time *= 100;
  if (does >= trip_does_ && trip_in_ > 0 && --trip_in_ == 0)
    Sim().At(Sim().now() + time / 2, std::move(trip_));
  Sim().SleepUntil(Sim().now() + time);
}

absl::Status SimDisk::CheckDevice(const std::string& path) {
  if (Sim().now() >= fails_until_) return absl::OkStatus();
  counts_.Count(Fault::kDiskError);
  return absl::UnavailableError(absl::StrFormat("%s: the device fails", path));
}

absl::Status SimDisk::CheckDescriptors(const std::string& path) {
  if (Sim().now() >= no_descriptors_until_) return absl::OkStatus();
  counts_.Count(Fault::kNoDescriptors);
  return absl::ResourceExhaustedError(absl::StrFormat("%s: too many open files", path));
}

absl::Status SimDisk::CheckSpace(const std::string& path) {
  if (Sim().now() >= full_until_) return absl::OkStatus();
  counts_.Count(Fault::kDiskFull);
  return absl::ResourceExhaustedError(absl::StrFormat("%s: no space", path));
}

absl::StatusOr<std::unique_ptr<File>> SimDisk::Create(const std::string& path) {
  Spend(10 * kUs, 50 * kUs, Does::kChanges);
  CKV_RETURN_IF_ERROR(CheckDescriptors(path));
  CKV_RETURN_IF_ERROR(CheckSpace(path));
  if (names_.contains(path)) return absl::AlreadyExistsError(path);
  if (!folders_.contains(FolderOf(path))) return absl::NotFoundError(path);
  auto inode = std::make_shared<Inode>();
  names_[path] = inode;
  changes_.push_back({"", path, inode});
  return std::make_unique<OpenFile>(this, path, std::move(inode));
}

absl::StatusOr<std::unique_ptr<File>> SimDisk::Open(const std::string& path) {
  Spend(10 * kUs, 50 * kUs, Does::kReads);
  CKV_RETURN_IF_ERROR(CheckDescriptors(path));
  const auto found = names_.find(path);
  if (found == names_.end()) return absl::NotFoundError(path);
  return std::make_unique<OpenFile>(this, path, found->second);
}

absl::StatusOr<std::unique_ptr<File>> SimDisk::OpenForReading(const std::string& path) {
  return Open(path);
}
absl::StatusOr<std::unique_ptr<File>> SimDisk::OpenForWriting(const std::string& path) {
  return Open(path);
}

absl::Status SimDisk::Rename(const std::string& from, const std::string& to) {
  Spend(10 * kUs, 50 * kUs, Does::kChanges);
  const auto found = names_.find(from);
  if (found == names_.end()) return absl::NotFoundError(from);
  if (!folders_.contains(FolderOf(to))) return absl::NotFoundError(to);
  changes_.push_back({from, to, found->second});
  names_[to] = found->second;
  names_.erase(from);
  return absl::OkStatus();
}

absl::Status SimDisk::Remove(const std::string& path) {
  Spend(10 * kUs, 50 * kUs, Does::kChanges);
  const auto found = names_.find(path);
  if (found == names_.end()) return absl::NotFoundError(path);
  changes_.push_back({path, "", found->second});
  names_.erase(found);
  return absl::OkStatus();
}

absl::Status SimDisk::MakeFolder(const std::string& path) {
  Spend(10 * kUs, 50 * kUs, Does::kChanges);
  if (folders_.contains(path)) return absl::OkStatus();
  if (!folders_.contains(FolderOf(path))) return absl::NotFoundError(path);
  folders_.insert(path);
  changes_.push_back({"", path, nullptr});
  return absl::OkStatus();
}

absl::Status SimDisk::SyncFolder(const std::string& path) {
  Spend(200 * kUs, 2 * kMs, Does::kSyncs);
  CKV_RETURN_IF_ERROR(CheckDevice(path));
  std::erase_if(changes_, [&](const NameChange& change) {
    if (FolderOf(change.to.empty() ? change.from : change.to) != path) return false;
    ApplyName(change, durable_names_, durable_folders_);
    return true;
  });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FolderEntry>> SimDisk::List(const std::string& path) {
  Spend(10 * kUs, 100 * kUs, Does::kReads);
  CKV_RETURN_IF_ERROR(CheckDevice(path));
  if (!folders_.contains(path)) return absl::NotFoundError(path);
  std::vector<FolderEntry> entries;
  for (const std::string& folder : folders_) {
    if (folder != "/" && FolderOf(folder) == path) {
      entries.push_back({folder.substr(path.size() + (path == "/" ? 0 : 1)), true});
    }
  }
  for (const auto& [name, inode] : names_) {
    if (FolderOf(name) == path) {
      entries.push_back({name.substr(path.size() + (path == "/" ? 0 : 1)), false});
    }
  }
  std::shuffle(entries.begin(), entries.end(), random_);
  return entries;
}

absl::StatusOr<std::unique_ptr<FileLock>> SimDisk::Lock(const std::string& path,
                                                        std::string_view text) {
  Spend(10 * kUs, 50 * kUs, Does::kChanges);
  if (locks_.contains(path)) return absl::FailedPreconditionError(path);
  std::shared_ptr<Inode>& inode = names_[path];
  if (inode == nullptr) {
    inode = std::make_shared<Inode>();
    changes_.push_back({"", path, inode});
  }
  inode->now.resize(text.size());
  std::memcpy(inode->now.data(), text.data(), text.size());
  locks_[path] = Sim().current_process();
  return std::make_unique<HeldLock>(this, path);
}

bool SimDisk::FlipBit(std::string_view name, uint64_t salt) {
  for (const auto& [path, inode] : names_) {
    if (path.size() <= name.size() || !path.ends_with(name)) continue;
    // A file that is being written now may be replaced by its writer.
    if (inode->now.empty() || !inode->pending.empty()) continue;
    const size_t at = salt % inode->now.size();
    const auto bit = static_cast<std::byte>(1u << (salt >> 32 & 7));
    inode->now[at] ^= bit;
    if (at < inode->durable.size()) inode->durable[at] ^= bit;
    return true;
  }
  return false;
}

void SimDisk::Wipe() {
  names_.clear();
  durable_names_.clear();
  folders_ = durable_folders_ = {"/"};
  changes_.clear();
  locks_.clear();
}

void SimDisk::EndProcess(const Process* process) {
  std::erase_if(locks_, [&](const auto& lock) { return lock.second == process; });
}

bool SimDisk::IsFolderDurable(const std::string& path) const {
  for (std::string at = path; at != "/"; at = FolderOf(at)) {
    if (!durable_folders_.contains(at)) return false;
  }
  return true;
}

void SimDisk::LosePower() {
  // The device has some of the changes of names, in their order.
  const size_t kept = changes_.empty() ? 0 : random_() % (changes_.size() + 1);
  if (kept < changes_.size()) counts_.Count(Fault::kLostWrite, changes_.size() - kept);
  for (size_t i = 0; i < kept; ++i) ApplyName(changes_[i], durable_names_, durable_folders_);
  changes_.clear();
  std::erase_if(durable_names_,
                [this](const auto& name) { return !IsFolderDurable(FolderOf(name.first)); });
  std::erase_if(durable_folders_,
                [this](const std::string& folder) { return !IsFolderDurable(folder); });
  std::set<Inode*> inodes;
  for (const auto& [name, inode] : durable_names_) inodes.insert(inode.get());
  // In the order of names, not of addresses: the generator must give each the same fate again.
  for (const auto& [name, inode] : durable_names_) {
    if (inodes.erase(inode.get()) == 0) continue;
    for (Write& write : inode->pending) {
      const uint64_t fate = random_() % 3;
      if (fate == 0) {
        counts_.Count(Fault::kLostWrite);
        continue;
      }
      if (fate == 1 && write.bytes.size() > kSectorBytes) {
        counts_.Count(Fault::kTornWrite);
        write.bytes.resize(random_() % (write.bytes.size() / kSectorBytes + 1) * kSectorBytes);
      }
      Apply(write, inode->durable);
    }
    inode->pending.clear();
    inode->doomed.clear();
    inode->now = inode->durable;
  }
  names_ = durable_names_;
  folders_ = durable_folders_;
  locks_.clear();
}

}  // namespace ckv::sim
