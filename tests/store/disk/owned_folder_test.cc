// Goal: one process uses a folder at a time, and only a folder of the kind and format that it
// knows; every refusal says why and what to do.

#include "store/disk/owned_folder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr FolderKind kKind = {.name = "toy folder", .owners = "toys", .version = 3};

struct OwnedFolderTest : testing::Test {
  OwnedFolderTest() {
    static int count = 0;
    path = test::TempPath(absl::StrCat("owned", count++));
  }
  absl::StatusOr<OwnedFolder> Open() { return OwnedFolder::Open(*FileSystem::Real(), path, kKind); }
  std::string Why() { return Open().status().ToString(); }
  void WriteFormat(std::string_view text) { std::ofstream(path + "/FORMAT") << text; }

  std::string path;
};

TEST_F(OwnedFolderTest, TheOwnerIsNamedUntilItEnds) {
  int reported[2], end[2];
  ASSERT_EQ(pipe(reported) | pipe(end), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    const auto folder = Open();
    char byte = folder.ok() ? 'y' : 'n';
    close(end[1]);
    if (write(reported[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 0) _exit(1);
    _exit(0);
  }
  close(end[0]);
  char byte = 'n';
  ASSERT_EQ(read(reported[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_THAT(Why(), AllOf(HasSubstr("FAILED_PRECONDITION"),
                           HasSubstr(absl::StrCat("process ", owner, " uses it")),
                           HasSubstr("two toys need two folders")));
  ASSERT_EQ(kill(owner, SIGKILL), 0);
  ASSERT_EQ(waitpid(owner, nullptr, 0), owner);
  close(end[1]);
  EXPECT_TRUE(Open().ok()) << "the lock goes with the process";
}

TEST_F(OwnedFolderTest, OnlyItsOwnKindAndFormat) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(Open().ok()) << "it is let go, and found again";
  WriteFormat("ckv toy folder 4\n");
  EXPECT_THAT(Why(), AllOf(HasSubstr("its format is 4, this build reads up to 3"),
                           HasSubstr("upgrade this one")));
  for (const char* text : {"ckv toy folder 2\n", "ckv toy folder 3", "ckv other folder 3\n", ""}) {
    WriteFormat(text);
    EXPECT_THAT(Why(), HasSubstr("its FORMAT is not that of a toy folder")) << text;
  }
}

TEST_F(OwnedFolderTest, ItsOwnNameIsDurable) {
  std::vector<std::string> synced;
  FaultFileSystem files;
  files.set_hook([&](FaultFileSystem::Call call, const std::string& folder) {
    if (call == FaultFileSystem::Call::kSyncFolder) synced.push_back(folder);
    return absl::OkStatus();
  });
  const std::string parent = std::filesystem::path(path).parent_path();
  ASSERT_TRUE(OwnedFolder::Open(files, path + "/", kKind).ok());
  EXPECT_THAT(synced, testing::Contains(parent));
}

TEST_F(OwnedFolderTest, AFolderThatIsGoneIsNoticed) {
  const auto folder = Open();
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(folder->CheckThere().ok());
  std::filesystem::rename(path, path + ".away");
  EXPECT_THAT(folder->CheckThere().ToString(), HasSubstr("was removed or moved away"));
  {
    const auto another = Open();
    ASSERT_TRUE(another.ok()) << another.status();
    EXPECT_THAT(folder->CheckThere().ToString(), HasSubstr("was replaced"));
    EXPECT_TRUE(another->CheckThere().ok());
  }
  std::filesystem::remove_all(path);
  std::filesystem::rename(path + ".away", path);
  EXPECT_TRUE(folder->CheckThere().ok()) << "it is back";
}

TEST_F(OwnedFolderTest, RefusesTheFolderOfAnotherProgram) {
  std::filesystem::create_directory(path);
  std::ofstream(path + "/thesis.txt") << "not mine\n";
  EXPECT_THAT(Why(), HasSubstr("\"thesis.txt\": name an empty folder"));
  std::filesystem::remove(path + "/thesis.txt");
  std::ofstream(path + "/FORMAT.new") << "ckv t";  // of a process that died here
  EXPECT_TRUE(Open().ok());
  path += "/missing/folder";
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace ckv
