// Goal: what a folder acknowledged is whole whatever happens to the process or the disk, what it
// did not acknowledge is not half there, and nothing damaged is ever served (I3). Method: the real
// file system, with a process that dies or a disk that fails at every single call; truncations and
// seeded flips of real files.

#include "store/disk/chunk_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Call = FaultFileSystem::Call;

struct ChunkFolderTest : testing::Test {
  ChunkFolderTest() {
    static int count = 0;
    path = test::TempPath(absl::StrCat("folder", count++));
    arena = *Arena::Create(size_t{16} << 20);
  }
  absl::StatusOr<std::unique_ptr<ChunkFolder>> Open() {
    ChunkFolderOptions options;
    options.path = path;
    options.files = &files;
    options.scan_threads = 2;
    return ChunkFolder::Open(options);
  }
  // What a restarted process finds.
  std::map<ChunkId, ChunkFacts> Scan(ScanReport* report = nullptr) {
    files.set_hook({});
    auto folder = Open();
    EXPECT_TRUE(folder.ok()) << folder.status();
    std::map<ChunkId, ChunkFacts> found;
    const auto scanned = (*folder)->Scan(
        [&](const StoredChunk& chunk) { found[chunk.header.info.id] = chunk.facts; });
    EXPECT_TRUE(scanned.ok()) << scanned.status();
    if (report != nullptr) *report = *scanned;
    return found;
  }
  absl::Status Put(ChunkFolder& folder, const SmallChunk& chunk, std::string_view tenant = "") {
    CKV_ASSIGN_OR_RETURN(ChunkFileWriter writer, folder.Begin(chunk.info, geometry, tenant));
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l)
      CKV_RETURN_IF_ERROR(writer.Write(l, 0, chunk.layers[l]));
    CKV_ASSIGN_OR_RETURN(ChunkWriter memory,
                         ChunkWriter::Begin(chunk.info, &geometry, arena.get()));
    CKV_ASSIGN_OR_RETURN(const Chunk whole, WriteSmallChunk(std::move(memory), chunk));
    return std::move(writer).Commit(whole, tenant);
  }
  absl::Status ReadBack(ChunkFolder& folder, const SmallChunk& chunk) {
    CKV_ASSIGN_OR_RETURN(const ChunkFileReader reader, folder.Read(chunk.info.id));
    const ChunkLayout layout = reader.header().layout();
    std::vector<std::byte> rows(layout.total_bytes());
    CKV_RETURN_IF_ERROR(reader.ReadAll(rows));
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l) {
      if (std::memcmp(rows.data() + layout.begin(l), chunk.layers[l].data(), layout.bytes(l)) !=
          0) {
        return absl::InternalError("other rows than were put");
      }
    }
    return absl::OkStatus();
  }
  std::string FileOf(const SmallChunk& chunk) { return test::ChunkFileOf(path, chunk.info.id); }
  std::vector<std::string> Quarantined() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path + "/quarantine"))
      names.push_back(entry.path().filename());
    return names;
  }

  std::string path;
  FaultFileSystem files;
  Geometry geometry = IndexedGeometry();
  std::unique_ptr<Arena> arena;
  const SmallChunk a = MakeSmallChunk(geometry, 100, 1), b = MakeSmallChunk(geometry, 33, 2);
};

// Found by tests/sim: a power loss took the folder of all chunks, whose own name was not durable.
TEST_F(ChunkFolderTest, TheNamesOfItsFoldersAreDurable) {
  std::vector<std::string> made, durable;
  files.set_hook([&](Call call, const std::string& folder) {
    if (call == Call::kMakeFolder) made.push_back(folder);
    if (call == Call::kSyncFolder && folder == path) durable = made;
    return absl::OkStatus();
  });
  ASSERT_TRUE(Open().ok());
  EXPECT_THAT(durable, testing::IsSupersetOf({path + "/chunks", path + "/new"}));
}

// Found by tests/sim: a put ended between its rename and its sync. The next process found the chunk
// and acknowledged a second put of it, and a power loss took its name.
TEST_F(ChunkFolderTest, AFoundChunkIsDurable) {
  const std::string leaf = fs::path(FileOf(a)).parent_path();
  ASSERT_TRUE(Put(**Open(), a).ok());
  std::vector<std::string> synced;
  files.set_hook([&](Call call, const std::string& folder) {
    if (call == Call::kSyncFolder) synced.push_back(folder);
    return absl::OkStatus();
  });
  const auto folder = *Open();
  bool found_durable = false;
  const auto scanned = folder->Scan([&](const StoredChunk& chunk) {
    found_durable = chunk.header.info.id == a.info.id &&
                    std::find(synced.begin(), synced.end(), leaf) != synced.end();
  });
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_TRUE(found_durable);
}

