// Goal: a log is read up to its last finished frame, and a flipped byte is distinguished from an
// unfinished frame. Method: small files, cut or flipped at every byte, or with zeroed sectors.

#include "server/directory/log/frame.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/directory/log/log_file.h"

namespace ckv {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

// Bytes without zeros, as long as several sectors for some.
std::vector<std::string> Payloads() {
  std::vector<std::string> payloads;
  std::mt19937 random(1);
  for (const size_t bytes : {1, 40, 700, 31, 1500, 3}) {
    std::string payload(bytes, '\0');
    for (char& byte : payload) byte = static_cast<char>(1 + random() % 255);
    payloads.push_back(payload);
  }
  return payloads;
}

std::string FileOf(const std::vector<std::string>& payloads) {
  std::string bytes = EncodeLogFileHeader(LogFileKind::kLog, 7);
  for (size_t i = 0; i < payloads.size(); ++i) bytes += EncodeFrame(i, payloads[i]);
  return bytes;
}

struct Outcome {
  absl::Status status;
  std::vector<std::string> payloads;
  uint64_t offset = 0;
  bool is_torn = false;
};

Outcome Read(const std::string& bytes) {
  test::BytesFile file(bytes);
  FrameReader frames(&file, bytes.size());
  Outcome outcome;
  while (true) {
    const auto payload = frames.Next();
    outcome.status = payload.status();
    if (!payload.ok() || !payload->has_value()) break;
    outcome.payloads.emplace_back(**payload);
  }
  outcome.offset = frames.offset();
  outcome.is_torn = frames.is_torn();
  return outcome;
}

TEST(Frame, APrefixOfTheBytesGivesAPrefixOfTheFrames) {
  const std::vector<std::string> payloads = Payloads();
  const std::string bytes = FileOf(payloads);
  size_t end = kLogFileHeaderBytes;  // of the whole frames
  size_t whole = 0;
  for (size_t cut = kLogFileHeaderBytes; cut <= bytes.size(); ++cut) {
    if (whole < payloads.size() &&
        cut == end + kFrameHeaderBytes + payloads[whole].size() + kFrameEndBytes) {
      end = cut;
      ++whole;
    }
    const Outcome outcome = Read(bytes.substr(0, cut));
    ASSERT_TRUE(outcome.status.ok()) << cut << ": " << outcome.status;
    ASSERT_EQ(outcome.payloads,
              std::vector(payloads.begin(), payloads.begin() + static_cast<int>(whole)));
    ASSERT_EQ(outcome.offset, end);
    ASSERT_EQ(outcome.is_torn, cut != end) << cut;
  }
}

TEST(Frame, EveryFlippedByteIsFound) {
  const std::string bytes = FileOf(Payloads());
  std::mt19937 random(2);
  for (size_t at = 0; at < bytes.size(); ++at) {
    // To every kind of other value: one bit, zero, all ones, anything.
    for (const uint8_t flip :
         {uint8_t{1}, uint8_t{0x80}, static_cast<uint8_t>(bytes[at]),
          static_cast<uint8_t>(~bytes[at]), static_cast<uint8_t>(1 + random() % 255)}) {
      if (flip == 0) continue;
      std::string bad = bytes;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      test::BytesFile file(bad);
      absl::Status status = ReadLogFileHeader(file, LogFileKind::kLog, 7);
      ASSERT_EQ(status.ok(), at >= kLogFileHeaderBytes) << at;
      if (!status.ok()) continue;
      const Outcome outcome = Read(bad);
      ASSERT_EQ(outcome.status.code(), StatusCode::kDataLoss) << at << " by " << int{flip};
      ASSERT_LE(outcome.offset, at);
    }
  }
}

// As after a power loss, on a file system that makes a file longer before its bytes are there.
TEST(Frame, AZeroSectorOfTheLastFrameIsUnfinished) {
  std::vector<std::string> payloads = Payloads();
  payloads.push_back(payloads[4]);
  const std::string bytes = FileOf(payloads);
  const size_t begin = bytes.size() - (kFrameHeaderBytes + payloads.back().size() + kFrameEndBytes);
  for (size_t sector = begin / 512 * 512; sector < bytes.size(); sector += 512) {
    std::string zeroed = bytes;
    const size_t from = std::max(begin, sector), to = std::min(bytes.size(), sector + 512);
    std::fill(zeroed.begin() + static_cast<long>(from), zeroed.begin() + static_cast<long>(to),
              '\0');
    const Outcome outcome = Read(zeroed);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.payloads.size(), payloads.size() - 1);
    EXPECT_EQ(outcome.offset, begin);
    EXPECT_TRUE(outcome.is_torn);
  }
  // All of it, and more behind it.
  const Outcome outcome = Read(bytes.substr(0, begin) + std::string(5000, '\0'));
  EXPECT_TRUE(outcome.status.ok() && outcome.is_torn);
  EXPECT_EQ(outcome.offset, begin);
}

