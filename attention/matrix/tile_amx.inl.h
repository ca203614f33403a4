// The AMX tile unit, in assembler and not intrinsics. gcc 12's tile loads carry no memory clobber,
// so stores could move across them. Its _tile_loadconfig names 8 of the 64 bytes it reads, so the
// others might never be stored.
//
// matrix_amx.cc includes this fragment after span_rows.inl.h, tile_unit_test.cc after the lanes.

#pragma once

namespace ckv::matrix {

// The operations of TileModel, on the eight tile registers of this thread. The process must have
// been granted them (AmxState), and every thread configures its own before use.
template <class L>
class TileAmx {
 public:
  using Lanes = L;

  // Eight tiles of 16 rows of 64 bytes. With Release, 51 ns.
  static HWY_INLINE void Configure() {
    struct alignas(64) Config {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static_assert(sizeof(Config) == 64);
    const Config config;
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  static HWY_INLINE void Release() { asm volatile("tilerelease" : : :); }

  template <int kTile>
  HWY_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  HWY_INLINE void Load(const void* from, size_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(from), "r"(stride_bytes), "i"(kTile)
                 : "memory");
  }
  // For the operand that is used once. A plain load would push the other operand, which is used
  // again, out of the first cache: .63 of the peak instead of .70.
  template <int kTile>
  HWY_INLINE void LoadOnce(const void* from, size_t stride_bytes) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(from), "r"(stride_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  HWY_INLINE void Store(void* to) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(to), "r"(size_t{64}), "i"(kTile)
                 : "memory");
  }
  template <int kSum, int kA, int kB>
  HWY_INLINE void Dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }
};

}  // namespace ckv::matrix
