// Goal: kill -9 at any instant of a load loses no acknowledged chunk and leaves no half one (I3).
// Method: a separate process puts chunks into a store on a real disk and reports each that was
// acknowledged. It is killed 200 times, and after each time the store is opened and read.

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "store/chunk_store.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

constexpr uint32_t kTokens = 1500;  // 90 KB a chunk: many writes, so that kills fall between them
constexpr size_t kPieceBytes = 1000;

ChunkStoreOptions OptionsOf(const std::string& path) {
  ChunkStoreOptions options;
  options.path = path;
  options.capacity_bytes = 1 << 20;
  options.chunk_count_max = 1 << 14;
  options.scan_threads = 2;
  return options;
}

absl::Status Put(ChunkStore& store, const Geometry& geometry, uint32_t seed) {
  const SmallChunk chunk = MakeSmallChunk(geometry, kTokens, seed);
  CKV_ASSIGN_OR_RETURN(ChunkPut put, store.Begin(chunk.info, geometry));
  for (uint32_t l = 0; l < geometry.tensor_count(); ++l) {
    const std::span<const std::byte> rows = chunk.layers[l];
    for (size_t at = 0; at < rows.size(); at += kPieceBytes) {
      CKV_RETURN_IF_ERROR(
          put.Write(l, at, rows.subspan(at, std::min(kPieceBytes, rows.size() - at))));
    }
  }
  return std::move(put).Finish();
}

// The loader: never returns. Reports each chunk by its seed.
[[noreturn]] void Load(const std::string& path, uint32_t seed, int acknowledge_fd) {
  const auto store = ChunkStore::Open(OptionsOf(path));
  if (!store.ok()) _exit(2);
  for (;; ++seed) {
    if (!Put(**store, IndexedGeometry(), seed).ok()) _exit(3);
    if (write(acknowledge_fd, &seed, sizeof(seed)) != sizeof(seed)) _exit(4);
  }
}

TEST(ChunkStoreKill, TwoHundredTimesNothingAcknowledgedIsLost) {
  constexpr int kKills = kSanitized ? 20 : 200;
  const std::string path = test::TempPath("killed");
  const Geometry geometry = IndexedGeometry();
  std::mt19937 random(1);
  uint32_t next_seed = 0, acknowledged = 0, unfinished = 0;
  for (int kill_count = 0; kill_count < kKills; ++kill_count) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t loader = fork();
    if (loader == 0) {
      close(ends[0]);
      Load(path, next_seed, ends[1]);
    }
    close(ends[1]);
    // Killed this long after its first report, or even before that.
    const int wait_ms = static_cast<int>(random() % 30);
    pollfd readable = {.fd = ends[0], .events = POLLIN, .revents = 0};
    const int first_word_ms = kill_count % 10 == 0 ? 0 : 20000;
    ASSERT_GE(poll(&readable, 1, first_word_ms), 0);
    const Instant until = Clock::Real()->Now() + std::chrono::milliseconds(wait_ms);
    while (Clock::Real()->Now() < until) continue;
    ASSERT_EQ(kill(loader, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(loader, &status, 0), loader);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the loader failed with " << WEXITSTATUS(status);
    const uint32_t first = next_seed;
    uint32_t seed = 0;
    while (read(ends[0], &seed, sizeof(seed)) == sizeof(seed)) next_seed = seed + 1;
    close(ends[0]);
    acknowledged += next_seed - first;

    ScanReport report;
    const auto store = ChunkStore::Open(OptionsOf(path), &report);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(report.quarantined_count, 0u) << report.first_quarantined;
    EXPECT_EQ(report.refused_count, 0u);
    unfinished += static_cast<uint32_t>(report.unfinished_count);
    for (uint32_t s = first; s < next_seed; ++s) {
      const SmallChunk chunk = MakeSmallChunk(geometry, kTokens, s);
      const auto locator = (*store)->table().Find(chunk.info.id, geometry);
      ASSERT_TRUE(locator.ok()) << "chunk " << s << " of kill " << kill_count << " was lost";
      const auto pin = (*store)->Load(*locator);
      ASSERT_TRUE(pin.ok()) << pin.status();
      for (uint32_t l = 0; l < geometry.tensor_count(); ++l) {
        const auto rows = pin->chunk().tensor(l);
        ASSERT_TRUE(std::equal(rows.begin(), rows.end(), chunk.layers[l].begin()));
      }
    }
    // A chunk that was whole but not reported yet may be there. The next loader puts it again.
    const uint64_t there = (*store)->stats().table.chunk_count;
    EXPECT_GE(there, acknowledged);
    EXPECT_LE(there, acknowledged + 1);
    if (there > acknowledged) {
      const SmallChunk untold = MakeSmallChunk(geometry, kTokens, next_seed);
      ASSERT_TRUE((*store)->Drop(untold.info.id).ok());
    }
  }
  EXPECT_GE(acknowledged, kKills * 9u / 10);     // all loaders but each tenth reported a chunk
  EXPECT_GT(unfinished, kSanitized ? 0u : 20u);  // kills did fall into puts
}

}  // namespace
}  // namespace ckv
