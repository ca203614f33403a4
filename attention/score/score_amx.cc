// The scores of index keys on the AMX tile unit.
//
// A block is 16 keys. Their values become bf16, 32 of each key a tile; e4m3 and int8 values are
// exact in bf16. A tile of queries has 16 heads. So for each 16 heads one tile sums the products of
// 16 keys with them, over the values of a key. Vectors then weight the positive sums, one key a
// vector, and add the lanes of 16 vectors at once.

#include "attention/score/score_amx.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include "attention/bf16.h"
#include "attention/fp8.h"
#include "attention/matrix/matrix_kernel.h"
#include "hwy/base.h"

#if defined(__x86_64__)
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma")
#include "attention/matrix/tile_amx.inl.h"

namespace ckv {
namespace {

constexpr uint32_t kBlockKeys = 16, kTileHeads = 16, kTileValues = 32;
constexpr uint32_t kTileHalves = 512;  // bf16 values of a tile
constexpr uint32_t kHeadTilesMax = kIndexHeadsMax / kTileHeads;

struct ScoreLanes {};  // so that no other file's tiles have this type
using Tiles = matrix::TileAmx<ScoreLanes>;

uint32_t ValueTiles(const IndexShape& shape) {
  // Bytes are converted 64 at a time.
  const uint32_t step = shape.dtype == IndexDtype::kBf16 ? kTileValues : 2 * kTileValues;
  return (shape.dim + step - 1) / step * step / kTileValues;
}

uint32_t HeadTiles(const IndexShape& shape) { return (shape.heads + kTileHeads - 1) / kTileHeads; }

// The value of a key at place `p` of its tile `tile`. Bytes are widened by interleaving two halves
// of each 16, which leaves them in this order.
uint32_t ValueAt(IndexDtype dtype, uint32_t tile, uint32_t p) {
  if (dtype != IndexDtype::kFp8) return tile * kTileValues + p;
  return tile / 2 * 64 + p / 8 * 16 + tile % 2 * 8 + p % 8;
}

// The upper and the lower bytes of the bf16 values of positive e4m3 codes.
struct E4m3Table {
  alignas(64) uint8_t high[128], low[128];
};
const E4m3Table& E4m3AsBf16() {
  static const auto* const table = [] {
    auto* const made = new E4m3Table;
    for (uint32_t code = 0; code < 128; ++code) {
      const uint16_t bits = Bf16FromFloat(FloatFromE4m3(static_cast<uint8_t>(code)));
      made->high[code] = static_cast<uint8_t>(bits >> 8);
      made->low[code] = static_cast<uint8_t>(bits);
    }
    return made;
  }();
  return *table;
}

// Widens the fp8 values of a key into its rows of the tiles.
void WidenFp8(const std::byte* key, uint32_t dim, const E4m3Table& table, uint16_t* tiles) {
  const __m512i high0 = _mm512_load_si512(table.high), high1 = _mm512_load_si512(table.high + 64);
  const __m512i low0 = _mm512_load_si512(table.low), low1 = _mm512_load_si512(table.low + 64);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  for (uint32_t d = 0; d < dim; d += 64, tiles += 2 * kTileHalves) {
    const __mmask64 there = dim - d >= 64 ? ~__mmask64{0} : (__mmask64{1} << (dim - d)) - 1;
    const __m512i codes = _mm512_maskz_loadu_epi8(there, key + d);
    const __m512i high = _mm512_ternarylogic_epi64(_mm512_permutex2var_epi8(high0, codes, high1),
                                                   codes, sign, 0xf8);  // a | (b & c)
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    _mm512_store_si512(tiles, _mm512_unpacklo_epi8(low, high));
    _mm512_store_si512(tiles + kTileHalves, _mm512_unpackhi_epi8(low, high));
  }
}

void WidenInt8(const std::byte* key, uint32_t dim, uint16_t* tiles) {
  for (uint32_t d = 0; d < dim; d += 16) {
    const __mmask16 there = static_cast<__mmask16>(dim - d >= 16 ? 0xffff : (1u << (dim - d)) - 1);
    const __m128i bytes = _mm_maskz_loadu_epi8(there, key + d);
    const __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    const __m256i halves =
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(values), 16));
    uint16_t* const to = tiles + d / kTileValues * kTileHalves + d % kTileValues;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
  }
}

