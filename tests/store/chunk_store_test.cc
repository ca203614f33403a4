// Goal: a chunk that does not fit in memory is read again from its file, right or not at all; what
// was acknowledged is there after a restart; a chunk's rows are not evicted while they are read.

#include "store/chunk_store.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/store/store_fixture.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using Call = FaultFileSystem::Call;

struct ChunkStoreTest : StoreFixture {
  ChunkStoreTest() : StoreFixture(12, 4) {}
  // Compares the stripes' checksums too.
  absl::Status Read(const SmallChunk& chunk, std::string_view tenant = "") {
    CKV_RETURN_IF_ERROR(StoreFixture::Read(chunk, tenant));
    CKV_ASSIGN_OR_RETURN(const ChunkLocator locator,
                         store->table().Find(chunk.info.id, geometry, tenant));
    CKV_ASSIGN_OR_RETURN(const ChunkPin pin, store->Load(locator));
    const Chunk copy(pin.chunk().info(), &geometry, Copy(pin.chunk()));
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l) {
      const auto kept = pin.chunk().stripe_checksums(l);
      if (!std::equal(kept.begin(), kept.end(), copy.stripe_checksums(l).begin()))
        return absl::InternalError("other stripes than the rows have");
    }
    return absl::OkStatus();
  }
  Extent Copy(const Chunk& chunk) {
    Extent extent = *spare->Allocate(chunk.layout().total_bytes());
    for (uint32_t l = 0; l < geometry.tensor_count(); ++l) {
      std::memcpy(extent.bytes().data() + chunk.layout().begin(l), chunk.tensor(l).data(),
                  chunk.tensor(l).size());
    }
    return extent;
  }
  const std::unique_ptr<Arena> spare = *Arena::Create(1 << 20);
};

TEST_F(ChunkStoreTest, ThreeTimesWhatFitsIsAllReadable) {
  for (const SmallChunk& chunk : chunks) ASSERT_TRUE(Put(chunk).ok());
  EXPECT_EQ(store->stats().table.cold_count, 8u);
  EXPECT_EQ(store->stats().table.used_bytes, options.capacity_bytes);
  for (int round = 0; round < 3; ++round) {
    for (const SmallChunk& chunk : chunks) ASSERT_TRUE(Read(chunk).ok());
  }
  EXPECT_LE(store->stats().table.used_bytes, options.capacity_bytes);
  EXPECT_GE(store->stats().load_count, 16u);
}

TEST_F(ChunkStoreTest, ARestartFindsWhatWasAcknowledged) {
  for (const SmallChunk& chunk : chunks) ASSERT_TRUE(Put(chunk, "a").ok());
  EXPECT_EQ(Put(chunks[0], "b").code(), StatusCode::kAlreadyExists);
  ASSERT_TRUE(store->Keep(chunks[1].info.id, true).ok());
  ASSERT_TRUE(store->Drop(chunks[2].info.id).ok());
  Open();
  EXPECT_EQ(store->stats().table.chunk_count, 11u);
  EXPECT_EQ(store->stats().table.cold_count, 11u);
  for (const SmallChunk& chunk : chunks) {
    EXPECT_EQ(Read(chunk, "a").ok(), &chunk != &chunks[2]);
    EXPECT_EQ(Read(chunk, "b").ok(), &chunk == &chunks[0]);
    EXPECT_FALSE(Read(chunk).ok());
  }
  for (const ChunkListing& listing : store->table().List(std::nullopt, 100))
    EXPECT_EQ(listing.kept, listing.id == chunks[1].info.id);
}

