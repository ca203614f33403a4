// Question: what do durability, checksums and tiers cost compared with the disk itself? Bounds: a
// put writes each byte once and hashes it twice (37 GB/s from cache), so the disk limits it; a cold
// read hashes each byte once after a pread from the page cache, the hardest floor there is; a
// restart opens every file once, some 20 us each on one core.
//
// In the folder that CKV_BENCH_FOLDER names, else the temporary one: name one on the disk that
// matters.

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "store/chunk_store.h"
#include "store/formats/import.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;

std::string NewFolder() {
  const char* base = std::getenv("CKV_BENCH_FOLDER");
  std::string path = absl::StrCat(base == nullptr ? "/tmp" : base, "/ckv_store_bench.XXXXXX");
  CKV_CHECK(mkdtemp(path.data()) != nullptr);
  return path;
}

double SecondsSince(Instant begin) { return double((Clock::Real()->Now() - begin).count()) / 1e9; }

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A chunk of DeepSeek-V2-Lite: 2048 tokens x 27 layers of 1152 bytes, 63.7 MB.
struct LargeChunk {
  explicit LargeChunk(uint32_t seed) {
    geometry = *NamedGeometry("deepseek-v2-lite");
    geometry.revision = "bench";
    chunk = MakeSmallChunk(geometry, 2048, seed);
  }
  absl::Status Put(ChunkStore& store) const {
    CKV_ASSIGN_OR_RETURN(ChunkPut put, store.Begin(chunk.info, geometry));
    constexpr size_t kMessageBytes = 1 << 20;  // as gRPC delivers them
    for (uint32_t l = 0; l < geometry.layers; ++l) {
      const std::span<const std::byte> rows = chunk.layers[l];
      for (size_t at = 0; at < rows.size(); at += kMessageBytes) {
        CKV_RETURN_IF_ERROR(
            put.Write(l, at, rows.subspan(at, std::min(kMessageBytes, rows.size() - at))));
      }
    }
    return std::move(put).Finish();
  }
  size_t bytes() const { return ChunkLayout(geometry, 2048).total_bytes(); }

  Geometry geometry;
  SmallChunk chunk;
};

// The same bytes into one file, one after another, then fsync.
double PlainWriteSeconds(const std::string& path, const LargeChunk& chunk) {
  const Instant begin = Clock::Real()->Now();
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0640);
  CKV_CHECK(fd >= 0);
  for (const std::vector<std::byte>& layer : chunk.chunk.layers)
    CKV_CHECK(write(fd, layer.data(), layer.size()) == static_cast<ssize_t>(layer.size()));
  CKV_CHECK(fsync(fd) == 0);
  close(fd);
  return SecondsSince(begin);
}

// Puts and plain writes in turns; returns the median of each.
void BM_Load(benchmark::State& state) {
  const std::string path = NewFolder();
  const absl::Cleanup remove = [&] { fs::remove_all(path); };
  const LargeChunk chunk(1);
  ChunkStoreOptions options;
  options.path = path + "/store";
  options.capacity_bytes = 2 * chunk.bytes();
  const auto store = *ChunkStore::Open(options);
  std::vector<double> put, plain;
  for (auto _ : state) {
    for (int i = 0; i < 7; ++i) {
      plain.push_back(PlainWriteSeconds(path + "/plain", chunk));
      const Instant begin = Clock::Real()->Now();
      CKV_CHECK(chunk.Put(*store).ok());
      put.push_back(SecondsSince(begin));
      CKV_CHECK(store->Drop(chunk.chunk.info.id).ok());
    }
  }
  state.counters["ratio"] = Median(plain) / Median(put);
  state.counters["plain_GBps"] = double(chunk.bytes()) / Median(plain) / 1e9;
}
BENCHMARK(BM_Load)->Iterations(1)->Unit(benchmark::kMillisecond);

