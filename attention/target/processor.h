// Describes the processor of this machine, and measures how fast its units are.

#pragma once

#include <string>

#include "attention/target/target_choice.h"

namespace ckv {

// Describes the processor: vendor, family, model, stepping, and the features that kernels depend
// on. Also whether it runs under a hypervisor, and whether the process may use AMX. Example:
// "AuthenticAMD 26.2.1, features 0f0f..., hypervisor, no AMX". Processors with equal descriptions
// run the same kernels about equally fast. Requests permission to use AMX
// (attention/matrix/matrix_kernel.h).
std::string DescribeProcessor();

// Measures the units in 2 ms, or 7 ms if there is AMX. If the process can use neither bf16 unit,
// there is nothing to choose: returns zeros without measuring.
UnitRates MeasureUnits();

}  // namespace ckv
