// The kernel on VDPBF16PS.

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
#include "attention/matrix/matrix_kernel.h"
#include "attention/matrix/span_layout.h"
#include "hwy/base.h"

#if defined(__x86_64__)
// The fragments below are compiled for these instructions, so nothing may include them before. All
// their functions depend on the lanes' type, so no other file's have the same names.
#define CKV_MATRIX_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16"
#define CKV_MATRIX_LAMBDA __attribute__((always_inline, target(CKV_MATRIX_TARGET)))
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,avx512bf16")

#include "attention/matrix/lanes_avx512.inl.h"
// After the lanes.
#include "attention/matrix/row_prefetch.inl.h"
#include "attention/matrix/span_rows.inl.h"
#include "attention/matrix/weights.inl.h"
// After those.
#include "attention/matrix/span_fold.inl.h"
// After the fold.
#include "attention/matrix/dot_kernel.inl.h"
#include "attention/matrix/matrix_block.inl.h"
// After the kernel.
#include "attention/matrix/dot_block.inl.h"

namespace ckv::matrix {

const BlockKernel& DotBlockKernel() {
  static const auto* const kernel = new DotBlock<Avx512Lanes<1>>;
  return *kernel;
}

// 16 sums at a time, each of 32 products, with operands from the first cache.
void DotMultiply(const uint16_t* operands, int steps) {
  using Lanes = Avx512Lanes<1>;
  Lanes::F sum[16];
#pragma GCC unroll 16
  for (Lanes::F& one : sum) one = Lanes::Set(0);
  for (int i = 0; i < steps; ++i) {
    const uint16_t* const at = operands + i % 64 * 32;
    const __m512i pairs = Lanes::LoadI(at);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      uint32_t word;
      std::memcpy(&word, at + 2048 + 64 * j, sizeof(word));
      sum[j] = _mm512_dpbf16_ps(sum[j], reinterpret_cast<__m512bh>(_mm512_set1_epi32(int(word))),
                                reinterpret_cast<__m512bh>(pairs));
    }
  }
  Lanes::F all = Lanes::Set(0);
#pragma GCC unroll 16
  for (const Lanes::F& one : sum) all = Lanes::Add(all, one);
  asm volatile("" : : "v"(all));
}

}  // namespace ckv::matrix
HWY_POP_ATTRIBUTES
#endif  // __x86_64__
