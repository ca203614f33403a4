// Goal: a check of a chunk in place finds every flipped bit, in memory and in its file, and repairs
// what it can. It never takes a failing device, or a concurrent reader, for damage.

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "store/chunk_store.h"
#include "tests/store/store_fixture.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using Call = FaultFileSystem::Call;
using Health = ChunkCheck::Health;

struct ChunkStoreVerifyTest : StoreFixture {
  ChunkStoreVerifyTest() : StoreFixture(8, 4) {}
  absl::StatusOr<ChunkCheck> Verify(const SmallChunk& chunk) {
    CKV_ASSIGN_OR_RETURN(const ChunkLocator locator, store->table().Locate(chunk.info.id));
    return store->Verify(locator, [](uint64_t) { return true; });
  }
  Health HealthOf(const SmallChunk& chunk) {
    const auto check = Verify(chunk);
    EXPECT_TRUE(check.ok()) << check.status();
    EXPECT_EQ(check->why.empty(), check->health == Health::kWhole) << check->why;
    return check->health;
  }
  // Flips a bit of the hot chunk's last row.
  void FlipMemory(const SmallChunk& chunk) {
    const ChunkPin pin = *store->table().Pin(*store->table().Locate(chunk.info.id));
    const std::span<const std::byte> rows = pin.chunk().tensor(geometry.tensor_count() - 1);
    const_cast<std::byte&>(rows.back()) ^= std::byte{16};
  }
};

TEST_F(ChunkStoreVerifyTest, FindsWholeChunksWholeHotAndCold) {
  for (const SmallChunk& chunk : chunks) ASSERT_TRUE(Put(chunk).ok());
  for (const SmallChunk& chunk : chunks) {
    const auto check = Verify(chunk);
    ASSERT_TRUE(check.ok()) << check.status();
    EXPECT_EQ(check->health, Health::kWhole) << check->why;
    EXPECT_EQ(check->rows_checksum, DigestOf(chunk.info.tensor_checksums));
    const uint64_t rows = 3 * 2800;
    const uint64_t header = fs::file_size(FileOf(chunk)) - kSmallChunkBytes;
    EXPECT_EQ(check->bytes_checked, header + rows + (IsHot(chunk) ? rows : 0));
  }
  EXPECT_EQ(store->stats().table.cold_count, 4u) << "a check makes nothing hot, and nothing cold";
  EXPECT_EQ(store->stats().load_count, 0u);
  EXPECT_EQ(Verify(MakeSmallChunk(geometry, 9, 99)).status().code(), StatusCode::kNotFound);
}

TEST_F(ChunkStoreVerifyTest, AnEmptyChunkIsWhole) {
  const SmallChunk empty = MakeSmallChunk(geometry, 0, 50);
  ASSERT_TRUE(Put(empty).ok());
  EXPECT_EQ(HealthOf(empty), Health::kWhole);
}

// Method: a bit at each of 3,000 offsets, all of the header's first part, rows and padding among
// them; memory has the rows, so the file is whole again each time.
TEST_F(ChunkStoreVerifyTest, FindsEveryFlippedBitOfAFileAndRepairsItFromMemory) {
  const SmallChunk& chunk = chunks[0];
  ASSERT_TRUE(Put(chunk, "a").ok());
  EXPECT_EQ(Put(chunk, "b").code(), StatusCode::kAlreadyExists);
  const uint64_t size = fs::file_size(FileOf(chunk));
  std::mt19937 random(1);
  for (uint64_t i = 0; i < 3000; ++i) {
    const uint64_t offset = i < 400 ? i : random() % size;
    FlipFile(chunk, offset);
    ASSERT_EQ(HealthOf(chunk), Health::kHealed) << offset;
    if (i % 100 == 0) {
      ASSERT_EQ(HealthOf(chunk), Health::kWhole) << offset;
    }
  }
  EXPECT_EQ(store->stats().healed_count, 3000u);
  EXPECT_EQ(store->stats().damaged_count, 0u);
  Open();
  EXPECT_TRUE(Read(chunk, "a").ok());
  EXPECT_TRUE(Read(chunk, "b").ok());
  EXPECT_EQ(Read(chunk, "c").code(), StatusCode::kNotFound);
}

TEST_F(ChunkStoreVerifyTest, RewritesAMissingOrCutFileFromMemory) {
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  fs::remove(FileOf(chunks[0]));
  fs::resize_file(FileOf(chunks[1]), 5000);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(HealthOf(chunks[i]), Health::kHealed);
  Open();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(Read(chunks[i]).ok());
}

