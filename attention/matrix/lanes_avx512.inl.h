// Sixteen lanes of f32 or 32-bit integers in AVX-512 (F, BW, DQ, VL).
//
// matrix_amx.cc, matrix_dot.cc and matrix_model.cc include this fragment first, between the
// attributes of their target and after <immintrin.h>.

#pragma once

namespace ckv::matrix {

// `kTarget` makes function names unique per file. Several files compile the same templates for
// different instructions, and the linker keeps only one of two functions with the same name.
template <int kTarget>
struct Avx512Lanes {
  using F = __m512;
  using I = __m512i;
  using Mask = __mmask16;

  static HWY_INLINE F Set(float x) { return _mm512_set1_ps(x); }
  static HWY_INLINE I SetI(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static HWY_INLINE F Load(const float* p) { return _mm512_loadu_ps(p); }
  static HWY_INLINE void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static HWY_INLINE I LoadI(const void* p) { return _mm512_loadu_si512(p); }
  // Loads into a register once; otherwise the compiler would load again for each use.
  static HWY_INLINE I LoadOnce(const void* p) {
    I x = LoadI(p);
    asm("" : "+v"(x));
    return x;
  }
  static HWY_INLINE void StoreI(void* p, I x) { _mm512_storeu_si512(p, x); }
  static HWY_INLINE F AsF(I x) { return _mm512_castsi512_ps(x); }
  static HWY_INLINE I AsI(F x) { return _mm512_castps_si512(x); }

  static HWY_INLINE F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static HWY_INLINE F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static HWY_INLINE F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static HWY_INLINE F MulAdd(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static HWY_INLINE F MulSub(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  // Returns b if either operand is a NaN.
  static HWY_INLINE F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static HWY_INLINE Mask NotLess(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
  static HWY_INLINE Mask Equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static HWY_INLINE Mask LessI(I a, I b) { return _mm512_cmplt_epi32_mask(a, b); }
  static HWY_INLINE F Select(Mask mask, F yes, F no) { return _mm512_mask_mov_ps(no, mask, yes); }
  static HWY_INLINE F OrZero(Mask mask, F x) { return _mm512_maskz_mov_ps(mask, x); }

  static HWY_INLINE I AddI(I a, I b) { return _mm512_add_epi32(a, b); }
  static HWY_INLINE I AndI(I a, I b) { return _mm512_and_si512(a, b); }
  static HWY_INLINE I OrI(I a, I b) { return _mm512_or_si512(a, b); }
  static HWY_INLINE bool IsZeroI(I a) { return _mm512_test_epi32_mask(a, a) == 0; }
  template <int kBits>
  static HWY_INLINE I ShiftLeft(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  // Returns the upper halves of both as a pair of bf16: (odd & 0xffff0000) | (even >> 16).
  static HWY_INLINE I PairUp(I even, I odd) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even, 16), odd);
  }

  // Pairs up two rows of 32 bf16 values. Writes the pairs of the first four of each 8 columns to
  // lo, those of the other four to hi.
  static HWY_INLINE void PairRows(I row0, I row1, I* lo, I* hi) {
    *lo = _mm512_unpacklo_epi16(row0, row1);
    *hi = _mm512_unpackhi_epi16(row0, row1);
  }
  static HWY_INLINE void Interleave(const uint16_t* row0, const uint16_t* row1, uint32_t* lo,
                                    uint32_t* hi) {
    const I a = _mm512_loadu_si512(row0), b = _mm512_loadu_si512(row1);
    _mm512_store_si512(lo, _mm512_unpacklo_epi16(a, b));
    _mm512_store_si512(hi, _mm512_unpackhi_epi16(a, b));
  }
  // Puts the even and odd ones of 32 columns into the order of Interleave.
  static HWY_INLINE void Zip(F even, F odd, F* lo, F* hi) {
    *lo = _mm512_unpacklo_ps(even, odd);
    *hi = _mm512_unpackhi_ps(even, odd);
  }
  static HWY_INLINE void JoinPairs(F even, F odd, float* lo, float* hi) {
    Store(lo, _mm512_unpacklo_ps(even, odd));
    Store(hi, _mm512_unpackhi_ps(even, odd));
  }
  // While an object exists, denormal inputs and results of this thread's vector instructions are
  // zero. The compiler may move arithmetic out of the object's scope, so put the arithmetic in a
  // function that is not inlined.
  class FlushDenormals {
   public:
    FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
    ~FlushDenormals() { _mm_setcsr(before_); }
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

   private:
    const unsigned before_;
  };
  static constexpr bool kCanFlush = true;
  // Undoes the order of Interleave: 32 columns in two vectors.
  static HWY_INLINE void JoinColumns(F lo, F hi, F* first, F* second) {
    const I even = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const I odd = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    *first = _mm512_permutex2var_ps(lo, even, hi);
    *second = _mm512_permutex2var_ps(lo, odd, hi);
  }
  // Transposes 16 x 16 words of 32 bits; a row of `from` is `stride` words long. Loads of four
  // words do the outer half, so only 32 of 64 shuffles remain: they share one port.
  static HWY_INLINE void Transpose(const uint32_t* from, size_t stride, uint32_t* to) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      I a[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const uint32_t* p = from + i * stride + 4 * j;
        I v = _mm512_castsi128_si512(Load4(p));
        v = _mm512_inserti32x4(v, Load4(p + 4 * stride), 1);
        v = _mm512_inserti32x4(v, Load4(p + 8 * stride), 2);
        a[i] = _mm512_inserti32x4(v, Load4(p + 12 * stride), 3);
      }
      const I low0 = _mm512_unpacklo_epi32(a[0], a[1]), high0 = _mm512_unpackhi_epi32(a[0], a[1]);
      const I low1 = _mm512_unpacklo_epi32(a[2], a[3]), high1 = _mm512_unpackhi_epi32(a[2], a[3]);
      _mm512_storeu_si512(to + (4 * j + 0) * 16, _mm512_unpacklo_epi64(low0, low1));
      _mm512_storeu_si512(to + (4 * j + 1) * 16, _mm512_unpackhi_epi64(low0, low1));
      _mm512_storeu_si512(to + (4 * j + 2) * 16, _mm512_unpacklo_epi64(high0, high1));
      _mm512_storeu_si512(to + (4 * j + 3) * 16, _mm512_unpackhi_epi64(high0, high1));
    }
  }
  // Loads 16 rows of 16 words, at any address and `stride` bytes apart, and transposes them in
  // registers: columns[k] is word k of each row. Takes 64 shuffles, for processors that run two per
  // cycle.
  static HWY_INLINE void LoadTransposed(const std::byte* from, size_t stride, I (&columns)[16]) {
    I a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = LoadI(from + i * stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {  // words of rows i and i + 1
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {  // a[i + k]: column 4 j + k in part j, of rows i to i + 3
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const I low0 = _mm512_shuffle_i32x4(a[k], a[4 + k], 0x44);
      const I high0 = _mm512_shuffle_i32x4(a[k], a[4 + k], 0xee);
      const I low1 = _mm512_shuffle_i32x4(a[8 + k], a[12 + k], 0x44);
      const I high1 = _mm512_shuffle_i32x4(a[8 + k], a[12 + k], 0xee);
      columns[k] = _mm512_shuffle_i32x4(low0, low1, 0x88);
      columns[4 + k] = _mm512_shuffle_i32x4(low0, low1, 0xdd);
      columns[8 + k] = _mm512_shuffle_i32x4(high0, high1, 0x88);
      columns[12 + k] = _mm512_shuffle_i32x4(high0, high1, 0xdd);
    }
  }
  // Rounds to nearest, ties to even; quiets NaNs.
  static HWY_INLINE void StoreBf16(F x, void* p) {
    const I bits = AsI(x);
    const I odd = AndI(_mm512_srli_epi32(bits, 16), SetI(1));
    const I rounded = AddI(bits, AddI(odd, SetI(0x7fff)));
    const I quiet = _mm512_or_si512(bits, SetI(0x00400000));
    const Mask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    StoreUpper(_mm512_mask_mov_epi32(rounded, nan, quiet), static_cast<uint16_t*>(p));
  }
  // Converts 16 e4m3 values to f32, exactly. A NaN becomes 0x7fc00000 with its sign.
  static HWY_INLINE F LoadE4m3(const uint8_t* p) {
    const I x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const I magnitude = AndI(x, SetI(0x7f));
    const I sign = _mm512_slli_epi32(AndI(x, SetI(0x80)), 24);
    // Subnormal values are converted from an integer, which is exact. Their bits as a binary32 of
    // exponent 0 would need a factor of 2^120.
    const I normal = AddI(_mm512_slli_epi32(magnitude, 20), SetI(120u << 23));
    const F tiny = Mul(_mm512_cvtepi32_ps(magnitude), Set(0x1p-9f));
    const Mask subnormal = _mm512_cmplt_epi32_mask(magnitude, SetI(8));
    const Mask nan = _mm512_cmpeq_epi32_mask(magnitude, SetI(0x7f));
    const I value = _mm512_mask_mov_epi32(normal, subnormal, AsI(tiny));
    return AsF(_mm512_or_si512(_mm512_mask_mov_epi32(value, nan, SetI(0x7fc00000)), sign));
  }
  // Converts one scale group of e4m3 values times `scale` to bf16. Returns false, with `to`
  // undefined, if a value is NaN or `scale` is not a power of two in [2^-100, 2^100]. 32 values
  // take 12 instructions; 16 values of LoadE4m3 with their terms take some 25.
  static HWY_INLINE bool UnpackE4m3(const uint8_t* from, float scale, uint16_t* to) {
    uint32_t bits;
    std::memcpy(&bits, &scale, sizeof(bits));
    const int exponent = static_cast<int>(bits >> 23) - 127;
    // e4m3 values range from 2^-9 to 448, so all results are normal.
    if ((bits & 0x007fffffu) != 0 || exponent < -100 || exponent > 100) return false;
    // 2^-9 times 0 to 7 as bf16.
    alignas(64) static constexpr uint16_t kSubnormal[32] = {0,      0x3b00, 0x3b80, 0x3bc0,
                                                            0x3c00, 0x3c20, 0x3c40, 0x3c60};
    const I table = _mm512_load_si512(kSubnormal);
    const I shift = _mm512_set1_epi16(static_cast<int16_t>(exponent * 128));
    __mmask32 nan = 0;
#pragma GCC unroll 4
    for (uint32_t d = 0; d < kFp8ScaleGroup; d += 32) {
      const I x =
          _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + d)));
      const I magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7f));
      const I sign = _mm512_slli_epi16(_mm512_sub_epi16(x, magnitude), 8);
      const I normal =
          _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 * 128));
      const __mmask32 subnormal = _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(8));
      const I value = _mm512_mask_permutexvar_epi16(normal, subnormal, magnitude, table);
      const __mmask32 some = _mm512_test_epi16_mask(magnitude, magnitude);
      nan |= _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
      _mm512_storeu_si512(to + d,
                          _mm512_or_si512(_mm512_mask_add_epi16(value, some, value, shift), sign));
    }
    return nan == 0;
  }
  // Stores the upper halves as 16 bf16 values.
  static HWY_INLINE void StoreUpper(I x, uint16_t* p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
  }
  static HWY_INLINE void Prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }

 private:
  static HWY_INLINE __m128i Load4(const uint32_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
};

}  // namespace ckv::matrix