// A chunk whose name may not be durable is not served.
TEST_F(ChunkFolderTest, AScanThatCannotSyncFails) {
  const std::string leaf = fs::path(FileOf(a)).parent_path();
  ASSERT_TRUE(Put(**Open(), a).ok());
  const auto folder = *Open();
  files.set_hook([&](Call call, const std::string& at) {
    return call == Call::kSyncFolder && at == leaf ? absl::UnavailableError("the disk fails")
                                                   : absl::OkStatus();
  });
  bool found = false;
  EXPECT_EQ(folder->Scan([&](const StoredChunk&) { found = true; }).status().code(),
            StatusCode::kUnavailable);
  EXPECT_FALSE(found);
}

TEST_F(ChunkFolderTest, PutChunksAreThereAfterARestart) {
  {
    const auto folder = *Open();
    ASSERT_TRUE(Put(*folder, a).ok());
    ASSERT_TRUE(Put(*folder, b, "tenant-a").ok());
    EXPECT_TRUE(ReadBack(*folder, a).ok());
  }
  ScanReport report;
  const auto found = Scan(&report);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found.at(a.info.id), (ChunkFacts{.readers = {""}}));
  EXPECT_EQ(found.at(b.info.id), (ChunkFacts{.readers = {"tenant-a"}}));
  EXPECT_EQ(report.chunk_count, 2u);
  EXPECT_EQ(report.quarantined_count + report.unfinished_count + report.refused_count, 0u);
  const auto folder = *Open();
  EXPECT_TRUE(ReadBack(*folder, a).ok());
  EXPECT_TRUE(ReadBack(*folder, b).ok());
  EXPECT_EQ(ReadBack(*folder, MakeSmallChunk(geometry, 5, 9)).code(), StatusCode::kNotFound);
}

TEST_F(ChunkFolderTest, StripesAreReadByThemselves) {
  const auto folder = *Open();
  ASSERT_TRUE(Put(*folder, a).ok());
  const ChunkFileReader reader = *folder->Read(a.info.id);
  EXPECT_EQ(reader.StripeBytes(1, 2, 2), (100 - 64) * 20u);
  std::vector<std::byte> rows(reader.StripeBytes(1, 2, 2));
  ASSERT_TRUE(reader.ReadStripes(1, 2, 2, rows).ok());
  EXPECT_EQ(std::memcmp(rows.data(), a.layers[1].data() + 64 * 20, rows.size()), 0);
}

TEST_F(ChunkFolderTest, FactsOutliveTheProcess) {
  const ChunkFacts facts = {.readers = {"x", "y"}, .kept = true};
  {
    const auto folder = *Open();
    ASSERT_TRUE(Put(*folder, a, "x").ok());
    ASSERT_TRUE(folder->WriteFacts(a.info.id, facts).ok());
  }
  EXPECT_EQ(Scan().at(a.info.id), facts);
  // A flipped bit would let another tenant read: its first reader alone is left.
  std::fstream file(FileOf(a) + ".facts", std::ios::in | std::ios::out);
  file.seekp(30);
  file.put('z');
  file.close();
  EXPECT_EQ(Scan().at(a.info.id), (ChunkFacts{.readers = {"x"}}));
  EXPECT_EQ(Quarantined().size(), 2u);
  {
    const auto folder = *Open();
    ASSERT_TRUE(folder->WriteFacts(a.info.id, facts).ok());
    ASSERT_TRUE(folder->Remove(a.info.id).ok());
    ASSERT_TRUE(folder->Remove(a.info.id).ok());
  }
  EXPECT_TRUE(Scan().empty());
}

TEST_F(ChunkFolderTest, AcceptsOneProcessAndOnlyItsOwnFolder) {
  auto folder = *Open();
  EXPECT_THAT(Open().status().ToString(), HasSubstr("two holders need two folders"));
  folder.reset();
  std::ofstream(path + "/FORMAT") << "ckv chunk folder 2\n";
  EXPECT_THAT(Open().status().ToString(), HasSubstr("later version"));
  std::ofstream(path + "/FORMAT") << "something\n";
  EXPECT_EQ(Open().status().code(), StatusCode::kFailedPrecondition);
  path += "-other";
  fs::create_directory(path);
  std::ofstream(path + "/thesis.txt") << "not mine\n";
  EXPECT_THAT(Open().status().ToString(), HasSubstr("thesis.txt"));
  path += "/missing/folder";
  EXPECT_EQ(Open().status().code(), StatusCode::kNotFound);
}

