// Goal: what a holder received of a corpus is there unchanged after a restart; nothing damaged is
// used; a build that knows no parts keeps the folder. Method: the real file system, files cut and
// flipped at every byte, a disk that refuses.

#include "store/disk/corpus_parts.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/disk/chunk_folder.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using testing::HasSubstr;
using testing::IsEmpty;
using Call = FaultFileSystem::Call;

CorpusPart PartOf(const std::string& name, uint64_t version, std::vector<uint32_t> ordinals) {
  CorpusPart part;
  part.corpus =
      test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(ordinals.size(), 3),
                           static_cast<uint32_t>(version))
          .Publish(name, "acme", {{{"h1"}, {"h2"}}, {{"h1"}}});
  part.corpus.version = version;
  part.ordinals = std::move(ordinals);
  part.chunk_count = 100;
  part.folder_id = 77;
  return part;
}

struct CorpusPartsTest : testing::Test {
  CorpusPartsTest() {
    static int count = 0;
    path = test::TempPath(absl::StrCat("parts", count++));
    fs::create_directory(path);
  }
  std::unique_ptr<CorpusParts> Open() {
    damaged.clear();
    auto parts = CorpusParts::Open(&files, path, &damaged);
    EXPECT_TRUE(parts.ok()) << parts.status();
    return *std::move(parts);
  }
  std::string File() const {
    for (const auto& entry : fs::directory_iterator(path + "/corpora")) return entry.path();
    return "";
  }

  FaultFileSystem files;
  std::string path, damaged;
};

TEST_F(CorpusPartsTest, AreThereAgainAfterARestart) {
  const CorpusPart a = PartOf("a", 5, {0, 1, 17, 99}), b = PartOf("b", 6, {3});
  {
    const auto parts = Open();
    ASSERT_TRUE(parts->Write(PartOf("a", 4, {1, 2})).ok());
    ASSERT_TRUE(parts->Write(a).ok() && parts->Write(b).ok());
    EXPECT_EQ(*parts->Read({"acme", "a"}), a);
    EXPECT_EQ(parts->Read({"", "a"}).status().code(), StatusCode::kNotFound);
  }
  const auto parts = Open();
  EXPECT_EQ(damaged, "");
  EXPECT_EQ(parts->List(), (std::map<CorpusParts::Key, CorpusParts::Summary>{
                               {{"acme", "a"}, {5, 77}}, {{"acme", "b"}, {6, 77}}}));
  EXPECT_EQ(*parts->Read({"acme", "a"}), a);
  ASSERT_TRUE(parts->Remove({"acme", "a"}).ok());
  ASSERT_TRUE(parts->Remove({"acme", "a"}).ok());
  EXPECT_EQ(Open()->List().size(), 1u);
}

TEST_F(CorpusPartsTest, WithoutAFolderTheyAreInMemory) {
  path = "";
  const auto parts = Open();
  const CorpusPart a = PartOf("a", 5, {0, 1, 17, 99});
  ASSERT_TRUE(parts->Write(a).ok());
  EXPECT_EQ(*parts->Read({"acme", "a"}), a);
  EXPECT_THAT(Open()->List(), IsEmpty());
}

TEST_F(CorpusPartsTest, RemovesAndReportsADamagedFile) {
  ASSERT_TRUE(Open()->Write(PartOf("a", 5, {0, 7})).ok());
  const std::string file = File();
  std::ifstream in(file, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const auto expect_removed = [&](const std::string& bytes, size_t at) {
    fs::remove(file);
    std::ofstream(file, std::ios::binary) << bytes;
    ASSERT_THAT(Open()->List(), IsEmpty()) << at;
    ASSERT_THAT(damaged, HasSubstr(file));
    ASSERT_FALSE(fs::exists(file));
  };
  std::mt19937 random(1);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ (1 + random() % 255));
    expect_removed(bad, at);
    expect_removed(whole.substr(0, at), at);
  }
  // A whole file under another's name.
  std::ofstream(path + "/corpora/0123", std::ios::binary) << whole;
  EXPECT_THAT(Open()->List(), IsEmpty());
  // An unfinished file belongs to no corpus.
  std::ofstream(path + "/corpora/new", std::ios::binary) << whole.substr(0, 9);
  EXPECT_THAT(Open()->List(), IsEmpty());
  EXPECT_EQ(damaged, "");
}