// A put over a copy in memory only, as a replica keeper makes, returns AlreadyExists. The chunk is
// then durable: it is there after a restart. The copy alone is not.
TEST_F(ChunkStoreTest, APutOverACopyInMemoryIsDurable) {
  const auto copy = [&](const SmallChunk& chunk, std::string_view tenant) {
    auto whole = WriteSmallChunk(*store->BeginCopy(chunk.info, geometry, tenant), chunk);
    ASSERT_TRUE(store->InsertCopy(*std::move(whole), tenant).ok());
  };
  copy(chunks[0], "a");
  copy(chunks[1], "a");
  EXPECT_EQ(Put(chunks[0], "b").code(), StatusCode::kAlreadyExists);
  // A copy that is inserted while a put is in progress.
  ChunkPut put = *store->Begin(chunks[2].info, geometry, "b");
  copy(chunks[2], "a");
  for (uint32_t l = 0; l < geometry.tensor_count(); ++l)
    ASSERT_TRUE(put.Write(l, 0, chunks[2].layers[l]).ok());
  EXPECT_EQ(std::move(put).Finish().code(), StatusCode::kAlreadyExists);
  // It may become cold now.
  for (int i = 4; i < 8; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  Open();
  for (const char* tenant : {"a", "b"}) {
    EXPECT_TRUE(Read(chunks[0], tenant).ok()) << tenant;
    EXPECT_TRUE(Read(chunks[2], tenant).ok()) << tenant;
    EXPECT_FALSE(Read(chunks[1], tenant).ok());
  }
}

// A copy in memory has no file to save its mark beside. The mark is saved once the copy has one.
TEST_F(ChunkStoreTest, AMarkOnACopyInMemoryIsSavedWithItsFile) {
  const SmallChunk& chunk = chunks[0];
  auto whole = WriteSmallChunk(*store->BeginCopy(chunk.info, geometry, ""), chunk);
  ASSERT_TRUE(store->InsertCopy(*std::move(whole), "").ok());
  const absl::Status kept = store->Keep(chunk.info.id, true);
  EXPECT_TRUE(kept.ok()) << kept;
  EXPECT_TRUE(absl::IsFailedPrecondition(store->DropCopy(chunk.info.id)));
  EXPECT_EQ(Put(chunk).code(), StatusCode::kAlreadyExists);
  Open();
  EXPECT_TRUE(store->table().List(std::nullopt, 1).at(0).kept);
}

TEST_F(ChunkStoreTest, KeepsPinnedAndMarkedChunks) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  ASSERT_TRUE(store->Keep(chunks[0].info.id, true).ok());
  std::vector<ChunkPin> pins;
  for (int i = 1; i < 4; ++i) pins.push_back(*store->table().Pin(chunks[i].info.id, geometry));
  const absl::Status refused = Put(chunks[4]);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
  pins.pop_back();
  EXPECT_TRUE(Put(chunks[4]).ok());
  EXPECT_EQ(store->table().Pin(chunks[3].info.id, geometry).status().code(),
            StatusCode::kUnavailable);
  // While all memory is in use, a cold chunk cannot be read; it is still stored.
  const ChunkPin last = *store->table().Pin(chunks[4].info.id, geometry);
  EXPECT_EQ(Read(chunks[3]).code(), StatusCode::kResourceExhausted);
  pins.clear();
  EXPECT_TRUE(Read(chunks[3]).ok());
}

// If eviction cannot help against a limit, no hot chunk is evicted.
TEST_F(ChunkStoreTest, EvictsNothingForAnImpossiblePut) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Put(chunks[i], "t0").ok());
  const SmallChunk huge = MakeSmallChunk(geometry, 1000, 50);
  EXPECT_EQ(store->Begin(huge.info, geometry).status().code(), StatusCode::kResourceExhausted);
  for (size_t i = 1; i < ChunkLedger::kReaderCountMax; ++i)
    EXPECT_EQ(Put(chunks[0], absl::StrCat("t", i)).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Put(chunks[0], "one too many").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(store->stats().table.cold_count, 0u);
}