__m512 AddHalves(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// The sums of the lanes of 16 vectors, in their order. Always the same additions.
__m512 SumLanes(const __m512* v) {
  __m512 quads[4];
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i], v[4 * i + 1]),
                                   _mm512_unpackhi_ps(v[4 * i], v[4 * i + 1]));
    const __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i + 2], v[4 * i + 3]),
                                   _mm512_unpackhi_ps(v[4 * i + 2], v[4 * i + 3]));
    const __m512d a2 = _mm512_castps_pd(a), b2 = _mm512_castps_pd(b);
    quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a2, b2)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a2, b2)));
  }
  return AddHalves(AddHalves(quads[0], quads[1]), AddHalves(quads[2], quads[3]));
}

struct Buffers {
  // [value tile][key][32], [head tile][key][16]
  alignas(64) uint16_t keys[kIndexDimMax / kTileValues * kTileHalves];
  alignas(64) float sums[kHeadTilesMax * kBlockKeys * kTileHeads];
};

// Adds the products of a block to the tiles of four head tiles, and stores them.
template <int kHeadTiles>
HWY_INLINE void Multiply(Tiles& tiles, const uint16_t* q, const uint16_t* keys, size_t key_stride,
                         uint32_t value_tiles, size_t tile_step, float* sums) {
  tiles.Zero<0>();
  if constexpr (kHeadTiles > 1) tiles.Zero<1>();
  if constexpr (kHeadTiles > 2) tiles.Zero<2>();
  if constexpr (kHeadTiles > 3) tiles.Zero<3>();
  for (uint32_t v = 0; v < value_tiles; ++v) {
    tiles.Load<4>(keys + v * tile_step, key_stride);
    const uint16_t* const of_values = q + size_t{v} * kTileHalves * kHeadTilesMax;
    tiles.Load<5>(of_values, 64);
    tiles.Dot<0, 4, 5>();
    if constexpr (kHeadTiles > 1) {
      tiles.Load<6>(of_values + kTileHalves, 64);
      tiles.Dot<1, 4, 6>();
    }
    if constexpr (kHeadTiles > 2) {
      tiles.Load<7>(of_values + 2 * kTileHalves, 64);
      tiles.Dot<2, 4, 7>();
    }
    if constexpr (kHeadTiles > 3) {
      tiles.Load<5>(of_values + 3 * kTileHalves, 64);
      tiles.Dot<3, 4, 5>();
    }
  }
  tiles.Store<0>(sums);
  if constexpr (kHeadTiles > 1) tiles.Store<1>(sums + 256);
  if constexpr (kHeadTiles > 2) tiles.Store<2>(sums + 512);
  if constexpr (kHeadTiles > 3) tiles.Store<3>(sums + 768);
}

void MultiplyBlock(Tiles& tiles, const uint16_t* q, const uint16_t* keys, size_t key_stride,
                   uint32_t value_tiles, size_t tile_step, uint32_t head_tiles, float* sums) {
  for (uint32_t h = 0; h < head_tiles; h += 4) {
    const uint16_t* const of_heads = q + size_t{h} * kTileHalves;
    float* const to = sums + size_t{h} * 256;
    switch (std::min(4u, head_tiles - h)) {
      case 1:
        Multiply<1>(tiles, of_heads, keys, key_stride, value_tiles, tile_step, to);
        break;
      case 2:
        Multiply<2>(tiles, of_heads, keys, key_stride, value_tiles, tile_step, to);
        break;
      case 3:
        Multiply<3>(tiles, of_heads, keys, key_stride, value_tiles, tile_step, to);
        break;
      default:
        Multiply<4>(tiles, of_heads, keys, key_stride, value_tiles, tile_step, to);
    }
  }
}

// The scores of a block's 16 keys, without their scales.
__m512 WeightedSums(const float* sums, const float* weights, uint32_t head_tiles) {
  __m512 of_key[kBlockKeys];
  const __m512 zero = _mm512_setzero_ps();
  for (uint32_t key = 0; key < kBlockKeys; ++key) {
    __m512 sum = zero;
    for (uint32_t h = 0; h < head_tiles; ++h) {
      const __m512 dot = _mm512_load_ps(sums + h * 256 + key * kTileHeads);
      sum =
          _mm512_fmadd_ps(_mm512_loadu_ps(weights + h * kTileHeads), _mm512_max_ps(dot, zero), sum);
    }
    of_key[key] = sum;
  }
  return SumLanes(of_key);
}

}  // namespace

