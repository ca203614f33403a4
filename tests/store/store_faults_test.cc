// Goal: a store that refuses puts, or whose device fails, reports that for as long as it is true.
// Method: outcomes of puts and reads as a store notes them, with a clock that the test advances;
// then a store over a file system that fails.

#include "store/store_faults.h"

#include <sys/stat.h>

#include <filesystem>

#include "gtest/gtest.h"
#include "store/disk/disk_space.h"
#include "tests/store/store_fixture.h"

namespace ckv {
namespace {

const ChunkId kChunk{};
const absl::Status kFull = absl::ResourceExhaustedError("arena: no room for 100 bytes");

TEST(StoreFaults, APutThatFoundNoMemoryIsAFaultUntilThereIsRoom) {
  ManualClock clock;
  StoreFaults faults("", &clock);
  faults.NotePut(kChunk, absl::OkStatus(), 100, 900);
  EXPECT_EQ(faults.Errors(1000).fault, StoreFault::kNone);
  faults.NotePut(kChunk, kFull, 100, 1000);
  EXPECT_EQ(faults.Errors(1000).fault, StoreFault::kFull);
  EXPECT_EQ(faults.Errors(950).fault_text, "arena: no room for 100 bytes");
  EXPECT_EQ(faults.Errors(900).fault, StoreFault::kNone) << "something was dropped";
  EXPECT_EQ(faults.Errors(1000).fault, StoreFault::kNone);
  EXPECT_EQ(faults.Errors(1000).put_count, 1u);
}

TEST(StoreFaults, APutThatSucceedsEndsAnyFault) {
  ManualClock clock;
  StoreFaults faults("", &clock);
  faults.NotePut(kChunk, absl::UnavailableError("Input/output error"), 100, 0);
  clock.Advance(std::chrono::hours(1));
  EXPECT_EQ(faults.Errors(0).fault, StoreFault::kFailing) << "nobody has tried again";
  faults.NotePut(kChunk, absl::OkStatus(), 100, 0);
  EXPECT_EQ(faults.Errors(0).fault, StoreFault::kNone);
  EXPECT_EQ(faults.Errors(0).fault_text, "");
}

TEST(StoreFaults, FaultsOfThePutterAreNoFaultOfTheStore) {
  ManualClock clock;
  StoreFaults faults("", &clock);
  for (const absl::Status& status :
       {absl::AlreadyExistsError(""), absl::InvalidArgumentError(""), absl::DataLossError(""),
        absl::AbortedError(""), absl::CancelledError("")}) {
    faults.NotePut(kChunk, status, 100, 0);
    EXPECT_EQ(faults.Errors(0).fault, StoreFault::kNone) << status;
  }
  EXPECT_EQ(faults.Errors(0).total(), 0u);
  // Nor does it end a fault.
  faults.NotePut(kChunk, kFull, 100, 1000);
  faults.NotePut(kChunk, absl::InvalidArgumentError(""), 100, 1000);
  EXPECT_EQ(faults.Errors(1000).fault, StoreFault::kFull);
}

TEST(StoreFaults, MemoryOfAStoreWithADiskIsOnlyBusy) {
  ManualClock clock;
  StoreFaults faults(test::TempPath("busy"), &clock);
  faults.NotePut(kChunk, kFull, 100, 1000);
  EXPECT_EQ(faults.Errors(1000).fault, StoreFault::kFull);
  clock.Advance(StoreFaults::kBusyFor + std::chrono::seconds(1));
  EXPECT_EQ(faults.Errors(1000).fault, StoreFault::kNone);
}

TEST(StoreFaults, AChunkIsUnreadableUntilItIsRead) {
  ManualClock clock;
  StoreFaults faults("", &clock);
  faults.NoteRead(kChunk, absl::UnavailableError("Input/output error"));
  faults.NoteRead(kChunk, absl::UnavailableError("Input/output error"));
  EXPECT_EQ(faults.Errors(0).read_count, 2u);
  EXPECT_EQ(faults.Errors(0).unreadable_count, 1u);
  faults.NoteRead(kChunk, absl::DataLossError("it is damaged, and was read"));
  EXPECT_EQ(faults.Errors(0).unreadable_count, 0u);
  faults.NoteCheck(kChunk, /*is_readable=*/false);
  EXPECT_EQ(faults.Errors(0).unreadable_count, 1u);
  faults.NoteCheck(kChunk, /*is_readable=*/true);
  EXPECT_EQ(faults.Errors(0).unreadable_count, 0u);
  EXPECT_EQ(faults.Errors(0).check_count, 1u);
}

TEST(DiskSpace, IsThatOfTheFolder) {
  EXPECT_EQ(DiskSpaceOf("").total_bytes, 0u);
  EXPECT_EQ(DiskSpaceOf("/no/such/folder").total_bytes, 0u);
  const DiskSpace space = DiskSpaceOf(testing::TempDir());
  EXPECT_GT(space.total_bytes, 0u);
  EXPECT_LE(space.free_bytes, space.total_bytes);
  EXPECT_FALSE(space.read_only);
  EXPECT_FALSE(HasSpaceForFile("", 1).has_value());
  EXPECT_FALSE(HasSpaceForFile("/no/such/folder", 1).has_value());
  EXPECT_EQ(HasSpaceForFile(testing::TempDir(), 1), true);
  EXPECT_EQ(HasSpaceForFile(testing::TempDir(), space.total_bytes + 1), false);
}

struct FailingStoreTest : StoreFixture {
  FailingStoreTest() : StoreFixture(/*chunk_count=*/3, /*hot_count=*/1) {}
};

TEST_F(FailingStoreTest, ReportsItsDevice) {
  ASSERT_TRUE(Put(chunks[0]).ok());
  EXPECT_EQ(store->stats().errors.total(), 0u);
  files.set_hook([](FaultFileSystem::Call call, const std::string&) {
    return call == FaultFileSystem::Call::kWrite
               ? absl::ResourceExhaustedError("No space left on device")
               : absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsResourceExhausted(Put(chunks[1])));
  EXPECT_EQ(store->stats().errors.fault, StoreFault::kFull);
  EXPECT_GE(store->stats().errors.put_count, 1u);
  files.set_hook({});
  ASSERT_TRUE(Put(chunks[1]).ok());
  EXPECT_EQ(store->stats().errors.fault, StoreFault::kNone);

  // The first one is cold now, for memory has room for one.
  files.set_hook([](FaultFileSystem::Call call, const std::string&) {
    return call == FaultFileSystem::Call::kRead ? absl::UnavailableError("Input/output error")
                                                : absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsUnavailable(Read(chunks[0])));
  EXPECT_EQ(store->stats().errors.read_count, 1u);
  EXPECT_EQ(store->stats().errors.unreadable_count, 1u);
  files.set_hook({});
  EXPECT_TRUE(Read(chunks[0]).ok());
  EXPECT_EQ(store->stats().errors.unreadable_count, 0u);
}

TEST_F(FailingStoreTest, AChunkThatIsDroppedMeanwhileIsNotUnreadable) {
  ASSERT_TRUE(Put(chunks[0]).ok());
  ASSERT_TRUE(Put(chunks[1]).ok());  // the first one is cold now
  const ChunkId id = chunks[0].info.id;
  files.set_hook([&](FaultFileSystem::Call call, const std::string&) {
    if (call != FaultFileSystem::Call::kRead) return absl::OkStatus();
    store->Drop(id).IgnoreError();
    return absl::UnavailableError("Input/output error");
  });
  EXPECT_TRUE(absl::IsUnavailable(store->InfoOf(id, geometry, "").status()));
  EXPECT_FALSE(store->table().Contains(id));
  EXPECT_EQ(store->stats().errors.read_count, 1u);
  EXPECT_EQ(store->stats().errors.unreadable_count, 0u);
}

// There would never be room for it, so the fault would never end.
TEST_F(FailingStoreTest, AChunkThatFitsNowhereIsNoFault) {
  const SmallChunk large = MakeSmallChunk(geometry, 1500, /*seed=*/9);
  EXPECT_TRUE(absl::IsResourceExhausted(Put(large)));
  const StoreErrors errors = store->stats().errors;
  EXPECT_EQ(errors.fault, StoreFault::kNone);
  EXPECT_EQ(errors.put_count, 1u);
}

// The folder was removed, or it is on a volume that is no longer mounted.
TEST_F(FailingStoreTest, NoticesThatItsFolderIsGone) {
  ASSERT_TRUE(Put(chunks[0]).ok());
  ASSERT_EQ(store->stats().errors.fault, StoreFault::kNone);
  std::filesystem::rename(options.path, options.path + ".away");
  StoreErrors errors = store->stats().errors;
  EXPECT_EQ(errors.fault, StoreFault::kFailing) << "before anybody puts a chunk";
  EXPECT_NE(errors.fault_text.find(options.path + " is not the one that was opened"),
            std::string::npos)
      << errors.fault_text;
  EXPECT_TRUE(absl::IsUnavailable(Put(chunks[0]))) << "its file is not where it was";
  EXPECT_FALSE(Put(chunks[1]).ok());
  std::filesystem::rename(options.path + ".away", options.path);
  ASSERT_TRUE(Put(chunks[1]).ok());
  EXPECT_EQ(store->stats().errors.fault, StoreFault::kNone);
  EXPECT_TRUE(Read(chunks[0]).ok());
}

// The chunks are in the folder that was moved away, and are not damaged.
TEST_F(FailingStoreTest, ColdChunksAreThereAgainWhenTheirFolderIs) {
  ASSERT_TRUE(Put(chunks[0]).ok());
  ASSERT_TRUE(Put(chunks[1]).ok());  // the first one is cold now
  std::filesystem::rename(options.path, options.path + ".away");
  EXPECT_TRUE(absl::IsUnavailable(Read(chunks[0])));
  EXPECT_TRUE(absl::IsUnavailable(store->InfoOf(chunks[0].info.id, geometry, "").status()));
  std::filesystem::rename(options.path + ".away", options.path);
  EXPECT_TRUE(Read(chunks[0]).ok());
}

TEST_F(FailingStoreTest, CountsChunksThatAppearAndDisappear) {
  const uint64_t before = store->table().change_count();
  ASSERT_TRUE(Put(chunks[0]).ok());
  const uint64_t there = store->table().change_count();
  EXPECT_GT(there, before);
  ASSERT_TRUE(Read(chunks[0]).ok());
  EXPECT_EQ(store->table().change_count(), there);
  ASSERT_TRUE(store->Drop(chunks[0].info.id).ok());
  EXPECT_GT(store->table().change_count(), there);
}

}  // namespace
}  // namespace ckv
