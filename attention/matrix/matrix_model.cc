// The kernel on a model of the tile unit, with the vector instructions of AVX-512.

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
#include "attention/matrix/tile_model.inl.h"
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

const BlockKernel& ModelBlockKernel() {
  static const auto* const kernel = new TileBlock<TileProducts<TileModel<Avx512Lanes<0>>>, 0>;
  return *kernel;
}

const DenseKernel& ModelDenseKernel() {
  static const auto* const kernel = new DenseTiles<TileProducts<TileModel<Avx512Lanes<0>>>>;
  return *kernel;
}

}  // namespace ckv::matrix
HWY_POP_ATTRIBUTES
#endif  // __x86_64__
