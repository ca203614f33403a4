// Question: what does a selection over a chunk on disk cost if its rows are kept from the previous
// one, compared with reading them? Bounds: reading is one request to the device per range of
// stripes; finding is one look-up of each of 2048 indices, 4 us at 2 ns each.
//
// In the folder that CKV_BENCH_FOLDER names, else the temporary one: name one on the disk that
// matters.

#include <benchmark/benchmark.h>
#include <fcntl.h>
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
#include "proto/base/stripe.h"
#include "server/batch/cold_rows.h"
#include "server/batch/stripe_cache.h"
#include "store/chunk_store.h"
#include "tests/store/disk/chunk_files.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_chunks.h"

namespace ckv {
namespace {

constexpr uint32_t kTokens = 65'536;
constexpr uint32_t kSelected = 2048;  // DeepSeek V3.2's
constexpr int kRounds = 21;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double MicrosSince(Instant begin) { return double((Clock::Real()->Now() - begin).count()) / 1e3; }

// One layer of 75 MB. The rows are selected in runs of state.range(0): runs of 32 are 64 stripes or
// a few more, runs of 1 are each in a stripe of its own.
void BM_SelectedStripes(benchmark::State& state) {
  const char* base = std::getenv("CKV_BENCH_FOLDER");
  std::string path = absl::StrCat(base == nullptr ? "/tmp" : base, "/ckv_stripe_bench.XXXXXX");
  CKV_CHECK(mkdtemp(path.data()) != nullptr);
  const absl::Cleanup remove = [&] { std::filesystem::remove_all(path); };
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "bench";
  geometry.layers = 1;
  const SmallChunk chunk = MakeSmallChunk(geometry, kTokens, 1);
  ChunkStoreOptions options;
  options.path = path + "/store";
  options.capacity_bytes = ChunkLayout(geometry, kTokens).total_bytes();
  auto store = *ChunkStore::Open(options);
  {
    ChunkPut put = *store->Begin(chunk.info, geometry);
    CKV_CHECK(put.Write(0, 0, chunk.layers[0]).ok() && std::move(put).Finish().ok());
  }
  store.reset();
  store = *ChunkStore::Open(options);  // the chunk is cold
  const ChunkLocator locator = *store->table().Find(chunk.info.id, geometry);
  const std::string file = test::ChunkFileOf(options.path, chunk.info.id);
  const int fd = open(file.c_str(), O_RDONLY);
  CKV_CHECK(fd >= 0);

  const auto run = static_cast<uint32_t>(state.range(0));
  std::vector<int32_t> indices;
  for (uint32_t i = 0; i < kSelected; ++i)
    indices.push_back(static_cast<int32_t>(i / run * run * (kTokens / kSelected) + i % run));
  std::vector<uint32_t> stripes;
  AddSelectedStripes(indices, kTokens, &stripes);
  std::vector<double> read, found;
  for (auto _ : state) {
    for (int i = 0; i < kRounds; ++i) {
      StripeCache cache(uint64_t{1} << 30);
      CKV_CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
      Instant begin = Clock::Real()->Now();
      const ChunkRows rows = *store->OpenRows(locator);
      CKV_CHECK(cache.Fill(locator, rows, 0, stripes).ok());
      read.push_back(MicrosSince(begin));
      begin = Clock::Real()->Now();
      CKV_CHECK(cache.Find(locator, 0, indices).held());
      found.push_back(MicrosSince(begin));
    }
  }
  close(fd);
  state.counters["stripes"] = double(stripes.size());
  state.counters["read_us"] = Median(read);
  state.counters["find_us"] = Median(found);
  state.counters["ratio"] = Median(read) / Median(found);
}
BENCHMARK(BM_SelectedStripes)->Arg(32)->Arg(1)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ckv

BENCHMARK_MAIN();