// A power loss writes any of a frame's sectors, of 512 bytes or of 4096, and not the others.
TEST(Frame, AnySectorsOfTheLastFrameMayBeMissing) {
  std::mt19937 random(4);
  for (const size_t sector_bytes : {size_t{512}, size_t{4096}}) {
    // So that the frame, and its header, begin at every place of a sector now and then.
    for (size_t before = 1; before < sector_bytes; before += sector_bytes / 64 - 1) {
      std::vector<std::string> payloads = {std::string(before, 'x'), ""};
      payloads[1].resize(3 * sector_bytes);
      for (char& byte : payloads[1]) byte = static_cast<char>(1 + random() % 255);
      const std::string bytes = FileOf(payloads);
      const size_t begin = kLogFileHeaderBytes + kFrameHeaderBytes + before + kFrameEndBytes;
      const size_t first = begin / sector_bytes,
                   count = (bytes.size() - 1) / sector_bytes - first + 1;
      for (size_t lost = 1; lost < size_t{1} << count; ++lost) {
        std::string torn = bytes;
        for (size_t i = 0; i < count; ++i) {
          if ((lost >> i & 1) == 0) continue;
          const size_t from = std::max(begin, (first + i) * sector_bytes);
          const size_t to = std::min(bytes.size(), (first + i + 1) * sector_bytes);
          std::fill(torn.begin() + static_cast<long>(from), torn.begin() + static_cast<long>(to),
                    '\0');
        }
        const Outcome outcome = Read(torn);
        ASSERT_TRUE(outcome.status.ok()) << before << " " << lost << ": " << outcome.status;
        ASSERT_EQ(outcome.payloads.size(), 1u);
        ASSERT_TRUE(outcome.is_torn);
        ASSERT_EQ(outcome.offset, begin);
      }
    }
  }
}

// A file system that shows a block's previous contents: that could also be damage of an
// acknowledged change, so it is refused, never believed.
TEST(Frame, OldBytesInASectorAreDamage) {
  const std::vector<std::string> payloads = {"one", std::string(2000, 'a')};
  const std::string bytes = FileOf(payloads);
  const size_t begin = bytes.size() - (kFrameHeaderBytes + 2000 + kFrameEndBytes);
  for (size_t sector = begin / 512; sector * 512 < bytes.size(); ++sector) {
    std::string old = bytes;
    const size_t from = std::max(begin, sector * 512), to = std::min(bytes.size(), from + 512);
    std::fill(old.begin() + static_cast<long>(from), old.begin() + static_cast<long>(to), 'o');
    const Outcome outcome = Read(old);
    EXPECT_EQ(outcome.status.code(), StatusCode::kDataLoss) << sector;
    EXPECT_EQ(outcome.offset, begin) << "the place to cut at";
    EXPECT_EQ(outcome.payloads.size(), 1u);
  }
}

// Nothing follows an unfinished frame: zeros before another frame were written over it later.
TEST(Frame, AZeroSectorInTheMiddleIsDamage) {
  const std::string bytes = FileOf(Payloads());
  const size_t last = bytes.size() - (kFrameHeaderBytes + 3 + kFrameEndBytes);
  for (size_t sector = 512; sector + 512 <= last; sector += 512) {
    std::string zeroed = bytes;
    std::fill_n(zeroed.begin() + static_cast<long>(sector), 512, '\0');
    EXPECT_EQ(Read(zeroed).status.code(), StatusCode::kDataLoss) << sector;
  }
  // From the beginning of a frame to the end of its sector.
  size_t begin = kLogFileHeaderBytes;
  for (const std::string& payload : Payloads()) {
    if (begin == last) break;
    std::string zeroed = bytes;
    const size_t end = std::min(last, (begin / 512 + 1) * 512);
    std::fill(zeroed.begin() + static_cast<long>(begin), zeroed.begin() + static_cast<long>(end),
              '\0');
    EXPECT_EQ(Read(zeroed).status.code(), StatusCode::kDataLoss) << begin;
    begin += kFrameHeaderBytes + payload.size() + kFrameEndBytes;
  }
}

TEST(Frame, FramesAreReadInOrder) {
  const std::vector<std::string> payloads = Payloads();
  const std::string header = EncodeLogFileHeader(LogFileKind::kLog, 7);
  const Outcome outcome = Read(header + EncodeFrame(0, payloads[0]) + EncodeFrame(2, payloads[1]));
  EXPECT_THAT(outcome.status.ToString(), HasSubstr("frame 2 where 1 is due"));
  EXPECT_EQ(outcome.payloads.size(), 1u);
}

TEST(Frame, AFileIsThatOfItsName) {
  test::BytesFile file(EncodeLogFileHeader(LogFileKind::kLog, 7));
  EXPECT_TRUE(ReadLogFileHeader(file, LogFileKind::kLog, 7).ok());
  EXPECT_TRUE(absl::IsDataLoss(ReadLogFileHeader(file, LogFileKind::kLog, 8)));
  EXPECT_TRUE(absl::IsDataLoss(ReadLogFileHeader(file, LogFileKind::kSnapshot, 7)));
  test::BytesFile nothing("");
  EXPECT_TRUE(absl::IsDataLoss(ReadLogFileHeader(nothing, LogFileKind::kLog, 7)));
}

}  // namespace
}  // namespace ckv
