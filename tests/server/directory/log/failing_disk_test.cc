// Goal: whichever call of the disk fails, and how often, what a folder took is there again, and
// what it refused is not. Method: the real file system, whose calls fail by number or at random.

#include <random>

#include "gtest/gtest.h"
#include "server/directory/log/log_folder.h"
#include "tests/server/directory/log/log_file.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using Call = FaultFileSystem::Call;

struct FailingDiskTest : testing::Test {
  FailingDiskTest() { NewPath(); }
  void NewPath() {
    static int count = 0;
    path = test::TempPath(absl::StrCat("failing", count++));
  }
  absl::StatusOr<std::unique_ptr<LogFolder>> Open() {
    records.clear();
    return LogFolder::Open(&files, path, [this](const DirectoryChange& change) {
      if (change.kind != ChangeKind::kSnapshotBegin) records.push_back(test::RecordOf(change));
      return absl::OkStatus();
    });
  }

  FaultFileSystem files;
  std::string path;
  std::vector<std::string> records;
};

// One call of the disk fails, whichever it is, and all others succeed. What is tried afterwards may
// be taken or refused, but all that was taken is there, in its order, and nothing that was refused.
TEST_F(FailingDiskTest, AnyCallThatFailsOnceLosesNothing) {
  const std::vector<std::string> all = test::SomeRecords(8);
  for (const bool full : {true, false}) {
    const absl::Status failure =
        full ? absl::ResourceExhaustedError("ENOSPC") : absl::UnavailableError("EIO");
    bool is_reached = true;
    for (int fails_at = 1; is_reached; ++fails_at) {
      NewPath();
      auto folder = *Open();
      int calls = 0;
      files.set_hook([&](Call, const std::string&) {
        return ++calls == fails_at ? failure : absl::OkStatus();
      });
      std::vector<std::string> taken;
      DirectoryImage image;
      int failed = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        if (folder->Append(all[i]).ok()) {
          taken.push_back(all[i]);
        } else {
          ++failed;
        }
        if (i % 5 != 4) continue;
        // The snapshot records how many changes were taken, as a gap of as many versions.
        if (!folder->BeginLog().ok()) continue;
        image.gaps = {{1, taken.size()}};
        (void)folder->WriteSnapshot(folder->log_number(), image);
      }
      is_reached = calls >= fails_at;
      ASSERT_LE(failed, 1) << "one failure refuses one change: " << fails_at;
      files.set_hook({});
      folder.reset();
      uint64_t in_snapshot = 0;
      records.clear();
      const auto again = LogFolder::Open(&files, path, [&](const DirectoryChange& change) {
        if (change.kind == ChangeKind::kGap) in_snapshot = change.gap.until;
        if (change.kind == ChangeKind::kPublish || change.kind == ChangeKind::kDrop ||
            change.kind == ChangeKind::kEpochs) {
          records.push_back(test::RecordOf(change));
        }
        return absl::OkStatus();
      });
      ASSERT_TRUE(again.ok()) << fails_at << ": " << again.status();
      ASSERT_LE(in_snapshot, taken.size());
      ASSERT_EQ(records, std::vector(taken.begin() + static_cast<long>(in_snapshot), taken.end()))
          << fails_at;
    }
  }
}

// The disk fails again and again, at random, and a process ends at random, too.
TEST_F(FailingDiskTest, AFailingDiskLosesNothingThatWasTaken) {
  std::mt19937 random(5);
  const std::vector<std::string> all = test::SomeRecords(12);
  std::vector<std::string> taken;
  for (int incarnation = 0; incarnation < 60; ++incarnation) {
    files.set_hook([&](Call call, const std::string&) {
      if (call == Call::kRead || call == Call::kList || random() % 5 != 0) return absl::OkStatus();
      return random() % 2 == 0 ? absl::ResourceExhaustedError("ENOSPC")
                               : absl::UnavailableError("EIO");
    });
    auto folder = Open();
    if (!folder.ok()) {
      ASSERT_FALSE(absl::IsDataLoss(folder.status())) << incarnation << ": " << folder.status();
      continue;
    }
    // The last refused change may be there: its caller has to check.
    ASSERT_GE(records.size(), taken.size()) << incarnation;
    ASSERT_LE(records.size(), taken.size() + 1);
    ASSERT_EQ(std::vector(records.begin(), records.begin() + static_cast<long>(taken.size())),
              taken);
    taken = records;
    for (int i = 0; i < 6; ++i) {
      const std::string& record = all[random() % all.size()];
      if ((*folder)->Append(record).ok()) taken.push_back(record);
      if (i == 3) (void)(*folder)->BeginLog();
    }
  }
  files.set_hook({});
  ASSERT_TRUE(Open().ok());
}

}  // namespace
}  // namespace ckv
