#include "tests/bench/floor.h"

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ckv::bench {
namespace {

constexpr int kChains = 24;
constexpr int kHalfChains = 12;
constexpr int kSteps = 30'000;

#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline)) void FmaWide(float* out) {
  __m512 sum[kChains];
  for (__m512& value : sum) value = _mm512_setzero_ps();
  const __m512 a = _mm512_set1_ps(out[0]), b = _mm512_set1_ps(out[1]);
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ps(sum[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  _mm512_storeu_ps(out, sum[0]);
}

__attribute__((target("avx2,fma"), noinline)) void FmaHalf(float* out) {
  __m256 sum[kHalfChains];
  for (__m256& value : sum) value = _mm256_setzero_ps();
  const __m256 a = _mm256_set1_ps(out[0]), b = _mm256_set1_ps(out[1]);
  for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kHalfChains; ++i) sum[i] = _mm256_fmadd_ps(sum[i], a, b);
  }
  for (int i = 1; i < kHalfChains; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  _mm256_storeu_ps(out, sum[0]);
}
#endif

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

double FmaRate([[maybe_unused]] FmaWidth width) {
#if defined(__x86_64__)
  alignas(64) float out[16] = {0.5f, 0.25f};
  if (width == FmaWidth::kWidest && __builtin_cpu_supports("avx512f")) {
    return 2.0 * 16 * kChains * kSteps / SecondsOf([&] {
             FmaWide(out);
             benchmark::DoNotOptimize(out);
           });
  }
  if (__builtin_cpu_supports("fma")) {
    return 2.0 * 8 * kHalfChains * kSteps / SecondsOf([&] {
             FmaHalf(out);
             benchmark::DoNotOptimize(out);
           });
  }
#endif
  return 0;
}

void Flush([[maybe_unused]] std::span<const std::byte> memory) {
#if defined(__x86_64__)
  for (size_t i = 0; i < memory.size(); i += 64) _mm_clflush(memory.data() + i);
  if (!memory.empty()) _mm_clflush(&memory.back());
  _mm_mfence();
#endif
}

double ReadRate(std::span<const std::byte> memory) {
  const auto* words = reinterpret_cast<const uint64_t*>(memory.data());
  const size_t count = memory.size() / sizeof(uint64_t) / 32 * 32;
  return static_cast<double>(count * sizeof(uint64_t)) / SecondsOf([&] {
           uint64_t sum[32] = {};
           for (size_t i = 0; i < count; i += 32) {
             for (size_t lane = 0; lane < 32; ++lane) sum[lane] += words[i + lane];
           }
           benchmark::DoNotOptimize(sum);
         });
}

double CopyRate(std::span<std::byte> to, std::span<const std::byte> from) {
  const size_t bytes = std::min(to.size(), from.size());
  return 2.0 * static_cast<double>(bytes) / SecondsOf([&] {
           std::memcpy(to.data(), from.data(), bytes);
           benchmark::ClobberMemory();
         });
}

double TouchRate(std::span<std::byte> memory, size_t piece_bytes, size_t stride_bytes) {
  const size_t count = memory.size() / stride_bytes;
  return 2.0 * static_cast<double>(count * piece_bytes) / SecondsOf([&] {
           for (size_t i = 0; i < count; ++i) {
             auto* words = reinterpret_cast<uint64_t*>(memory.data() + i * stride_bytes);
             for (size_t w = 0; w < piece_bytes / sizeof(uint64_t); ++w) words[w] = ~words[w];
           }
           benchmark::ClobberMemory();
         });
}

Buffer::Buffer(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kHugePage, bytes_));
  if (data_ == nullptr) {
    std::fprintf(stderr, "benchmark: no memory for %zu bytes\n", bytes_);
    std::exit(1);
  }
  madvise(data_, bytes_, MADV_HUGEPAGE);  // refused: 4 KiB pages, slower and still right
  // 0.75 in f32 and in bf16. Small values would time how a core handles denormal numbers.
  std::memset(data_, 0x3f, bytes_);
}

Buffer::~Buffer() { std::free(data_); }

}  // namespace ckv::bench
