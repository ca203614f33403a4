// A model of the AMX tile unit in portable arithmetic. The kernel runs over it on machines without
// the unit, and tests compare its bits with the unit's where there is one.
//
// matrix_model.cc and matrix_portable.cc include this fragment after span_rows.inl.h,
// tile_unit_test.cc after the lanes.

#pragma once

namespace ckv::matrix {

// Eight tiles of 16 rows of 64 bytes, and the four operations the kernel uses.
//
// TDPBF16PS adds up a tile's 32 products as Intel's Instruction Set Extensions reference says. The
// even and the odd columns are summed apart, each from zero, ascending, with fused multiply-adds.
// Then both sums are added, and then the accumulator. Denormal inputs count as zero, and denormal
// results become zero, of the same sign.
template <class L>
class TileModel {
 public:
  using Lanes = L;

  // The real unit needs a configuration for each thread; the model has none.
  static void Configure() {}
  static void Release() {}

  template <int kTile>
  HWY_INLINE void Zero() {
    std::memset(tiles_[kTile], 0, sizeof(tiles_[kTile]));
  }
  template <int kTile>
  HWY_INLINE void Load(const void* from, size_t stride_bytes) {
    for (size_t r = 0; r < 16; ++r)
      std::memcpy(tiles_[kTile] + 16 * r, static_cast<const char*>(from) + r * stride_bytes, 64);
  }
  template <int kTile>
  HWY_INLINE void LoadOnce(const void* from, size_t stride_bytes) {
    Load<kTile>(from, stride_bytes);
  }
  template <int kTile>
  HWY_INLINE void Store(void* to) const {
    std::memcpy(to, tiles_[kTile], sizeof(tiles_[kTile]));
  }
  template <int kSum, int kA, int kB>
  HWY_INLINE void Dot() {
    DotInto(tiles_[kSum], tiles_[kA], tiles_[kB]);
  }

 private:
  using F = typename L::F;
  using I = typename L::I;

  static HWY_NOINLINE void DotInto(uint32_t* sum, const uint32_t* a, const uint32_t* b) {
    F b_even[16], b_odd[16];
    for (int k = 0; k < 16; ++k) {
      const I pair = L::LoadI(b + 16 * k);
      b_even[k] = Flush(L::AsF(L::template ShiftLeft<16>(pair)));
      b_odd[k] = Flush(L::AsF(L::AndI(pair, L::SetI(0xffff0000u))));
    }
    for (int m = 0; m < 16; ++m) {
      F even = L::Set(0), odd = L::Set(0);
      for (int k = 0; k < 16; ++k) {
        const I pair = L::SetI(a[16 * m + k]);
        const F a_even = Flush(L::AsF(L::template ShiftLeft<16>(pair)));
        const F a_odd = Flush(L::AsF(L::AndI(pair, L::SetI(0xffff0000u))));
        even = Flush(L::MulAdd(a_even, b_even[k], even));
        odd = Flush(L::MulAdd(a_odd, b_odd[k], odd));
      }
      auto* row = reinterpret_cast<float*>(sum + 16 * m);
      L::Store(row, Flush(L::Add(Flush(L::Load(row)), Flush(L::Add(even, odd)))));
    }
  }

  // Denormals become zeros of their sign.
  static HWY_INLINE F Flush(F x) {
    const F magnitude = L::AsF(L::AndI(L::AsI(x), L::SetI(0x7fffffffu)));
    const F sign = L::AsF(L::AndI(L::AsI(x), L::SetI(0x80000000u)));
    return L::Select(L::NotLess(magnitude, L::Set(std::numeric_limits<float>::min())), x, sign);
  }

  alignas(64) uint32_t tiles_[8][256];
};

}  // namespace ckv::matrix
