// Sixteen lanes of f32 or 32-bit integers in plain C++, with the same bits as lanes_avx512.inl.h.
// For machines without AVX-512, which run only the model of the tiles.

#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention/bf16.h"

namespace ckv::matrix {

struct PortableLanes {
  struct alignas(64) F {
    std::array<float, 16> v;
  };
  struct alignas(64) I {
    std::array<uint32_t, 16> v;
  };
  using Mask = uint16_t;
  // Plain code has no mode that flushes denormals to zero.
  static constexpr bool kCanFlush = false;
  // Always false: the caller then splits each value into terms.
  static bool UnpackE4m3(const uint8_t*, float, uint16_t*) { return false; }

  template <class Op>
  static F EachF(Op op) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = op(i);
    return r;
  }
  template <class Op>
  static I EachI(Op op) {
    I r;
    for (int i = 0; i < 16; ++i) r.v[i] = op(i);
    return r;
  }
  template <class Op>
  static Mask EachBit(Op op) {
    Mask r = 0;
    for (int i = 0; i < 16; ++i) r = static_cast<Mask>(r | (op(i) ? 1u << i : 0u));
    return r;
  }

  static F Set(float x) {
    return EachF([&](int) { return x; });
  }
  static I SetI(uint32_t x) {
    return EachI([&](int) { return x; });
  }
  static F Load(const float* p) {
    F r;
    std::memcpy(&r, p, sizeof(r));
    return r;
  }
  static void Store(float* p, const F& x) { std::memcpy(p, &x, sizeof(x)); }
  static I LoadI(const void* p) {
    I r;
    std::memcpy(&r, p, sizeof(r));
    return r;
  }
  static void StoreI(void* p, const I& x) { std::memcpy(p, &x, sizeof(x)); }
  static F AsF(const I& x) { return std::bit_cast<F>(x); }
  static I AsI(const F& x) { return std::bit_cast<I>(x); }

  static F Add(const F& a, const F& b) {
    return EachF([&](int i) { return a.v[i] + b.v[i]; });
  }
  static F Sub(const F& a, const F& b) {
    return EachF([&](int i) { return a.v[i] - b.v[i]; });
  }
  static F Mul(const F& a, const F& b) {
    return EachF([&](int i) { return a.v[i] * b.v[i]; });
  }
  static F MulAdd(const F& a, const F& b, const F& c) {
    return EachF([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  static F MulSub(const F& a, const F& b, const F& c) {
    return EachF([&](int i) { return std::fma(a.v[i], b.v[i], -c.v[i]); });
  }
  // Returns b if either operand is a NaN, as the instruction does.
  static F Max(const F& a, const F& b) {
    return EachF([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static Mask NotLess(const F& a, const F& b) {
    return EachBit([&](int i) { return !(a.v[i] < b.v[i]); });
  }
  static Mask Equal(const F& a, const F& b) {
    return EachBit([&](int i) { return a.v[i] == b.v[i]; });
  }
  static Mask LessI(const I& a, const I& b) {
    return EachBit(
        [&](int i) { return static_cast<int32_t>(a.v[i]) < static_cast<int32_t>(b.v[i]); });
  }
  static F Select(Mask mask, const F& yes, const F& no) {
    return EachF([&](int i) { return (mask >> i & 1) != 0 ? yes.v[i] : no.v[i]; });
  }
  static F OrZero(Mask mask, const F& x) { return Select(mask, x, Set(0)); }

  static I AddI(const I& a, const I& b) {
    return EachI([&](int i) { return a.v[i] + b.v[i]; });
  }
  static I AndI(const I& a, const I& b) {
    return EachI([&](int i) { return a.v[i] & b.v[i]; });
  }
  static I OrI(const I& a, const I& b) {
    return EachI([&](int i) { return a.v[i] | b.v[i]; });
  }
  static bool IsZeroI(const I& a) { return a.v == std::array<uint32_t, 16>{}; }
  template <int kBits>
  static I ShiftLeft(const I& a) {
    return EachI([&](int i) { return a.v[i] << kBits; });
  }
  // Returns the upper halves of both as a pair of bf16: (odd & 0xffff0000) | (even >> 16).
  static I PairUp(const I& even, const I& odd) {
    return EachI([&](int i) { return (odd.v[i] & 0xffff0000u) | even.v[i] >> 16; });
  }

  // Pairs up two rows of 32 bf16 values. Writes the pairs of the first four of each 8 columns to
  // lo, those of the other four to hi.
  static void Interleave(const uint16_t* row0, const uint16_t* row1, uint32_t* lo, uint32_t* hi) {
    std::array<uint16_t, 32> even, odd;
    std::memcpy(&even, row0, sizeof(even));  // rows may be at any address
    std::memcpy(&odd, row1, sizeof(odd));
    for (size_t i = 0; i < 16; ++i) {
      const size_t c = i / 4 * 8 + i % 4;
      lo[i] = uint32_t{odd[c]} << 16 | even[c];
      hi[i] = uint32_t{odd[c + 4]} << 16 | even[c + 4];
    }
  }
  // Undoes the order of Interleave: 32 columns in two vectors.
  static void JoinColumns(const F& lo, const F& hi, F* first, F* second) {
    for (int i = 0; i < 16; ++i) {
      const int c = i / 4 * 8 + i % 4;
      (c < 16 ? first->v[c] : second->v[c - 16]) = lo.v[i];
      (c + 4 < 16 ? first->v[c + 4] : second->v[c + 4 - 16]) = hi.v[i];
    }
  }
  // Transposes 16 x 16 words of 32 bits; a row of `from` is `stride` words long.
  static void Transpose(const uint32_t* from, size_t stride, uint32_t* to) {
    for (int r = 0; r < 16; ++r) {
      for (int c = 0; c < 16; ++c) to[c * 16 + r] = from[r * stride + c];
    }
  }
  static void StoreBf16(const F& x, void* p) {
    for (int i = 0; i < 16; ++i) {
      const uint16_t bits = Bf16FromFloat(x.v[i]);
      std::memcpy(static_cast<char*>(p) + 2 * i, &bits, sizeof(bits));
    }
  }
  // Converts 16 e4m3 values to f32, exactly. A NaN becomes 0x7fc00000 with its sign.
  static F LoadE4m3(const uint8_t* p) {
    return AsF(EachI([&](int i) {
      const uint32_t magnitude = p[i] & 0x7fu, sign = (p[i] & 0x80u) << 24;
      if (magnitude == 0x7f) return sign | 0x7fc00000u;
      if (magnitude >= 8) return sign | ((magnitude << 20) + (120u << 23));
      return sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9f);
    }));
  }
  // Stores the upper halves as 16 bf16 values.
  static void StoreUpper(const I& x, uint16_t* p) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<uint16_t>(x.v[i] >> 16);
  }
  static void Prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
};

}  // namespace ckv::matrix
