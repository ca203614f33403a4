// Goal: a file that is shortened, lengthened or overwritten after it was opened is an error that
// names it, wherever it is read next, and never a signal. Method: each change at each state of
// reading, over every format that is read in parts.

#include "store/formats/file_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "store/formats/import.h"
#include "store/formats/llama_state.h"
#include "store/formats/npy.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kBytes = 300'000;  // many pages

std::string WriteFile(const std::string& name, size_t bytes = kBytes) {
  std::string path = test::TempPath(name);
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>('a' + i % 23);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// Sets a modification time that even the coarsest clock does not give twice.
void Touch(const std::string& path) {
  using std::filesystem::file_time_type;
  std::filesystem::last_write_time(path, file_time_type::clock::now() + std::chrono::hours(1));
}

struct Change {
  const char* name;
  std::function<void(const std::string& path)> make;
};

const Change kChanges[] = {
    {"cut to nothing", [](const std::string& path) { ASSERT_EQ(truncate(path.c_str(), 0), 0); }},
    {"cut to a page", [](const std::string& path) { ASSERT_EQ(truncate(path.c_str(), 4096), 0); }},
    {"longer", [](const std::string& path) { std::ofstream(path, std::ios::app) << "more"; }},
    {"overwritten",
     [](const std::string& path) {
       std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
       file << "other bytes";
       file.close();
       Touch(path);
     }},
};

TEST(FileBytes, ReadsPartsAtTheirOffsets) {
  const std::string path = WriteFile("parts");
  for (const FileReading reading : {FileReading::kWhole, FileReading::kParts}) {
    const auto file = FileBytes::Open(path, reading);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto bytes = (*file)->bytes();
    ASSERT_EQ(bytes.size(), kBytes);
    const auto part = bytes.subspan(100'001, 9);
    ASSERT_TRUE((*file)->Need(part).ok());
    std::vector<std::byte> copied(kBytes);
    ASSERT_TRUE((*file)->Copy(bytes, copied.data()).ok());
    for (size_t i = 0; i < part.size(); ++i) {
      EXPECT_EQ(static_cast<char>(part[i]), static_cast<char>('a' + (100'001 + i) % 23));
      EXPECT_EQ(copied[100'001 + i], part[i]);
    }
    EXPECT_TRUE((*file)->CheckUnchanged().ok());
  }
  const auto empty = FileBytes::Open(WriteFile("empty", 0), FileReading::kWhole);
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE((*empty)->bytes().empty());
}

TEST(FileBytes, AFileBeyondTheLimitIsRefusedByItsLength) {
  const std::string path = WriteFile("long", 0);
  constexpr uint64_t kFar = uint64_t{1} << 36;  // no memory has room for it
  std::filesystem::resize_file(path, kFar);
  const auto file = FileBytes::Open(path, FileReading::kWhole, kFar - 1);
  EXPECT_TRUE(absl::IsInvalidArgument(file.status())) << file.status();
  EXPECT_THAT(std::string(file.status().message()),
              AllOf(HasSubstr(path), HasSubstr("68719476736 bytes, limit 68719476735")));
}

TEST(FileBytes, AChangeIsAnErrorThatNamesTheFile) {
  for (const Change& change : kChanges) {
    SCOPED_TRACE(change.name);
    const std::string path = WriteFile("changes");
    const auto file = FileBytes::Open(path, FileReading::kParts);
    ASSERT_TRUE(file.ok());
    const auto bytes = (*file)->bytes();
    std::vector<std::byte> copied(kBytes);
    ASSERT_TRUE((*file)->Copy(bytes.first(8192), copied.data()).ok());
    change.make(path);
    for (const absl::Status& status :
         {(*file)->CheckUnchanged(), (*file)->Copy(bytes, copied.data()),
          (*file)->Copy(bytes.first(10), copied.data()), (*file)->Need(bytes.last(10))}) {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(path), HasSubstr("changed while it was read")));
    }
  }
}

TEST(FileBytes, AFileThatTakesTheNameIsAnotherFile) {
  const std::string path = WriteFile("renamed"), other = WriteFile("other", 100);
  const auto file = FileBytes::Open(path, FileReading::kParts);
  ASSERT_TRUE(file.ok());
  std::filesystem::remove(path);
  std::filesystem::rename(other, path);
  std::vector<std::byte> copied(kBytes);
  // Unlinking changes the time of the inode, which may be reported, too.
  const absl::Status status = (*file)->Copy((*file)->bytes(), copied.data());
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  if (!status.ok()) return;
  std::vector<std::byte> opened;
  for (size_t i = 0; i < kBytes; ++i) opened.push_back(static_cast<std::byte>('a' + i % 23));
  EXPECT_EQ(copied, opened);
}

// The formats pass errors on, and name the path once.
TEST(FileBytes, FormatsNameThePathOnce) {
  const std::string path = test::TempPath("array.npy");
  std::string text = "\x93NUMPY\x01";
  text += '\0';
  const std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (50000,), }\n";
  text += static_cast<char>(header.size());
  text += '\0';
  text += header + std::string(200'000, 'x');
  std::ofstream(path, std::ios::binary) << text;
  const auto array = NpyFile::Open(path, FileReading::kParts);
  ASSERT_TRUE(array.ok()) << array.status();
  std::filesystem::resize_file(path, 1000);
  std::vector<std::byte> copied(200'000);
  const std::string message(array->Copy(array->data(), copied.data()).message());
  EXPECT_EQ(message.find(path), 0u) << message;
  EXPECT_EQ(message.find(path, 1), std::string::npos) << message;
  for (const absl::Status& status :
       {NpyFile::Open(path, FileReading::kParts).status(), RowFile::Open(path).status(),
        LlamaState::Open(path, FileReading::kParts).status()}) {
    EXPECT_EQ(std::string(status.message()).find(path), 0u) << status;
  }
}

}  // namespace
}  // namespace ckv
