// Goal: a full disk refuses changes with a clear error, reads and leases go on, a restart finds
// exactly what was acknowledged, and changes work again when there is room. Method: a real tmpfs of
// 1 MiB, mounted in a namespace of this process alone.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/directory/durable_directory.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

// Whether a file is being written that is not known by its name yet.
bool IsBeingWritten(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() == ".new") return true;
  }
  return false;
}

TEST(DirectoryFull, AFullDiskRefusesChangesAndNothingElse) {
  const std::string path = test::TempPath("small");
  std::filesystem::create_directory(path);
  if (!test::MountSmallDisk(path))
    GTEST_SKIP() << "no mount for this user: " << strerror(errno)
                 << "; to run it: the same as root";
  // Room that is given back later.
  std::ofstream(path + "/ballast") << std::string(300'000, 'x');
  DirectoryOptions options;
  options.first_epoch = WallClockMilliseconds();
  ChangeLogOptions log;
  log.path = path + "/directory";
  log.log_bytes_min = 200'000;  // snapshots are written, too, until they find no room
  const auto start = [&] {
    auto opened = DurableDirectory::Open(options, log);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  };
  const auto publish = [](DirectoryState& state, uint32_t number) {
    return state
        .Publish(test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(100, 1), number)
                     .Publish(absl::StrCat("c", number), "", {{{"h"}}}),
                 false, 0)
        .status();
  };
  const Member member = {
      .id = {"h"}, .role = MemberRole::kHolder, .control_address = "h:1", .epoch = {}};
  auto directory = start();
  // Full is what refuses three times in a row: a snapshot that is being written takes room too, and
  // gives it back when it finds that there is not enough.
  uint32_t count = 0;
  absl::Status full;
  for (int refused = 0; refused < 3 && count < 1000;) {
    full = publish(directory->state(), count);
    if (full.ok()) ++count;
    refused = full.ok() || IsBeingWritten(log.path) ? 0 : refused + 1;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_NE(full.ToString().find("No space left"), std::string::npos) << full;
  EXPECT_GE(count, 20u);
  for (int again = 0; again < 3; ++again) {
    EXPECT_TRUE(absl::IsResourceExhausted(publish(directory->state(), count)));
    EXPECT_TRUE(directory->state().Get(absl::StrCat("c", count - 1), "").ok());
    EXPECT_TRUE(directory->state().Register(member, Duration(0)).ok());
  }
  directory.reset();
  directory = start();
  EXPECT_EQ(directory->state().counts().corpus_count, count);
  EXPECT_TRUE(directory->state().Register(member, Duration(0)).ok()) << "on the full disk";
  std::filesystem::remove(path + "/ballast");
  EXPECT_TRUE(publish(directory->state(), count).ok());
  directory.reset();
  EXPECT_EQ(start()->state().counts().corpus_count, count + 1);
}

}  // namespace
}  // namespace ckv
