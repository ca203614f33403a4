// The processor of this machine, and how fast its units are.

#pragma once

#include <string>

#include "attention/target/target_choice.h"

namespace ckv {

// Returns the processor in words: its vendor, family, model and stepping, and the features that
// kernels depend on. It also says whether a hypervisor is below it, and whether the process may use
// AMX. As in "AuthenticAMD 26.2.1, features 0f0f..., hypervisor, no AMX". Two processors of one
// text run the same kernels about equally fast. Asks for AMX (attention/matrix/matrix_kernel.h).
std::string DescribeProcessor();

// Measures the units, which takes 2 ms, or 7 if there is AMX.
UnitRates MeasureUnits();

}  // namespace ckv
