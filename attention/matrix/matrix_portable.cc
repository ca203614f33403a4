// The kernel on a model of the tile unit, in plain C++.

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

#define CKV_MATRIX_LAMBDA

#include "attention/matrix/lanes_portable.h"
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

const BlockKernel& PortableModelBlockKernel() {
  static const auto* const kernel = new TileBlock<TileProducts<TileModel<PortableLanes>>, 0>;
  return *kernel;
}

const DenseKernel& PortableModelDenseKernel() {
  static const auto* const kernel = new DenseTiles<TileProducts<TileModel<PortableLanes>>>;
  return *kernel;
}

}  // namespace ckv::matrix