// Afterwards nothing of the file is in the system's memory.
void Invalidate(int fd) { CKV_CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0); }

// Cold chunks made hot, and a pread of their files, in turns; both from the device, or both from
// the page cache.
void BM_ColdRead(benchmark::State& state) {
  const bool from_device = state.range(0) == 1;
  const std::string path = NewFolder();
  const absl::Cleanup remove = [&] { fs::remove_all(path); };
  const LargeChunk chunk(1), other(2);
  ChunkStoreOptions options;
  options.path = path + "/store";
  options.capacity_bytes = chunk.bytes() + chunk.bytes() / 2;
  const auto store = *ChunkStore::Open(options);
  CKV_CHECK(chunk.Put(*store).ok());
  const auto locator = *store->table().Find(chunk.chunk.info.id, chunk.geometry);
  const std::string file = test::ChunkFileOf(options.path, chunk.chunk.info.id);
  const int fd = open(file.c_str(), O_RDONLY);
  CKV_CHECK(fd >= 0);
  // In pages like the store's.
  const PagedMemory buffer = *PagedMemory::Map(chunk.bytes(), PagePolicy::kAuto);
  std::vector<double> cold, plain;
  for (auto _ : state) {
    for (int i = 0; i < 15; ++i) {
      if (from_device) Invalidate(fd);
      Instant begin = Clock::Real()->Now();
      size_t done = 0;
      while (done < chunk.bytes()) {
        const ssize_t count =
            pread(fd, buffer.base() + done, chunk.bytes() - done, static_cast<off_t>(done));
        CKV_CHECK(count > 0);
        done += static_cast<size_t>(count);
      }
      plain.push_back(SecondsSince(begin));
      CKV_CHECK(store->Begin(other.chunk.info, other.geometry).ok());  // room for it, not its rows
      if (from_device) Invalidate(fd);
      begin = Clock::Real()->Now();
      CKV_CHECK(store->Load(locator).ok());
      cold.push_back(SecondsSince(begin));
    }
  }
  close(fd);
  state.counters["ratio"] = Median(plain) / Median(cold);
  state.counters["plain_GBps"] = double(chunk.bytes()) / Median(plain) / 1e9;
}
BENCHMARK(BM_ColdRead)->Arg(0)->Arg(1)->Iterations(1)->Unit(benchmark::kMillisecond);

// 100,000 chunks of 16 tokens x 2 layers: the time until the store is open, and what it allocated,
// per chunk.
void BM_Restart(benchmark::State& state) {
  constexpr uint32_t kCount = 100'000;
  const std::string path = NewFolder();
  const absl::Cleanup remove = [&] { fs::remove_all(path); };
  FaultFileSystem no_sync;  // or writing them would take ten minutes
  ChunkStoreOptions options;
  options.path = path + "/store";
  options.capacity_bytes = 64 << 20;
  options.chunk_count_max = 1 << 17;
  {
    options.files = &no_sync;
    const Geometry geometry = SmallGeometry(2);
    const auto store = *ChunkStore::Open(options);
    for (uint32_t i = 0; i < kCount; ++i) {
      const SmallChunk chunk = MakeSmallChunk(geometry, 16, i);
      ChunkPut put = *store->Begin(chunk.info, geometry);
      for (uint32_t l = 0; l < 2; ++l) CKV_CHECK(put.Write(l, 0, chunk.layers[l]).ok());
      CKV_CHECK(std::move(put).Finish().ok());
    }
  }
  options.files = FileSystem::Real();
  for (auto _ : state) {
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    const Instant begin = Clock::Real()->Now();
    const auto store = *ChunkStore::Open(options);
    state.counters["ready_s"] = SecondsSince(begin);
    CKV_CHECK(store->stats().table.chunk_count == kCount);
    const size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    state.counters["bytes_per_chunk"] = double(after - before) / kCount;
  }
}
BENCHMARK(BM_Restart)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ckv

BENCHMARK_MAIN();