size_t AmxQueryHalves(const IndexShape& shape) {
  return size_t{ValueTiles(shape)} * kHeadTilesMax * kTileHalves;
}

void AmxPackQuery(const IndexShape& shape, const float* q, uint16_t* packed) noexcept {
  const uint32_t heads = HeadTiles(shape) * kTileHeads;
  std::fill_n(packed, AmxQueryHalves(shape), uint16_t{0});
  for (uint32_t v = 0; v < ValueTiles(shape); ++v) {
    for (uint32_t p = 0; p < kTileValues; ++p) {
      const uint32_t value = ValueAt(shape.dtype, v, p);
      if (value >= shape.dim) continue;
      for (uint32_t h = 0; h < heads; ++h) {
        const size_t tile = size_t{v} * kHeadTilesMax + h / kTileHeads;
        packed[tile * kTileHalves + p / 2 * 32 + h % kTileHeads * 2 + p % 2] =
            Bf16FromFloat(q[size_t{value} * heads + h]);
      }
    }
  }
}

void AmxScoreKeys(const IndexShape& shape, const uint16_t* q, const float* weights,
                  const RowView& keys, float* scores) noexcept {
  const uint32_t value_tiles = ValueTiles(shape), head_tiles = HeadTiles(shape);
  const E4m3Table& table = E4m3AsBf16();
  Buffers buffers;
  std::memset(buffers.keys, 0, size_t{value_tiles} * kTileHalves * sizeof(uint16_t));
  Tiles tiles;
  Tiles::Configure();
  for (uint32_t begin = 0; begin < keys.count; begin += kBlockKeys) {
    const uint32_t count = std::min(kBlockKeys, keys.count - begin);
    alignas(64) float scales[kBlockKeys] = {};
    for (uint32_t i = 0; i < count; ++i) {
      const std::byte* const key = keys.Row(begin + i);
      uint16_t* const to = buffers.keys + size_t{i} * kTileValues;
      switch (shape.dtype) {
        case IndexDtype::kFp8:
          WidenFp8(key, shape.dim, table, to);
          break;
        case IndexDtype::kInt8:
          WidenInt8(key, shape.dim, to);
          break;
        case IndexDtype::kBf16:
          for (uint32_t d = 0; d < shape.dim; d += kTileValues) {
            std::memcpy(to + d / kTileValues * kTileHalves, key + 2 * d,
                        2 * std::min(kTileValues, shape.dim - d));
          }
      }
      scales[i] = 1;
      if (shape.dtype != IndexDtype::kBf16) std::memcpy(&scales[i], key + shape.dim, sizeof(float));
    }
    MultiplyBlock(tiles, q, buffers.keys, 64, value_tiles, kTileHalves, head_tiles, buffers.sums);
    const __m512 sums = WeightedSums(buffers.sums, weights, head_tiles);
    const __m512 scaled =
        _mm512_mul_ps(sums, _mm512_mul_ps(_mm512_set1_ps(shape.scale), _mm512_load_ps(scales)));
    _mm512_mask_storeu_ps(scores + begin, static_cast<__mmask16>((1u << count) - 1), scaled);
  }
  Tiles::Release();
}

bool AmxScores() {
  static const bool can = [] {
    uint32_t a, b, c = 0, d;
    constexpr uint32_t kVbmi = 1u << 1;
    return matrix::AmxUnit().usable && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (c & kVbmi) != 0;
  }();
  return can;
}

}  // namespace ckv
HWY_POP_ATTRIBUTES

#else

namespace ckv {

bool AmxScores() { return false; }
size_t AmxQueryHalves(const IndexShape&) { return 0; }
void AmxPackQuery(const IndexShape&, const float*, uint16_t*) noexcept {}
void AmxScoreKeys(const IndexShape&, const uint16_t*, const float*, const RowView&,
                  float*) noexcept {}

}  // namespace ckv
#endif  // __x86_64__
