// Goal: what a folder has shown survives a power loss, even if a sync failed before. Method: a file
// system that keeps, for each file, a copy of what is on the device. A failed sync discards what it
// could not write, as Linux does, while readers still see it.

#include <map>
#include <random>

#include "gtest/gtest.h"
#include "server/directory/log/log_folder.h"
#include "tests/server/directory/log/log_file.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

constexpr uint64_t kPageBytes = 4096;

// Used by one thread. Names are taken to be on the device at once.
class CachedFiles final : public FileSystem {
 public:
  // Returns whether the next sync of a file fails.
  using Fails = std::function<bool()>;
  void set_sync_fails(Fails fails) { fails_ = std::move(fails); }
  // A power loss takes all that is not on the device. Pages that were never written there are as
  // they were.
  void LosePower() {
    for (const auto& [path, disk] : disks_) {
      if (!std::filesystem::exists(path)) continue;
      std::filesystem::remove(path);
      test::WriteBytes(path, disk.bytes);
    }
  }

  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    disks_[path] = {};
    return Wrap(real_.Create(path), path);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForReading(const std::string& path) override {
    return Wrap(real_.OpenForReading(path), path);
  }
  absl::StatusOr<std::unique_ptr<File>> OpenForWriting(const std::string& path) override {
    return Wrap(real_.OpenForWriting(path), path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    disks_[to] = std::exchange(disks_[from], {});
    disks_.erase(from);
    for (auto& [file, path] : open_)
      if (path == from) path = to;
    return real_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    disks_.erase(path);
    return real_.Remove(path);
  }
  absl::Status MakeFolder(const std::string& path) override { return real_.MakeFolder(path); }
  absl::Status SyncFolder(const std::string&) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<FolderEntry>> List(const std::string& path) override {
    return real_.List(path);
  }

 private:
  struct Disk {
    std::string bytes;
    std::set<uint64_t> dirty;  // pages that were written since the last sync
  };
  class CachedFile final : public File {
   public:
    CachedFile(CachedFiles* files, std::unique_ptr<File> real)
        : files_(*files), real_(std::move(real)) {}
    ~CachedFile() override { files_.open_.erase(this); }
    absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
      for (uint64_t page = offset / kPageBytes; page * kPageBytes < offset + bytes.size(); ++page)
        disk().dirty.insert(page);
      return real_->WriteAt(offset, bytes);
    }
    absl::Status Resize(uint64_t bytes) override {
      disk().dirty.insert(bytes / kPageBytes);
      return real_->Resize(bytes);
    }
    void StartWriteback(uint64_t, uint64_t) override {}
    absl::Status Sync() override {
      const std::set<uint64_t> dirty = std::exchange(disk().dirty, {});
      if (files_.fails_ && files_.fails_()) return absl::UnavailableError("EIO");
      const std::string now = test::ReadBytes(files_.open_[this]);
      std::string& bytes = disk().bytes;
      bytes.resize(now.size());
      for (const uint64_t page : dirty) {
        const uint64_t at = page * kPageBytes;
        if (at < now.size()) bytes.replace(at, kPageBytes, now.substr(at, kPageBytes));
      }
      bytes.resize(now.size());
      return absl::OkStatus();
    }
    absl::Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
      return real_->ReadAt(offset, bytes);
    }
    absl::StatusOr<uint64_t> Size() override { return real_->Size(); }

   private:
    Disk& disk() { return files_.disks_[files_.open_[this]]; }
    CachedFiles& files_;
    const std::unique_ptr<File> real_;
  };
  absl::StatusOr<std::unique_ptr<File>> Wrap(absl::StatusOr<std::unique_ptr<File>> file,
                                             const std::string& path) {
    if (!file.ok()) return file;
    auto wrapped = std::make_unique<CachedFile>(this, *std::move(file));
    open_[wrapped.get()] = path;
    return wrapped;
  }

  FileSystem& real_ = *FileSystem::Real();
  Fails fails_;
  std::map<std::string, Disk> disks_;
  std::map<const File*, std::string> open_;
};

struct PowerLossTest : testing::Test {
  PowerLossTest() {
    static int count = 0;
    path = test::TempPath(absl::StrCat("power", count++));
  }
  absl::StatusOr<std::unique_ptr<LogFolder>> Open() {
    records.clear();
    return LogFolder::Open(&files, path, [this](const DirectoryChange& change) {
      if (change.kind != ChangeKind::kSnapshotBegin) records.push_back(test::RecordOf(change));
      return absl::OkStatus();
    });
  }
  static std::string Record(uint32_t seed) {
    return test::RecordOf(test::PublishOf(test::RandomCorpus("c", seed + 1, 20 + seed % 90, seed)));
  }

  CachedFiles files;
  std::string path;
  std::vector<std::string> records;
};

// The frame is read back, so it is shown, and must stay. It was in memory only.
TEST_F(PowerLossTest, AFrameWhoseSyncFailedStaysOnceItIsShown) {
  const std::vector<std::string> some = {Record(1), Record(2), Record(3)};
  {
    auto folder = *Open();
    ASSERT_TRUE(folder->Append(some[0]).ok());
    // The process dies in the failed call, so it takes nothing back.
    std::string frame_bytes;
    files.set_sync_fails([&] {
      frame_bytes = test::ReadBytes(path + "/log.1");
      return true;
    });
    EXPECT_FALSE(folder->Append(some[1]).ok());
    folder.reset();
    test::WriteBytes(path + "/log.1", frame_bytes);
  }
  files.set_sync_fails({});
  {
    auto folder = Open();
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_EQ(records, (std::vector{some[0], some[1]})) << "nobody knows that its sync failed";
    ASSERT_TRUE((*folder)->Append(some[2]).ok());
  }
  files.LosePower();
  const auto folder = Open();
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(records, some);
}

TEST_F(PowerLossTest, AcceptedChangesSurviveAnyPowerLoss) {
  std::mt19937 random(6);
  std::vector<std::string> taken;
  for (uint32_t incarnation = 0; incarnation < 40; ++incarnation) {
    files.set_sync_fails({});
    auto folder = Open();
    ASSERT_TRUE(folder.ok()) << incarnation << ": " << folder.status();
    ASSERT_GE(records.size(), taken.size()) << incarnation;
    ASSERT_LE(records.size(), taken.size() + 1);
    ASSERT_TRUE(std::equal(taken.begin(), taken.end(), records.begin()));
    taken = records;
    files.set_sync_fails([&] { return random() % 4 == 0; });
    for (int i = 0; i < 5; ++i) {
      const std::string record = Record(static_cast<uint32_t>(random() % 1000));
      if ((*folder)->Append(record).ok()) taken.push_back(record);
    }
    folder->reset();
    if (random() % 2 == 0) files.LosePower();
  }
}

}  // namespace
}  // namespace ckv
