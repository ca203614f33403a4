// Question: how long until a requester reads a whole chunk of a holder on its own host, at the
// chunk's canonical position? Bound: 100 us for 64 MB, until the first query row is attended.
//
// Requester::Map over shm, and one query row attended over the first row of the chunk, which
// touches the mapping. The chunk is the same each time. Its holder's copy was made by the first
// call, which is not counted (first_ms is its time: a copy and a check of 64 MB). The floor is an
// mmap of as many bytes of a memory file and the same first touch.

#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "attention/mla_partial.h"
#include "attention/worker_pool.h"
#include "benchmark/benchmark.h"
#include "client/requester.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/bench/floor.h"
#include "tests/support/test_corpus.h"
#include "transport/socket.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kTokens = 2048;
constexpr uint32_t kLayers = 27;
constexpr int kSamples = 200;

class FirstRow {
 public:
  explicit FirstRow(const Geometry& geometry)
      : geometry_(geometry), q_(geometry.d_qk, 0x3f80), o_(geometry.d_v) {}

  void Attend(const std::byte* rows) {
    AttentionPiece piece;
    piece.q = {q_.data(), 1, geometry_.d_qk};
    piece.rows = {rows, 1, geometry_.row_bytes()};
    piece.out = {o_.data(), &m_, &l_, PartialDtype::kF32};
    AttendPartials(AttentionShape::Of(geometry_), {&piece, 1}, pool_);
    benchmark::DoNotOptimize(o_.data());
  }

 private:
  const Geometry geometry_;
  WorkerPool pool_{1};
  std::vector<uint16_t> q_;
  std::vector<float> o_;
  float m_ = 0, l_ = 0;
};

void BM_MapChunk(benchmark::State& state) {
  const OnCpu cpu(kDriverCpu);
  Fleet fleet({.fabric = FabricKind::kShm,
               .token_count = kTokens,
               .layers = kLayers,
               .map_bytes_max = uint64_t{128} << 20});
  FirstRow first(fleet.geometry());
  MapCall call;
  call.corpus = *fleet.requester().Resolve("bench", "", kInstantMax);
  const auto map = [&] {
    call.deadline = Clock::Real()->Now() + std::chrono::seconds(10);
    auto chunk = fleet.requester().Map(call);
    CKV_CHECK(chunk.ok());
    first.Attend(chunk->layer(0).data());
  };
  const size_t bytes = size_t{kTokens} * fleet.geometry().row_bytes() * kLayers;
  UniqueFd file(memfd_create("floor", MFD_CLOEXEC));
  CKV_CHECK(ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  const auto floor = [&] {
    void* const base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
    CKV_CHECK(base != MAP_FAILED);
    first.Attend(static_cast<const std::byte*>(base));
    munmap(base, bytes);
  };
  const double first_ms = SecondsOf(map) * 1e3;
  for (auto _ : state) {
    std::vector<double> mapped, floors;
    for (int i = 0; i < kSamples; ++i) {
      mapped.push_back(SecondsOf(map) * 1e6);
      floors.push_back(SecondsOf(floor) * 1e6);
    }
    state.SetIterationTime(Quantile(mapped, 0.5) / 1e6);
    state.counters["mapped_us"] = Quantile(mapped, 0.5);
    state.counters["floor_us"] = Quantile(floors, 0.5);
    state.counters["first_ms"] = first_ms;
  }
}
BENCHMARK(BM_MapChunk)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace ckv::bench
