// Goal: a file read past the system's memory gives exactly its bytes, in order, from any offset,
// and every end of a read leaves nothing under way. Where there are no such reads, that is said
// first.

#include "store/disk/direct_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "store/disk/file_system.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

struct DirectStreamTest : testing::Test {
  // 11 blocks and a bit: more than are under way at once, and no multiple of anything.
  DirectStreamTest() : bytes(11 * kDirectBlockBytes + 4321) {
    std::mt19937 rng(1);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
    fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(fsync(fd), 0);
  }
  ~DirectStreamTest() override { close(fd); }
  // OK with what was read, or the error.
  absl::StatusOr<std::vector<std::byte>> Read(uint64_t offset, uint64_t count) {
    std::vector<std::byte> read;
    absl::Status status = StreamDirectly(fd, offset, count, [&](auto block) {
      read.insert(read.end(), block.begin(), block.end());
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    return read;
  }
  bool Supported() { return !absl::IsUnimplemented(Read(0, 1).status()); }

  const std::string path = test::TempPath("direct");
  std::vector<std::byte> bytes;
  int fd = -1;
};

TEST_F(DirectStreamTest, GivesTheBytesFromAnyOffset) {
  if (!Supported())
    GTEST_SKIP()
        << "no direct reads here; to run it: a TMPDIR on ext4 or xfs, and a kernel with io_uring";
  const uint64_t size = bytes.size();
  const std::pair<uint64_t, uint64_t> ranges[] = {
      {0, size},         {0, 1},       {size - 1, 1},  {128, size - 128},
      {4095, 2},         {4096, 4096}, {12345, 65432}, {kDirectBlockBytes - 1, 2},
      {size - 4321, 321}};
  for (const auto& [offset, count] : ranges) {
    const auto read = Read(offset, count);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(std::equal(read->begin(), read->end(), bytes.begin() + offset,
                           bytes.begin() + offset + count))
        << offset << " " << count;
  }
  EXPECT_TRUE(Read(5, 0)->empty());
}

TEST_F(DirectStreamTest, AFileThatEndsIsDamage) {
  if (!Supported())
    GTEST_SKIP()
        << "no direct reads here; to run it: a TMPDIR on ext4 or xfs, and a kernel with io_uring";
  EXPECT_EQ(Read(0, bytes.size() + 1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(bytes.size() + 8192, 1).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(ftruncate(fd, 3 * kDirectBlockBytes), 0);
  EXPECT_EQ(Read(0, bytes.size()).status().code(), absl::StatusCode::kDataLoss);
}

// With eight reads under way: their memory must not go before they end.
TEST_F(DirectStreamTest, AReaderMayStop) {
  if (!Supported())
    GTEST_SKIP()
        << "no direct reads here; to run it: a TMPDIR on ext4 or xfs, and a kernel with io_uring";
  for (int stop_at = 1; stop_at <= 12; ++stop_at) {
    int blocks = 0;
    const absl::Status status = StreamDirectly(fd, 0, bytes.size(), [&](auto) {
      return ++blocks == stop_at ? absl::AbortedError("enough") : absl::OkStatus();
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(blocks, stop_at);
  }
}

TEST_F(DirectStreamTest, ReportsAMissingFileFirst) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  bool taken = false;
  const absl::Status status = StreamDirectly(ends[0], 0, 1, [&](auto) {
    taken = true;
    return absl::OkStatus();
  });
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(taken);
  close(ends[0]);
  close(ends[1]);
}

// What was just written is in the system's memory; once it is forgotten a file is read directly,
// and both ways give the same.
TEST_F(DirectStreamTest, TheStoresFilesTakeTheFasterWay) {
  auto file = *FileSystem::Real()->OpenForReading(path);
  const auto none = [](auto) { return absl::OkStatus(); };
  EXPECT_TRUE(IsCached(fd, 0, bytes.size()));
  EXPECT_EQ(file->Stream(0, bytes.size(), none).code(), absl::StatusCode::kUnimplemented);
  file->DropCached();
  if (!Supported() || IsCached(fd, 0, bytes.size()))
    GTEST_SKIP()
        << "no direct reads here; to run it: a TMPDIR on ext4 or xfs, and a kernel with io_uring";
  std::vector<std::byte> read;
  const absl::Status status = file->Stream(128, bytes.size() - 128, [&](auto block) {
    read.insert(read.end(), block.begin(), block.end());
    return absl::OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::equal(read.begin(), read.end(), bytes.begin() + 128, bytes.end()));
  EXPECT_EQ(file->Stream(0, 4096, none).code(), absl::StatusCode::kUnimplemented);  // small
}

}  // namespace
}  // namespace ckv
