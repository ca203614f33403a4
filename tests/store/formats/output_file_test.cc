// Goal: a result replaces a file, whole and with its mode, and nothing that is no file.
// Method: a path of each kind that a shell can name. The device is a node of the test's own, so
// that a writer that renames over it takes nothing from the machine.

#include "store/formats/output_file.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/formats/safetensors.h"
#include "tests/store/formats/test_files.h"

namespace ckv {
namespace {

using absl::StatusCode;
using std::filesystem::perms;
using testing::HasSubstr;

std::string TextOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
  return info.st_mode;
}

TEST(OutputFile, AFileIsReplacedAndKeepsItsMode) {
  const TemporaryDirectory directory;
  const std::string path = directory / "out";
  EXPECT_TRUE(OutputFile::Check(path).ok());
  EXPECT_EQ(directory.FileCount(), 0u);
  ASSERT_TRUE(WriteOutput(path, "first and long").ok());
  std::filesystem::permissions(path, perms::owner_read | perms::owner_write | perms::group_read);
  EXPECT_TRUE(OutputFile::Check(path).ok());
  ASSERT_TRUE(WriteOutput(path, "second").ok());
  EXPECT_EQ(TextOf(path), "second");
  EXPECT_EQ(ModeOf(path) & 07777, 0640u);
  {
    auto cut_off = OutputFile::Create(path);
    ASSERT_TRUE(cut_off.ok()) << cut_off.status();
    ASSERT_TRUE(cut_off->Write(0, std::as_bytes(std::span("third", 5))).ok());
  }
  EXPECT_EQ(TextOf(path), "second");
  EXPECT_EQ(directory.FileCount(), 1u);
}

TEST(OutputFile, ALinkStaysAndItsFileIsReplacedOrMade) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "elsewhere");
  std::filesystem::create_symlink("elsewhere/file", directory / "link");
  std::filesystem::create_symlink("link", directory / "link-to-link");
  for (const char* text : {"made", "replaced"}) {
    EXPECT_TRUE(OutputFile::Check(directory / "link-to-link").ok());
    ASSERT_TRUE(WriteOutput(directory / "link-to-link", text).ok());
    EXPECT_TRUE(S_ISLNK(ModeOf(directory / "link")));
    EXPECT_TRUE(S_ISLNK(ModeOf(directory / "link-to-link")));
    EXPECT_EQ(TextOf(directory / "elsewhere/file"), text);
  }
  std::filesystem::create_symlink("loop", directory / "loop");
  EXPECT_EQ(WriteOutput(directory / "loop", "x").code(), StatusCode::kUnavailable);
  std::filesystem::create_symlink("absent/file", directory / "nowhere");
  EXPECT_EQ(OutputFile::Check(directory / "nowhere").code(), StatusCode::kUnavailable);
  EXPECT_EQ(WriteOutput(directory / "nowhere", "x").code(), StatusCode::kUnavailable);
}

// The reader is there before the writer, and what is written fits in the pipe, so neither waits.
std::string ThroughPipe(const std::string& path, const std::function<absl::Status()>& write) {
  EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  EXPECT_GE(reader, 0);
  EXPECT_TRUE(OutputFile::IsStream(path));
  EXPECT_TRUE(OutputFile::Check(path).ok());
  const absl::Status status = write();
  EXPECT_TRUE(status.ok()) << status;
  std::string text(4096, '\0');
  const ssize_t size = read(reader, text.data(), text.size());
  close(reader);
  EXPECT_TRUE(S_ISFIFO(ModeOf(path)));
  text.resize(size < 0 ? 0 : static_cast<size_t>(size));
  return text;
}

TEST(OutputFile, APipeGetsTheBytesInOrderWhenTheyAreWhole) {
  const TemporaryDirectory directory;
  const std::string got = ThroughPipe(directory / "pipe", [&] {
    auto file = OutputFile::Create(directory / "pipe");
    if (!file.ok()) return file.status();
    EXPECT_TRUE(file->Write(4, std::as_bytes(std::span("5678", 4))).ok());
    EXPECT_TRUE(file->Write(0, std::as_bytes(std::span("xx34", 4))).ok());
    EXPECT_TRUE(file->Write(0, std::as_bytes(std::span("12", 2))).ok());
    return (*std::move(file)).Finish();
  });
  EXPECT_EQ(got, "12345678");
  EXPECT_EQ(directory.FileCount(), 1u);
}

TEST(OutputFile, WritesTensorsThroughAPipe) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> data(16, std::byte{7});
  const TensorToWrite tensors[] = {{"t", TensorDtype::kF32, {4}, data}};
  const std::string got = ThroughPipe(
      directory / "pipe", [&] { return WriteSafetensors(directory / "pipe", {}, tensors); });
  ASSERT_TRUE(WriteSafetensors(directory / "file", {}, tensors).ok());
  EXPECT_EQ(got, TextOf(directory / "file"));
}

TEST(OutputFile, ADeviceIsWrittenInto) {
  const TemporaryDirectory directory;
  const std::string path = directory / "null";
  if (mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) {
    GTEST_SKIP() << "no right to make a device; to run it: the same as root";
  }
  if (const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC); fd >= 0) {
    close(fd);
  } else {
    GTEST_SKIP() << "devices do not work in " << (directory / "")
                 << "; to run it: a TMPDIR that is not mounted with nodev";
  }
  EXPECT_TRUE(OutputFile::Check(path).ok());
  const absl::Status status = WriteOutput(path, "gone");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(S_ISCHR(ModeOf(path)));
  EXPECT_EQ(directory.FileCount(), 1u);
}

// The shell writes on into the file that it has open: a rename would take it away.
TEST(OutputFile, AnOpenFileOfTheProcessIsRefused) {
  const TemporaryDirectory directory;
  const std::string path = directory / "out";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  const std::string number = std::to_string(fd);
  std::filesystem::create_symlink("/dev/fd/" + number, directory / "link");
  for (const std::string& name :
       {"/dev/fd/" + number, "/proc/self/fd/" + number, directory / "link"}) {
    for (const absl::Status& status : {OutputFile::Check(name), WriteOutput(name, "x")}) {
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << name;
      EXPECT_THAT(std::string(status.message()), HasSubstr("name the file itself"));
    }
  }
  EXPECT_EQ(TextOf(path), "");
  close(fd);
}

TEST(OutputFile, FoldersAndSocketsAreRefused) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "folder");
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, (directory / "socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  for (const char* name : {"folder", "socket"}) {
    for (const absl::Status& status :
         {OutputFile::Check(directory / name), WriteOutput(directory / name, "x")}) {
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << name;
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("it is a ") + name));
    }
  }
  close(fd);
  EXPECT_EQ(directory.FileCount(), 2u);
}

}  // namespace
}  // namespace ckv
