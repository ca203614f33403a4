// Values of rows and queries whose attends are timed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ckv {

// Fills `bytes` with values that differ, as those of real rows do. They are valid in rows of every
// dtype: as bf16 of 2^-5 to 2 with either sign, as e4m3 and as f32 scales, none is NaN or infinite.
// An odd last byte stays. The same size gives the same values.
//
// A kernel's time depends on values, since a core that multiplies zeros takes less power and runs
// faster. With rows of zeros, 128 query rows over 8192 tokens took 2.9 ms; with these, 3.2 (AMX).
void FillTimingValues(std::span<std::byte> bytes);

// Returns `count` bf16 values of the same kind.
std::vector<uint16_t> TimingValues(size_t count);

}  // namespace ckv
