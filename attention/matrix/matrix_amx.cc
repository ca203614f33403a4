// The kernel on the AMX tile unit.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "absl/functional/function_ref.h"
#include "attention/matrix/dense_kernel.h"
#include "attention/matrix/matrix_kernel.h"
#include "attention/matrix/span_layout.h"
#include "hwy/base.h"

#if defined(__x86_64__)
// The fragments below are compiled for these instructions, so nothing may include them before. All
// their functions depend on the lanes' type, so no other file's have the same names.
#define CKV_MATRIX_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#define CKV_MATRIX_LAMBDA __attribute__((always_inline, target(CKV_MATRIX_TARGET)))
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")

#include "attention/matrix/lanes_avx512.inl.h"
// After the lanes.
#include "attention/matrix/span_rows.inl.h"
#include "attention/matrix/tile_amx.inl.h"
#include "attention/matrix/tile_products.inl.h"
#include "attention/matrix/weights.inl.h"
// After the products.
#include "attention/matrix/dense_tiles.inl.h"
#include "attention/matrix/few_rows.inl.h"
#include "attention/matrix/row_prefetch.inl.h"
#include "attention/matrix/span_fold.inl.h"
#include "attention/matrix/span_kernel.inl.h"
// After the kernel.
#include "attention/matrix/matrix_block.inl.h"
#include "attention/matrix/tile_block.inl.h"

namespace ckv::matrix {
namespace {

using Tiles = TileAmx<Avx512Lanes<0>>;

}  // namespace

const BlockKernel& AmxBlockKernel() {
  static const auto* const kernel = new TileBlock<TileProducts<Tiles>, 18>;
  return *kernel;
}

const DenseKernel& AmxDenseKernel() {
  static const auto* const kernel = new DenseTiles<TileProducts<Tiles>>;
  return *kernel;
}

// Two by two tiles, four products a step. Plain loads: all operands stay in the first cache, from
// which LoadOnce brings them at a third of the rate.
void AmxMultiply(const uint16_t* operands, int steps) {
  Tiles tiles;
  Tiles::Configure();
  tiles.Zero<0>();
  tiles.Zero<1>();
  tiles.Zero<2>();
  tiles.Zero<3>();
  for (int i = 0; i < steps; ++i) {
    const uint16_t* const at = operands + i % 4 * 2048;
    tiles.Load<6>(at, 64);
    tiles.Load<4>(at + 512, 64);
    tiles.Dot<0, 4, 6>();
    tiles.Load<7>(at + 1024, 64);
    tiles.Dot<1, 4, 7>();
    tiles.Load<5>(at + 1536, 64);
    tiles.Dot<2, 5, 6>();
    tiles.Dot<3, 5, 7>();
  }
  Tiles::Release();
}

}  // namespace ckv::matrix
HWY_POP_ATTRIBUTES
#endif  // __x86_64__