TEST_F(ChunkStoreVerifyTest, QuarantinesAndReportsDamageWithoutAnotherCopy) {
  for (const SmallChunk& chunk : chunks) ASSERT_TRUE(Put(chunk, "a").ok());
  ASSERT_TRUE(store->Keep(chunks[0].info.id, true).ok());
  Open();  // all cold
  FlipFile(chunks[0], fs::file_size(FileOf(chunks[0])) - 1500);
  EXPECT_EQ(HealthOf(chunks[0]), Health::kDamaged);
  EXPECT_EQ(Verify(chunks[0]).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(fs::exists(options.path + "/quarantine/" + chunks[0].info.id.ToHex()));
  EXPECT_EQ(store->stats().damaged_count, 1u);
  std::vector<LostChunk> lost = store->TakeLost();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].id, chunks[0].info.id);
  EXPECT_EQ(lost[0].readers, std::vector<std::string>{"a"});
  EXPECT_TRUE(lost[0].kept);
  EXPECT_TRUE(store->TakeLost().empty());
  // A request's read finds damage in another chunk.
  FlipFile(chunks[1], fs::file_size(FileOf(chunks[1])) - 1500);
  EXPECT_EQ(Read(chunks[1], "a").code(), StatusCode::kDataLoss);
  ASSERT_EQ((lost = store->TakeLost()).size(), 1u);
  EXPECT_EQ(lost[0].id, chunks[1].info.id);
}

// TakeLost returns what the folder's scan finds damaged, and quarantined chunks that no earlier
// process restored.
TEST_F(ChunkStoreVerifyTest, ReportsQuarantinedFilesAtTheStart) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  store.reset();
  FlipFile(chunks[0], 300);
  FlipFile(chunks[1], 300);
  Open();
  std::vector<LostChunk> lost = store->TakeLost();
  ASSERT_EQ(lost.size(), 2u);
  EXPECT_TRUE(lost[0].readers.empty());
  ASSERT_TRUE(Put(chunks[0]).ok());
  Open();
  ASSERT_EQ((lost = store->TakeLost()).size(), 1u);
  EXPECT_EQ(lost[0].id, chunks[1].info.id);
}