TEST_F(ChunkFolderTest, ForeignFilesAreQuarantined) {
  {
    const auto folder = *Open();
    ASSERT_TRUE(Put(*folder, a).ok());
  }
  const std::string leaf = fs::path(FileOf(a)).parent_path();
  std::ofstream(path + "/new/17") << "half a chunk";
  std::ofstream(leaf + "/notes.txt") << "hello";
  std::ofstream(leaf + "/" + std::string(64, 'f')) << "of another folder";
  std::ofstream(path + "/chunks/README") << "hello";
  ScanReport report;
  const auto found = Scan(&report);
  EXPECT_EQ(found.size(), 1u);
  EXPECT_EQ(report.unfinished_count, 1u);
  EXPECT_EQ(report.quarantined_count, 3u);
  EXPECT_FALSE(report.first_quarantined.empty());
  EXPECT_THAT(Quarantined(),
              UnorderedElementsAre("notes.txt", "notes.txt.why", std::string(64, 'f'),
                                   std::string(64, 'f') + ".why", "README", "README.why"));
  // The next start has nothing to say.
  Scan(&report);
  EXPECT_EQ(report.quarantined_count, 0u);
}

TEST_F(ChunkFolderTest, RefusesAChunkUnderAnotherName) {
  {
    const auto folder = *Open();
    ASSERT_TRUE(Put(*folder, a).ok());
    ASSERT_TRUE(Put(*folder, b).ok());
    fs::copy_file(FileOf(a), FileOf(b), fs::copy_options::overwrite_existing);
    EXPECT_EQ(ReadBack(*folder, b).code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(Scan().size(), 1u);
}

TEST_F(ChunkFolderTest, ALaterVersionsFileIsLeftAlone) {
  {
    const auto folder = *Open();
    ASSERT_TRUE(Put(*folder, a).ok());
  }
  std::fstream file(FileOf(a), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(8);
  file.put(kChunkFileVersion + 1);
  file.close();
  const auto content = [this] {
    std::ifstream in(FileOf(a), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string before = content();
  ScanReport report;
  EXPECT_TRUE(Scan(&report).empty());
  EXPECT_EQ(report.refused_count, 1u);
  EXPECT_EQ(content(), before);
  const auto first = std::as_bytes(std::span(before)).first(kChunkFilePrefixBytes);
  const absl::Status refused = DecodeChunkFilePrefix(first).status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "chunk file: version 2, this ckv reads up to 1: upgrade it, or load the corpus again");
}

// Of a file cut at every 4 KiB, and at every 100 bytes between.
TEST_F(ChunkFolderTest, ATruncatedFileIsNeverServed) {
  geometry.layers = 60;
  const SmallChunk large = MakeSmallChunk(geometry, 200, 3);
  {
    const auto folder = *Open();
    ASSERT_TRUE(Put(*folder, large).ok());
  }
  const std::string file = FileOf(large), whole = test::TempPath("whole");
  fs::copy_file(file, whole);
  const uint64_t size = fs::file_size(file);
  ASSERT_GT(size, 200u << 10);
  for (uint64_t length = 0; length < size; length += length % 4096 == 0 ? 100 : 3996) {
    fs::copy_file(whole, file, fs::copy_options::overwrite_existing);
    fs::resize_file(file, length);
    ASSERT_TRUE(Scan().empty()) << length;
    ASSERT_FALSE(fs::exists(file));
    fs::remove_all(path + "/quarantine");
  }
}

// Detected when the folder is opened, or when the rows are read: never served.
TEST_F(ChunkFolderTest, TwoThousandFlippedBitsAreAllFound) {
  {
    const auto folder = *Open();
    ASSERT_TRUE(Put(*folder, a).ok());
  }
  const std::string file = FileOf(a), whole = test::TempPath("whole2");
  fs::copy_file(file, whole);
  const uint64_t size = fs::file_size(file);
  std::mt19937_64 random(11);
  int at_scan = 0, at_read = 0;
  for (int i = 0; i < 2000; ++i) {
    fs::copy_file(whole, file, fs::copy_options::overwrite_existing);
    const uint64_t bit = random() % (size * 8);
    test::FlipBits(file, static_cast<int64_t>(bit / 8), 1 << bit % 8);
    if (Scan().empty()) {
      ++at_scan;
      fs::remove_all(path + "/quarantine");
      continue;
    }
    const auto folder = *Open();
    ASSERT_EQ(ReadBack(*folder, a).code(), StatusCode::kDataLoss) << "bit " << bit;
    ++at_read;
  }
  EXPECT_GT(at_scan, 200);
  EXPECT_GT(at_read, 200);
}

TEST_F(ChunkFolderTest, QuarantineGivesItsReason) {
  const auto folder = *Open();
  ASSERT_TRUE(Put(*folder, a).ok());
  ASSERT_TRUE(folder->Quarantine(a.info.id, "layer 3 is wrong").ok());
  EXPECT_EQ(ReadBack(*folder, a).code(), StatusCode::kNotFound);
  std::ifstream why(path + "/quarantine/" + a.info.id.ToHex() + ".why");
  std::string text;
  std::getline(why, text);
  EXPECT_EQ(text, "layer 3 is wrong");
  ASSERT_TRUE(Put(*folder, a).ok());
  ASSERT_TRUE(folder->Quarantine(a.info.id, "again").ok());
  EXPECT_EQ(Quarantined().size(), 4u);
}

// The process dies at its n-th call, for every n: no call after that one does anything, nor does
// the n-th. After the restart what was acknowledged is whole, and the rest is whole or absent.
TEST_F(ChunkFolderTest, DyingAtAnyCallLosesNothingAcknowledged) {
  const std::string base = path;
  bool died = true;
  int deaths = 0;
  for (int n = 0; died; ++n) {
    path = absl::StrCat(base, "-", n);
    died = false;
    int calls = 0;
    files.set_hook([&](Call, const std::string&) {
      if (calls++ < n) return absl::OkStatus();
      died = true;
      return absl::UnavailableError("dead");
    });
    bool acknowledged_a = false, acknowledged_b = false, facts = false;
    if (auto folder = Open(); folder.ok()) {
      acknowledged_a = Put(**folder, a).ok();
      facts = acknowledged_a && (*folder)->WriteFacts(a.info.id, {{"", "t"}, true}).ok();
      acknowledged_b = Put(**folder, b, "t").ok();
    }
    const auto found = Scan();
    EXPECT_LE(acknowledged_a, found.contains(a.info.id)) << n;
    EXPECT_LE(acknowledged_b, found.contains(b.info.id)) << n;
    const auto folder = *Open();
    for (const SmallChunk* chunk : {&a, &b}) {
      EXPECT_EQ(ReadBack(*folder, *chunk).ok(), found.contains(chunk->info.id)) << n;
    }
    EXPECT_TRUE(!facts || found.at(a.info.id).kept) << n;
    if (found.contains(b.info.id)) {
      EXPECT_EQ(found.at(b.info.id).readers, std::vector<std::string>{"t"}) << n;
    }
    EXPECT_TRUE(fs::is_empty(path + "/new")) << n;
    EXPECT_TRUE(Quarantined().empty()) << n;
    deaths += died;
  }
  EXPECT_GT(deaths, 30);
}

// A disk that fails one call and works again: the put is refused with the disk's words, the chunk
// that was there is still served, and the next put succeeds.
TEST_F(ChunkFolderTest, AFailedCallRefusesOnePut) {
  const absl::Status errors[] = {absl::ResourceExhaustedError("no space left on device"),
                                 absl::UnavailableError("input/output error")};
  const auto folder = *Open();
  ASSERT_TRUE(Put(*folder, a).ok());
  for (const absl::Status& error : errors) {
    for (int n = 0;; ++n) {
      int calls = 0;
      files.set_hook([&](Call call, const std::string&) {
        return calls++ == n && call != Call::kRemove ? error : absl::OkStatus();
      });
      const absl::Status put = Put(*folder, b);
      files.set_hook({});
      if (put.ok()) {
        EXPECT_LE(calls, n);
        ASSERT_TRUE(folder->Remove(b.info.id).ok());
        break;
      }
      EXPECT_EQ(put.code(), error.code()) << put;
      EXPECT_EQ(ReadBack(*folder, b).code(), StatusCode::kNotFound) << n;
      EXPECT_TRUE(ReadBack(*folder, a).ok()) << n;
      EXPECT_TRUE(fs::is_empty(path + "/new")) << n;
      ASSERT_TRUE(Put(*folder, b).ok()) << n;
      ASSERT_TRUE(folder->Remove(b.info.id).ok());
    }
  }
}

// A scan that cannot read does not call chunks damaged: it fails, and they stay.
TEST_F(ChunkFolderTest, AnUnreadableDiskIsNoDamage) {
  {
    const auto folder = *Open();
    ASSERT_TRUE(Put(*folder, a).ok());
  }
  const auto folder = *Open();
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kRead ? absl::UnavailableError("input/output error") : absl::OkStatus();
  });
  const auto scanned = folder->Scan([](const StoredChunk&) { FAIL(); });
  EXPECT_EQ(scanned.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Quarantined().empty());
}

}  // namespace
}  // namespace ckv
