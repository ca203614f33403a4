// Question: what does a selection by index scores cost beyond the scoring itself? One layer of
// DeepSeek-V3.2's index (64 heads of 128 values, fp8), 10,000,000 tokens at 16 holders, 2,048 rows
// of one token. Bounds: the rows are those of float64, the whole call takes 1.3 x the scoring time
// of the slowest holder, and 12 KiB pass between the requester and each holder.
//
// Holders and requester are in this process, without gRPC. So all holders share its processors, as
// their own time does. Values are small whole numbers, and scales are powers of two: every score is
// exact in float, and many are equal. A second query has random weights: its scores are rounded.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "attention/mla_partial.h"
#include "benchmark/benchmark.h"
#include "proto/base/status.h"
#include "tests/bench/floor.h"
#include "tests/support/test_fleet.h"
#include "transport/fabric.h"

namespace ckv::bench {
namespace {

constexpr size_t kHolders = 16;
constexpr uint32_t kTokens = 10'000'000, kChunkTokens = 2048, kSelected = 2048, kQueryHeads = 128;

Geometry BenchGeometry() {
  Geometry geometry = test::TestGeometry(/*layers=*/1, /*d_qk=*/48, /*d_v=*/32);
  geometry.index =
      IndexShape{.dim = 128, .heads = 64, .dtype = IndexDtype::kFp8, .d_rope = 64, .scale = 0.125f};
  return geometry;
}

// e4m3 of a whole number from -8 to 8.
std::byte SmallE4m3(int number) {
  const int size = std::abs(number);
  if (size == 0) return std::byte{0};
  const int exponent = size >= 8 ? 3 : size >= 4 ? 2 : size >= 2 ? 1 : 0;
  const int mantissa = (size << 3 >> exponent) & 7;
  return static_cast<std::byte>((number < 0 ? 0x80 : 0) | (exponent + 7) << 3 | mantissa);
}

struct SmallNumbers {
  explicit SmallNumbers(uint64_t seed) : state(seed) {}
  uint32_t Next() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state >> 33);
  }
  int Value() { return static_cast<int>(Next() % 9) - 4; }
  uint64_t state;
};

// The keys of a chunk: whole numbers, each key with a scale of 1/2, 1 or 2.
struct ChunkKeys {
  ChunkKeys(uint32_t chunk, uint32_t count, const IndexShape& shape)
      : values(size_t{count} * shape.dim), scales(count) {
    SmallNumbers numbers(chunk + 1);
    for (int8_t& value : values) value = static_cast<int8_t>(numbers.Value());
    for (float& scale : scales) scale = std::ldexp(1.f, static_cast<int>(numbers.Next() % 3) - 1);
  }
  std::vector<int8_t> values;
  std::vector<float> scales;
};

test::TestChunk MakeChunk(const Geometry& geometry, uint32_t chunk, uint32_t count,
                          ChunkId parent) {
  const IndexShape& shape = *geometry.index;
  test::TestChunk made;
  made.info.parent = parent;
  made.info.position = uint64_t{chunk} * kChunkTokens;
  made.info.token_ids.assign(count, static_cast<int32_t>(chunk));
  made.info.id =
      ComputeChunkId(ModelFingerprint(geometry), parent, made.info.position, made.info.token_ids);
  std::mt19937 rng(chunk);
  const std::vector<uint16_t> row = test::RandomBf16(geometry.d_qk, rng);
  std::vector<uint16_t> rows;
  for (uint32_t i = 0; i < count; ++i) rows.insert(rows.end(), row.begin(), row.end());
  made.layers.push_back(std::move(rows));
  const ChunkKeys keys(chunk, count, shape);
  std::vector<uint16_t> tensor(size_t{count} * shape.key_bytes() / 2);
  auto* to = reinterpret_cast<std::byte*>(tensor.data());
  for (uint32_t i = 0; i < count; ++i, to += shape.key_bytes()) {
    for (uint32_t d = 0; d < shape.dim; ++d) to[d] = SmallE4m3(keys.values[i * shape.dim + d]);
    std::memcpy(to + shape.dim, &keys.scales[i], sizeof(float));
  }
  made.layers.push_back(std::move(tensor));
  for (const auto& layer : made.layers)
    made.info.tensor_checksums.push_back(ChecksumOf(std::as_bytes(std::span(layer))));
  return made;
}