TEST_F(CorpusPartsTest, AFullDiskKeepsTheEarlierPart) {
  const auto parts = Open();
  const CorpusPart before = PartOf("a", 5, {0, 7});
  ASSERT_TRUE(parts->Write(before).ok());
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kWrite ? absl::ResourceExhaustedError("no space") : absl::OkStatus();
  });
  EXPECT_EQ(parts->Write(PartOf("a", 6, {1})).code(), StatusCode::kResourceExhausted);
  files.set_hook({});
  EXPECT_EQ(*parts->Read({"acme", "a"}), before);
  EXPECT_EQ(*Open()->Read({"acme", "a"}), before);
}

TEST_F(CorpusPartsTest, RestoresWhatWasSeen) {
  const SeenDirectory seen = {77, 1234};
  const std::vector<DroppedCorpus> drops = {{"acme", "a", 77, 5, 6}, {"", "b", 0, 7, 8}};
  ASSERT_TRUE(Open()->WriteSeen(seen, "h1", drops).ok());
  auto parts = Open();
  EXPECT_EQ(parts->seen(), seen);
  EXPECT_EQ(parts->seen_by(), "h1");
  EXPECT_EQ(parts->dropped(), drops);
  EXPECT_THAT(parts->List(), IsEmpty());
  ASSERT_TRUE(parts->Write(PartOf("a", 5, {0, 7})).ok());
  // A directory may conclude from a missing part that the corpus was dropped or moved, so a lost
  // part must not look like that.
  ASSERT_TRUE(parts->GiveUp({"acme", "a"}).ok());
  parts = Open();
  EXPECT_EQ(parts->seen(), SeenDirectory());
  EXPECT_EQ(parts->dropped(), drops) << "these are still true";
  ASSERT_TRUE(parts->WriteSeen(seen, "h1", drops).ok());
  std::ofstream(path + "/corpora/0123", std::ios::binary) << "damaged";
  EXPECT_EQ(Open()->seen(), SeenDirectory());
  EXPECT_EQ(Open()->seen(), SeenDirectory());
}

TEST_F(CorpusPartsTest, IgnoresDamagedFactsOfWhatWasSeen) {
  const std::vector<DroppedCorpus> drops = {{"acme", "a", 77, 5, 6}, {"", "b", 0, 7, 8}};
  ASSERT_TRUE(Open()->WriteSeen({77, 1234}, "h1", drops).ok());
  const std::string file = path + "/corpora/SEEN";
  std::ifstream in(file, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    for (const std::string& bytes : {bad, whole.substr(0, at)}) {
      fs::remove(file);
      std::ofstream(file, std::ios::binary) << bytes;
      const auto parts = Open();
      ASSERT_EQ(parts->seen(), SeenDirectory()) << at;
      ASSERT_THAT(parts->dropped(), IsEmpty());
      ASSERT_THAT(damaged, HasSubstr(file));
      ASSERT_FALSE(fs::exists(file));
    }
  }
}

// Like a build that knows no parts, which scans only the folders that it knows.
TEST_F(CorpusPartsTest, AScanOfChunksLeavesThemAlone) {
  ChunkFolderOptions options;
  options.path = path + "/store";
  const auto scan = [&] {
    const auto folder = ChunkFolder::Open(options);
    ASSERT_TRUE(folder.ok()) << folder.status();
    const auto report = (*folder)->Scan([](const StoredChunk&) {});
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->quarantined_count, 0u);
  };
  scan();
  path = options.path;
  ASSERT_TRUE(Open()->Write(PartOf("a", 5, {0, 7})).ok());
  scan();
  EXPECT_EQ(Open()->List().size(), 1u);
}

}  // namespace
}  // namespace ckv