TEST_F(ChunkStoreVerifyTest, ReleasesDamagedMemoryAndReadsAgain) {
  ASSERT_TRUE(Put(chunks[0], "a").ok());
  const ChunkLocator handle = *store->table().Locate(chunks[0].info.id);
  const ChunkPin reader = *store->table().Pin(handle);  // of a request under way
  FlipMemory(chunks[0]);
  EXPECT_EQ(HealthOf(chunks[0]), Health::kHealed);
  EXPECT_EQ(store->table().Pin(handle).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(IsHot(chunks[0]));
  EXPECT_TRUE(Read(chunks[0], "a").ok());
  EXPECT_EQ(Read(chunks[0]).code(), StatusCode::kNotFound) << "still a's alone";
  EXPECT_EQ(HealthOf(chunks[0]), Health::kWhole);
  EXPECT_EQ(store->stats().healed_count, 1u);
  EXPECT_TRUE(store->TakeLost().empty());
}

TEST_F(ChunkStoreVerifyTest, FactsOfAChunkOutliveItsDamagedMemory) {
  const ChunkId& id = chunks[0].info.id;
  ChunkPut put = *store->Begin(chunks[0].info, geometry, "a");
  put.set_ttl(std::chrono::seconds(5));
  for (uint32_t l = 0; l < geometry.tensor_count(); ++l)
    ASSERT_TRUE(put.Write(l, 0, chunks[0].layers[l]).ok());
  ASSERT_TRUE(std::move(put).Finish().ok());
  ASSERT_TRUE(store->Keep(id, true).ok());
  const auto facts = store->table().ledger().FactsOf(id);
  FlipMemory(chunks[0]);
  EXPECT_EQ(HealthOf(chunks[0]), Health::kHealed);
  EXPECT_EQ(store->table().ledger().FactsOf(id), facts);
}

// A tenant that could read damaged rows may not read those that are put under the same id later.
TEST_F(ChunkStoreVerifyTest, APutAfterDamageBelongsToItsOwnTenant) {
  for (const std::string_view tenant : {"a", "b"}) (void)Put(chunks[0], tenant);
  ASSERT_TRUE(store->Keep(chunks[0].info.id, true).ok());
  Open();
  FlipFile(chunks[0], 1000);
  EXPECT_EQ(HealthOf(chunks[0]), Health::kDamaged);
  ASSERT_TRUE(Put(chunks[0], "c").ok());
  for (int restart = 0; restart < 2; ++restart) {
    EXPECT_TRUE(Read(chunks[0], "c").ok());
    EXPECT_EQ(Read(chunks[0], "a").code(), StatusCode::kNotFound);
    EXPECT_EQ(Read(chunks[0], "b").code(), StatusCode::kNotFound);
    EXPECT_FALSE(store->table().List(std::nullopt, 1)[0].kept);
    Open();
  }
}

// A mark that is set while damage is examined stays, in memory and on disk.
TEST_F(ChunkStoreVerifyTest, AMarkSetMeanwhileStays) {
  ASSERT_TRUE(Put(chunks[0], "a").ok());
  FlipMemory(chunks[0]);
  std::thread keeper;
  int reads = 0;
  // After damage was found, the file is read again with its lock.
  files.set_hook([&](Call call, const std::string&) {
    if (call == Call::kRead && ++reads == 4) {
      keeper = std::thread([&] { EXPECT_TRUE(store->Keep(chunks[0].info.id, true).ok()); });
      while (!store->table().List(std::nullopt, 1)[0].kept) std::this_thread::yield();
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(HealthOf(chunks[0]), Health::kHealed);
  ASSERT_TRUE(keeper.joinable());
  keeper.join();
  files.set_hook(nullptr);
  EXPECT_FALSE(IsHot(chunks[0]));
  EXPECT_TRUE(store->table().List(std::nullopt, 1)[0].kept);
  Open();
  EXPECT_TRUE(store->table().List(std::nullopt, 1)[0].kept);
  EXPECT_TRUE(Read(chunks[0], "a").ok());
}

TEST_F(ChunkStoreVerifyTest, LosesAChunkWithBothCopiesDamaged) {
  ASSERT_TRUE(Put(chunks[0]).ok());
  FlipMemory(chunks[0]);
  FlipFile(chunks[0], 300);
  EXPECT_EQ(HealthOf(chunks[0]), Health::kDamaged);
  EXPECT_EQ(Read(chunks[0]).code(), StatusCode::kNotFound);
  EXPECT_EQ(store->TakeLost().size(), 1u);
  EXPECT_EQ(store->stats().table.used_bytes, 0u);
}

TEST_F(ChunkStoreVerifyTest, WithoutAFolderDamagedMemoryIsGone) {
  options.path.clear();
  Open();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  FlipMemory(chunks[0]);
  EXPECT_EQ(HealthOf(chunks[0]), Health::kDamaged);
  EXPECT_EQ(HealthOf(chunks[1]), Health::kWhole);
  EXPECT_EQ(store->TakeLost().size(), 1u);
}

TEST_F(ChunkStoreVerifyTest, ADeviceThatFailsIsNoDamage) {
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  const SmallChunk& hot = chunks[7];
  const SmallChunk& cold = chunks[0];
  ASSERT_TRUE(IsHot(hot) && !IsHot(cold));
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kRead ? absl::UnavailableError("input/output error") : absl::OkStatus();
  });
  EXPECT_EQ(HealthOf(hot), Health::kUnreadable);
  EXPECT_EQ(HealthOf(cold), Health::kUnreadable);
  // Rows that are known to be wrong are still not used for answers.
  FlipMemory(hot);
  EXPECT_EQ(HealthOf(hot), Health::kUnreadable);
  EXPECT_FALSE(IsHot(hot));
  files.set_hook({});
  EXPECT_EQ(store->stats().damaged_count, 0u);
  for (const SmallChunk& chunk : chunks) EXPECT_TRUE(Read(chunk).ok());
}

TEST_F(ChunkStoreVerifyTest, AFileThatCannotBeWrittenAgainLeavesTheRowsInMemory) {
  ASSERT_TRUE(Put(chunks[0]).ok());
  FlipFile(chunks[0], 300);
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kWrite ? absl::ResourceExhaustedError("no space left on device")
                                : absl::OkStatus();
  });
  const auto check = Verify(chunks[0]);
  ASSERT_TRUE(check.ok());
  EXPECT_EQ(check->health, Health::kUnreadable);
  EXPECT_NE(check->why.find("no space"), std::string::npos) << check->why;
  EXPECT_TRUE(Read(chunks[0]).ok());
  files.set_hook({});
  // Nor are its rows evicted for other chunks until there is a whole file again, not even once a
  // mark is lifted from it.
  for (const bool keep : {true, false}) ASSERT_TRUE(store->Keep(chunks[0].info.id, keep).ok());
  for (int i = 1; i < 8; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  EXPECT_TRUE(IsHot(chunks[0]));
  EXPECT_EQ(HealthOf(chunks[0]), Health::kHealed);
  for (const SmallChunk& chunk : chunks) EXPECT_TRUE(Read(chunk).ok());
}

TEST_F(ChunkStoreVerifyTest, ReadsInStepsAndStopsOnRequest) {
  options.capacity_bytes = 8 << 20;
  Open();
  const SmallChunk chunk = MakeSmallChunk(geometry, 40'000, 60);  // 800 KB a layer
  ASSERT_TRUE(Put(chunk).ok());
  const ChunkLocator locator = *store->table().Locate(chunk.info.id);
  std::vector<uint64_t> steps;
  const auto whole = store->Verify(locator, [&](uint64_t bytes) {
    EXPECT_EQ(store->stats().table.pin_count, 0u) << "nothing is pinned over a wait";
    steps.push_back(bytes);
    return true;
  });
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(steps.size(), 2 * 3 * (3 + 2u) + 1) << "and the header";
  EXPECT_LE(*std::max_element(steps.begin(), steps.end()), kVerifyStepBytes);
  for (const size_t stop_at : {size_t{0}, size_t{5}, size_t{12}}) {
    size_t count = 0;
    const auto stopped = store->Verify(locator, [&](uint64_t) { return count++ < stop_at; });
    EXPECT_EQ(stopped.status().code(), StatusCode::kCancelled);
    EXPECT_EQ(count, stop_at + 1);
  }
  const SmallChunk filler = MakeSmallChunk(geometry, 85'000, 61);  // 7.1 of 8 MB
  // A chunk that becomes cold meanwhile is checked in its file alone. A dropped one is NotFound.
  size_t count = 0;
  const auto evicted = store->Verify(locator, [&](uint64_t) {
    if (count++ == 1) {
      EXPECT_TRUE(store->Begin(filler.info, geometry).ok());  // memory for it, and no more of it
    }
    return true;
  });
  ASSERT_TRUE(evicted.ok());
  EXPECT_EQ(evicted->health, Health::kWhole) << evicted->why;
  EXPECT_EQ(count, 2 + 1 + 15u);
  ASSERT_TRUE(Read(chunk).ok());
  const auto dropped = store->Verify(locator, [&](uint64_t) {
    store->Drop(chunk.info.id).IgnoreError();
    return true;
  });
  EXPECT_EQ(dropped.status().code(), StatusCode::kNotFound);
}

// Whether the page of the file's byte is in the system's memory; nullopt if the system does not
// report it. mincore reads nothing: a read with RWF_NOWAIT begins to read ahead, and finds what it
// has read itself if the device is fast.
std::optional<bool> Remembered(const std::string& path, uint64_t offset) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const mapped =
      mmap(nullptr, page, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset / page * page));
  close(fd);
  if (mapped == MAP_FAILED) return std::nullopt;
  unsigned char resident = 0;
  const int failed = mincore(mapped, page, &resident);
  munmap(mapped, page);
  if (failed != 0) return std::nullopt;
  return (resident & 1) != 0;
}

// A page that the system has cached proves nothing about the device, so a check drops it first. Nor
// does a check leave its pages in memory, where they would displace those that requests use.
TEST_F(ChunkStoreVerifyTest, ReadsTheDeviceAndLeavesNothingInMemory) {
  options.files = FileSystem::Real();
  Open();
  ASSERT_TRUE(Put(chunks[0]).ok());
  const uint64_t last = fs::file_size(FileOf(chunks[0])) - 100;
  if (Remembered(FileOf(chunks[0]), last) != true)
    GTEST_SKIP() << "this file system does not say; to run it: a TMPDIR on ext4 or xfs";
  ASSERT_EQ(HealthOf(chunks[0]), Health::kWhole);
  const std::optional<bool> after = Remembered(FileOf(chunks[0]), last);
  struct statfs system = {};
  ASSERT_EQ(statfs(options.path.c_str(), &system), 0);
  if (system.f_type == TMPFS_MAGIC)
    GTEST_SKIP() << "a file system without a device; to run it: a TMPDIR on a disk";
  EXPECT_EQ(after, false);
}

// Method: two threads check all chunks in turns while others read, evict, put and drop.
TEST_F(ChunkStoreVerifyTest, ChecksDuringReadsEvictionsAndPuts) {
  for (const SmallChunk& chunk : chunks) ASSERT_TRUE(Put(chunk).ok());
  std::atomic<int> checks{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      while (!done) {
        const auto check = Verify(chunks[random() % chunks.size()]);
        if (check.ok()) {
          EXPECT_EQ(check->health, Health::kWhole) << check->why;
        } else {
          EXPECT_TRUE(absl::IsNotFound(check.status())) << check.status();
        }
        ++checks;
      }
    });
  }
  std::mt19937 random(9);
  for (int i = 0; i < 300 || checks < 500; ++i) {
    const absl::Status read = Read(chunks[random() % chunks.size()]);
    EXPECT_TRUE(read.ok() || absl::IsNotFound(read)) << read;
    const SmallChunk& chunk = chunks[random() % 3];
    if (store->Drop(chunk.info.id).ok()) continue;
    const absl::Status put = Put(chunk);
    EXPECT_TRUE(put.ok() || absl::IsResourceExhausted(put)) << put;
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->stats().damaged_count + store->stats().healed_count, 0u);
  EXPECT_TRUE(store->TakeLost().empty());
}

}  // namespace
}  // namespace ckv
