// Goal: what is exported from one directory is imported by another, once however often, and never
// over something else.

#include "server/directory/directory_backup.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/directory/durable_directory.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

class DirectoryBackupTest : public testing::Test {
 protected:
  std::unique_ptr<DurableDirectory> Open(const std::string& path) {
    ChangeLogOptions log;
    log.path = path;
    auto opened = DurableDirectory::Open({.first_epoch = 1'700'000'000'000}, log);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
  static Corpus Made(const std::string& name, const std::string& tenant, uint32_t seed,
                     size_t chunk_count = 2) {
    return test::MakeTestCorpus(test::TestGeometry(), std::vector<uint32_t>(chunk_count, 2), seed)
        .Publish(name, tenant, {{{"h0"}, {"h1"}}});
  }
  static std::vector<std::vector<DirectoryChange>> Exported(DirectoryState& state) {
    std::vector<std::vector<DirectoryChange>> pieces;
    state.backup().Export([&](std::string_view records) {
      pieces.emplace_back();
      EXPECT_TRUE(ReadRecords(records, [&](DirectoryChange change) {
                    pieces.back().push_back(std::move(change));
                    return absl::OkStatus();
                  }).ok());
      return true;
    });
    return pieces;
  }
  static absl::Status Import(DirectoryState& state,
                             const std::vector<std::vector<DirectoryChange>>& pieces,
                             DirectoryBackup::Counts& counts) {
    for (const auto& piece : pieces)
      if (absl::Status status = state.backup().Import(piece, kInstantMax, counts); !status.ok())
        return status;
    return absl::OkStatus();
  }

  const std::string from_path_ = test::TempPath("backup-from");
  const std::string to_path_ = test::TempPath("backup-to");
};

TEST_F(DirectoryBackupTest, MovesCorporaTombstonesAndKeys) {
  const auto from = Open(from_path_);
  // More than one piece.
  const auto version = from->state().Publish(Made("long", "", 1, 30'000), false, 0);
  ASSERT_TRUE(version.ok());
  ASSERT_TRUE(from->state().Publish(Made("secret", "t", 2), false, 0).ok());
  ASSERT_TRUE(from->state().Publish(Made("gone", "", 3), false, 0).ok());
  ASSERT_TRUE(from->state().Drop("gone", "").ok());
  const auto key = from->state().TenantKeyOf("t", true);
  const auto pieces = Exported(from->state());
  EXPECT_GE(pieces.size(), 2u);

  DirectoryBackup::Counts counts;
  {
    const auto to = Open(to_path_);
    ASSERT_TRUE(Import(to->state(), pieces, counts).ok());
    EXPECT_EQ(counts.corpus_count, 2u);
    EXPECT_EQ(counts.key_count, 1u);
    EXPECT_EQ(counts.tombstone_count, 1u);
    // Again, which changes nothing.
    DirectoryBackup::Counts again;
    ASSERT_TRUE(Import(to->state(), pieces, again).ok());
    EXPECT_EQ(again.corpus_count + again.key_count + again.tombstone_count, 0u);
    EXPECT_EQ(again.same_count, 3u);
  }
  const auto to = Open(to_path_);  // it is durable
  EXPECT_EQ(**to->state().Get("long", ""), **from->state().Get("long", ""));
  EXPECT_EQ(**to->state().Get("secret", "t"), **from->state().Get("secret", "t"));
  EXPECT_EQ(*to->state().TenantKeyOf("t", false), *key);
  const auto next = to->state().Publish(Made("long", "", 4), true, *version);
  ASSERT_TRUE(next.ok());
  EXPECT_GT(*next, *version);
}

TEST_F(DirectoryBackupTest, NothingIsReplaced) {
  const auto from = Open(from_path_), to = Open(to_path_);
  ASSERT_TRUE(from->state().Publish(Made("a", "", 1), false, 0).ok());
  ASSERT_TRUE(from->state().Publish(Made("a", "", 1), true, 0).ok());
  ASSERT_TRUE(to->state().Publish(Made("a", "", 2), false, 0).ok());
  DirectoryBackup::Counts counts;
  const absl::Status refused = Import(to->state(), Exported(from->state()), counts);
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_EQ((*to->state().Get("a", ""))->chunks, Made("a", "", 2).chunks);

  ASSERT_TRUE(from->state().Drop("a", "").ok());
  ASSERT_TRUE(from->state().TenantKeyOf("t", true).ok());
  ASSERT_TRUE(to->state().TenantKeyOf("t", true).ok());
  const absl::Status other = Import(to->state(), Exported(from->state()), counts);
  EXPECT_TRUE(absl::IsAlreadyExists(other)) << other;
}

}  // namespace
}  // namespace ckv