// Damage that two find at once is of the chunk that was there, not of one put again meanwhile.
TEST_F(ChunkStoreTest, KeepsAChunkThatWasPutAgain) {
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  Open();
  const ChunkLocator stale = *store->table().Find(chunks[0].info.id, geometry);
  test::FlipBits(FileOf(chunks[0]), -1000);
  EXPECT_EQ(Read(chunks[0]).code(), StatusCode::kDataLoss);
  ASSERT_TRUE(Put(chunks[0]).ok());
  EXPECT_EQ(store->Load(stale).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(Read(chunks[0]).ok());
  EXPECT_EQ(store->stats().damaged_count, 1u);
}

TEST_F(ChunkStoreTest, DamageIsFoundAtTheReadAndTheChunkIsGone) {
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  Open();
  test::FlipBits(FileOf(chunks[0]), -1000);
  fs::resize_file(FileOf(chunks[1]), 5000);
  fs::remove(FileOf(chunks[2]));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Read(chunks[i]).code(), StatusCode::kDataLoss) << i;
    EXPECT_EQ(Read(chunks[i]).code(), StatusCode::kNotFound) << i;
  }
  EXPECT_EQ(store->stats().damaged_count, 3u);
  EXPECT_TRUE(fs::exists(options.path + "/quarantine/" + chunks[0].info.id.ToHex()));
  EXPECT_TRUE(Read(chunks[3]).ok());
  // Put again, it is whole again.
  EXPECT_TRUE(Put(chunks[0]).ok());
  Open();
  EXPECT_TRUE(Read(chunks[0]).ok());
}

TEST_F(ChunkStoreTest, ADiskThatFailsIsNoDamage) {
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  Open();
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kRead ? absl::UnavailableError("input/output error") : absl::OkStatus();
  });
  EXPECT_EQ(Read(chunks[0]).code(), StatusCode::kUnavailable);
  files.set_hook({});
  EXPECT_TRUE(Read(chunks[0]).ok());
  EXPECT_EQ(store->stats().damaged_count, 0u);
}

// A full disk refuses the put, and only that; nothing of it is left.
TEST_F(ChunkStoreTest, AFullDiskRefusesThePut) {
  ASSERT_TRUE(Put(chunks[0]).ok());
  files.set_hook([](Call call, const std::string&) {
    return call == Call::kWrite ? absl::ResourceExhaustedError("no space left on device")
                                : absl::OkStatus();
  });
  const absl::Status refused = Put(chunks[1]);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.ToString().find("no space"), std::string::npos);
  EXPECT_TRUE(Read(chunks[0]).ok());
  EXPECT_EQ(Read(chunks[1]).code(), StatusCode::kNotFound);
  EXPECT_EQ(store->stats().table.used_bytes, kSmallChunkBytes);
  files.set_hook({});
  EXPECT_TRUE(Put(chunks[1]).ok());
}

TEST_F(ChunkStoreTest, WithoutAPathItIsMemoryOnly) {
  options.path.clear();
  Open();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  EXPECT_EQ(Put(chunks[4]).code(), StatusCode::kResourceExhausted);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Read(chunks[i]).ok());
  ASSERT_TRUE(store->Drop(chunks[0].info.id).ok());
  EXPECT_TRUE(Put(chunks[4]).ok());
  Open();
  EXPECT_EQ(store->stats().table.chunk_count, 0u);
}

TEST_F(ChunkStoreTest, MoreChunksThanTheTableMayHave) {
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Put(chunks[i]).ok());
  store.reset();
  options.chunk_count_max = 7;
  EXPECT_EQ(ChunkStore::Open(options).status().code(), StatusCode::kResourceExhausted);
  options.chunk_count_max = 8;
  Open();
  EXPECT_EQ(Put(chunks[8]).code(), StatusCode::kResourceExhausted);
}

// Method: three threads read all chunks in turns, of which a third fit, one puts and drops; every
// byte that is read is compared.
TEST_F(ChunkStoreTest, ReadersEvictionsAndPutsAtOnce) {
  for (const SmallChunk& chunk : chunks) ASSERT_TRUE(Put(chunk).ok());
  options.capacity_bytes = 8 * kSmallChunkBytes;  // room for what three readers and a writer hold
  Open();
  std::atomic<int> reads{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      while (!done) {
        const SmallChunk& chunk = chunks[random() % chunks.size()];
        const absl::Status status = Read(chunk);
        EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
        ++reads;
      }
    });
  }
  std::mt19937 random(9);
  for (int i = 0; i < 300 || reads < 1000; ++i) {
    const SmallChunk& chunk = chunks[random() % 3];
    if (store->Drop(chunk.info.id).ok()) continue;
    const absl::Status put = Put(chunk);
    EXPECT_TRUE(put.ok() || absl::IsResourceExhausted(put)) << put;
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->stats().damaged_count, 0u);
  EXPECT_EQ(store->stats().table.pin_count, 0u);
}

}  // namespace
}  // namespace ckv