// Each holder has a range of the chunks.
struct Fleet {
  Fleet() : cluster(fabric.get(), 0, LaneShape{}) {
    for (size_t i = 0; i < kHolders; ++i) cluster.fleet.StartHolder(i, size_t{192} << 20);
    const uint32_t chunk_count = (kTokens + kChunkTokens - 1) / kChunkTokens;
    test::TestCorpus corpus{.geometry = geometry, .chunks = {}};
    std::vector<size_t> placement;
    for (uint32_t chunk = 0; chunk < chunk_count; ++chunk) {
      const uint32_t count = std::min(kChunkTokens, kTokens - chunk * kChunkTokens);
      const ChunkId parent = corpus.chunks.empty() ? ChunkId() : corpus.chunks.back().info.id;
      const size_t holder = size_t{chunk} * kHolders / chunk_count;
      test::TestChunk made = MakeChunk(geometry, chunk, count, parent);
      const absl::Status put = test::PutChunk(cluster.fleet.holder(holder).store(), geometry, made);
      if (!put.ok()) std::fprintf(stderr, "select_bench: %s\n", put.ToString().c_str());
      CKV_CHECK(put.ok());
      made.layers.clear();  // the holder has them
      corpus.chunks.push_back(std::move(made));
      placement.push_back(holder);
    }
    cluster.fleet.Publish("c", corpus, placement);
    const ContextPart part = {.corpus = cluster.Resolve(), .chunks = {}};
    context = *cluster.requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute},
                                       kInstantMax);
  }
  const Geometry geometry = BenchGeometry();
  const std::unique_ptr<Fabric> fabric = NewShmFabric(Clock::Real());
  test::Cluster cluster;
  Context context;
};

struct IndexQuery {
  explicit IndexQuery(const IndexShape& shape, bool exact) {
    SmallNumbers numbers(99);
    for (uint32_t i = 0; i < shape.heads * shape.dim; ++i) {
      const int value = numbers.Value();
      q.push_back(SmallE4m3(value));
      values.push_back(value);
    }
    std::mt19937 rng(7);
    std::uniform_real_distribution<float> any(-1, 1);
    for (uint32_t h = 0; h < shape.heads; ++h)
      weights.push_back(exact ? float(numbers.Value()) / 8 : any(rng));
  }
  std::vector<std::byte> q;
  std::vector<double> values;  // of q
  std::vector<float> weights;
};

