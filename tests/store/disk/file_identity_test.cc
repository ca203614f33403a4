// Goal: an open file is known to have lost its name, whichever way it lost it, and never else.

#include "store/disk/file_identity.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct FileIdentityTest : testing::Test {
  FileIdentityTest() {
    static int count = 0;
    folder = test::TempPath("identity" + std::to_string(count++));
    fs::create_directory(folder);
    path = folder + "/file";
    fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    file = IdentityOf(fd);
  }
  ~FileIdentityTest() override { close(fd); }
  std::string Why() const { return CheckNamed(path, file).ToString(); }

  std::string folder, path;
  int fd = -1;
  FileIdentity file;
};

TEST_F(FileIdentityTest, AFileThatGrowsIsTheSame) {
  ASSERT_GE(fd, 0);
  EXPECT_EQ(Why(), "OK");
  std::ofstream(path) << "more";
  EXPECT_EQ(Why(), "OK");
  EXPECT_EQ(IdentityAt(path), file);
}

TEST_F(FileIdentityTest, ARemovedFileIsGone) {
  fs::remove(path);
  EXPECT_THAT(Why(), HasSubstr(path + " was removed or moved away"));
}

TEST_F(FileIdentityTest, ARemovedFolderTakesItsFilesAlong) {
  fs::remove_all(folder);
  EXPECT_THAT(Why(), HasSubstr("removed"));
  std::ofstream(folder) << "a file where the folder was";
  EXPECT_THAT(Why(), HasSubstr("removed"));
}

TEST_F(FileIdentityTest, ACopyIsAnotherFile) {
  fs::copy_file(path, path + ".copy");
  fs::rename(path + ".copy", path);
  EXPECT_THAT(Why(), HasSubstr(path + " was replaced by another file"));
}

TEST_F(FileIdentityTest, AFileThatReturnsIsTheSame) {
  fs::rename(folder, folder + ".away");
  EXPECT_THAT(Why(), HasSubstr("moved away"));
  fs::rename(folder + ".away", folder);
  EXPECT_EQ(Why(), "OK");
}

TEST_F(FileIdentityTest, ReportsNothingWithoutAnIdentity) {
  EXPECT_EQ(IdentityOf(-1), FileIdentity());
  EXPECT_EQ(IdentityAt(path + ".none"), FileIdentity());
  EXPECT_TRUE(CheckNamed(path + ".none", FileIdentity()).ok());
}

}  // namespace
}  // namespace ckv
