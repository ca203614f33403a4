// Goal: what was written is read again, and a file that is cut off or changed anywhere gives no
// message at all.

#include "client/tools/ctl/fleet/backup_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace ckv::ctl {
namespace {

std::string WriteBackup(const std::vector<std::string>& messages) {
  std::filesystem::create_directories(test::TempPath("backup"));
  std::string path = test::TempPath("backup") + "/a.ckvdir";
  auto writer = BackupWriter::Create(path);
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (const std::string& message : messages) EXPECT_TRUE(writer->Add(message).ok());
  EXPECT_TRUE((*std::move(writer)).Finish().ok());
  return path;
}

TEST(BackupFile, ReadsWhatWasWritten) {
  const std::vector<std::string> messages = {"one", std::string(3'000'000, 'x'), "three"};
  const std::string path = WriteBackup(messages);
  std::vector<std::string> read;
  EXPECT_TRUE(ReadBackup(path, [&](std::string message) {
                read.push_back(std::move(message));
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(read, messages);
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u) << "it has keys";
}

TEST(BackupFile, GivesNothingOfADamagedFile) {
  const std::string path = WriteBackup({"one", "two"});
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  const auto expect_damaged = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    const absl::Status read = ReadBackup(path, [](const std::string&) {
      ADD_FAILURE() << "a message of a damaged file";
      return absl::OkStatus();
    });
    EXPECT_TRUE(absl::IsDataLoss(read)) << read;
  };
  for (size_t length = 0; length < whole.size(); ++length) expect_damaged(whole.substr(0, length));
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    expect_damaged(changed);
  }
  expect_damaged(whole + "x");
  EXPECT_TRUE(absl::IsNotFound(
      ReadBackup(path + ".gone", [](const std::string&) { return absl::OkStatus(); })));
}

}  // namespace
}  // namespace ckv::ctl