// The best rows by scores in float64, over all keys.
class Float64Oracle {
 public:
  Float64Oracle(const IndexShape& shape, const IndexQuery& query) : shape_(shape), query_(query) {}
  std::vector<int32_t> Best(uint32_t count) {
    scores_.resize(kTokens);
    std::vector<std::thread> threads;
    const uint32_t thread_count = std::max(1u, std::thread::hardware_concurrency());
    for (uint32_t t = 0; t < thread_count; ++t) {
      threads.emplace_back([&, t] {
        for (uint32_t chunk = t; chunk * kChunkTokens < kTokens; chunk += thread_count)
          ScoreChunk(chunk);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<int32_t> rows(kTokens);
    for (uint32_t i = 0; i < kTokens; ++i) rows[i] = static_cast<int32_t>(i);
    const auto better = [&](int32_t a, int32_t b) {
      const double x = scores_[size_t(a)], y = scores_[size_t(b)];
      return x != y ? x > y : a < b;
    };
    std::nth_element(rows.begin(), rows.begin() + count, rows.end(), better);
    rows.resize(count);
    std::sort(rows.begin(), rows.end());
    return rows;
  }

 private:
  // Key after key in the innermost loop, so that the compiler computes several at a time.
  void ScoreChunk(uint32_t chunk) {
    const uint32_t begin = chunk * kChunkTokens, count = std::min(kChunkTokens, kTokens - begin);
    const ChunkKeys keys(chunk, count, shape_);
    std::vector<double> columns(size_t{shape_.dim} * count), dots(count), sums(count);
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t d = 0; d < shape_.dim; ++d)
        columns[size_t{d} * count + i] = double(keys.values[i * shape_.dim + d]) * keys.scales[i];
    }
    for (uint32_t h = 0; h < shape_.heads; ++h) {
      std::fill(dots.begin(), dots.end(), 0.);
      for (uint32_t d = 0; d < shape_.dim; ++d) {
        const double value = query_.values[h * shape_.dim + d];
        const double* const column = columns.data() + size_t{d} * count;
        for (uint32_t i = 0; i < count; ++i) dots[i] += value * column[i];
      }
      for (uint32_t i = 0; i < count; ++i)
        sums[i] += double(query_.weights[h]) * std::max(dots[i], 0.);
    }
    for (uint32_t i = 0; i < count; ++i) scores_[begin + i] = double(shape_.scale) * sums[i];
  }

  const IndexShape& shape_;
  const IndexQuery& query_;
  std::vector<double> scores_;
};

uint32_t Differing(const std::vector<int32_t>& got, const std::vector<int32_t>& due) {
  std::vector<int32_t> wrong;
  std::set_difference(got.begin(), got.end(), due.begin(), due.end(), std::back_inserter(wrong));
  return static_cast<uint32_t>(wrong.size());
}

void BM_SelectTenMillion(benchmark::State& state) {
  Fleet fleet;
  const IndexShape& shape = *fleet.geometry.index;
  const IndexQuery exact(shape, true), rounded(shape, false);
  const auto call_of = [&](const IndexQuery& query) {
    return SelectRowsCall{
        .context = &fleet.context,
        .queries = {IndexQueryDtype::kFp8, query.q.data(), query.weights.data(), 1},
        .k = kSelected,
        .deadline = kInstantMax};
  };
  Requester& requester = *fleet.cluster.requester;
  std::vector<int32_t> rows(kSelected), rounded_rows(kSelected);
  CKV_CHECK(requester.SelectRows(call_of(rounded), rounded_rows, nullptr).ok());
  std::vector<double> ratios, seconds;
  SelectRowsReport report;
  uint64_t bytes = 0;
  for (auto _ : state) {
    CKV_CHECK(requester.SelectRows(call_of(exact), rows, &report).ok());
    ratios.push_back(double(report.elapsed.count()) / double(report.compute_ns_max));
    seconds.push_back(double(report.elapsed.count()) / 1e9);
    bytes = std::max(bytes, report.bytes_sent + report.bytes_received);
  }
  CKV_CHECK(report.holder_count == kHolders);

  // The same as a choice, and the attend of 128 heads that follows, by both.
  const auto choice = requester.ChooseRows(call_of(exact), &report);
  CKV_CHECK(choice.ok());
  const uint32_t d_qk = fleet.geometry.d_qk, d_v = fleet.geometry.d_v;
  const std::vector<uint16_t> q(size_t{kQueryHeads} * d_qk, 0x3c00);
  std::vector<float> o(size_t{kQueryHeads} * d_v), m(kQueryHeads), l(kQueryHeads);
  std::vector<float> by_choice;
  uint64_t attend_bytes[2] = {};
  for (const bool listed : {false, true}) {
    Segment segment = {.row_count = kQueryHeads, .context = &fleet.context};
    if (listed) {
      segment.selection = {rows.data(), kSelected, kQueryHeads};
    } else {
      segment.choice = {.rows = &*choice, .group_rows = kQueryHeads};
    }
    const LayerCall call = {
        .q = {q.data(), kQueryHeads, d_qk}, .segments = {&segment, 1}, .wire = PartialDtype::kF32};
    AttendReport attended;
    CKV_CHECK(
        requester.Attend(call, {o.data(), m.data(), l.data(), PartialDtype::kF32}, &attended).ok());
    attend_bytes[listed] = attended.bytes_sent;
    if (!listed) by_choice = o;
  }
  CKV_CHECK(std::memcmp(by_choice.data(), o.data(), o.size() * sizeof(float)) == 0);

  state.counters["over_slowest"] = Median(ratios);
  state.counters["ms"] = Median(seconds) * 1e3;
  state.counters["KiB_per_holder"] = double(bytes) / double(kHolders) / 1024;
  state.counters["choice_KiB_per_holder"] =
      double(report.bytes_sent + report.bytes_received) / double(kHolders) / 1024;
  state.counters["attend_by_choice_KiB"] = double(attend_bytes[0]) / 1024;
  state.counters["attend_by_rows_KiB"] = double(attend_bytes[1]) / 1024;
  state.counters["wrong_rows"] = Differing(rows, Float64Oracle(shape, exact).Best(kSelected));
  state.counters["rounded_wrong_rows"] =
      Differing(rounded_rows, Float64Oracle(shape, rounded).Best(kSelected));
  state.SetLabel(std::string(KernelTarget()));
}
BENCHMARK(BM_SelectTenMillion)->Iterations(5)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ckv::bench

BENCHMARK_MAIN();
