// Values of rows and queries whose attends are timed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/geometry.h"

namespace ckv {

// Fills `bytes` with values that differ, as those of real rows do. An odd last byte stays. The same
// size, seed and dtype give the same values. Give rows, layers and queries different seeds: a query
// that equals a row gives it all the weight.
//
//   kBf16        2^-5 to 2 with either sign
//   other dtypes valid as any of their parts. Words are bf16 as above, bytes are e4m3 of 0.5 to 2,
//                and f32 scales are 2^-5 to 2; all have either sign
//
// A kernel's time depends on values, since a core that multiplies zeros takes less power and runs
// faster. With rows of zeros, 128 query rows over 8192 tokens took 2.9 ms; with these, 3.2 (AMX).
void FillTimingValues(std::span<std::byte> bytes, uint32_t seed, RowDtype dtype = RowDtype::kBf16);

// Returns the bf16 values of `rows` queries of `width` values, of a seed that no rows have.
std::vector<uint16_t> TimingQueries(size_t rows, size_t width);

}  // namespace ckv
