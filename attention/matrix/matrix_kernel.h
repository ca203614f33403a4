// The kernels on units that multiply bf16, and whether this machine has the units.

#pragma once

#include <string>

#include "attention/block_kernel.h"

namespace ckv::matrix {

// Whether this process may use a unit and, if not, the reason.
struct UnitState {
  bool usable = false;
  std::string why_not;
};

// Returns the state of AMX. It is usable if the processor has amx_tile, amx_bf16 and AVX-512, the
// operating system saves their registers, and Linux has granted their use. The first call requests
// the grant; threads and child processes inherit it. Linux refuses the grant if a thread has an
// alternate signal stack of less than one signal frame, 11,952 bytes. Once it is granted, Linux
// refuses smaller stacks. client/requester.h describes what embedders must do.
const UnitState& AmxUnit();
// Returns the state of AVX512_BF16, the unit of VDPBF16PS.
const UnitState& DotUnit();

const BlockKernel& AmxBlockKernel();  // needs AmxUnit
const BlockKernel& DotBlockKernel();  // needs DotUnit
// Emulates TDPBF16PS in plain code, with the same bits as AmxBlockKernel. Needs AVX-512.
const BlockKernel& ModelBlockKernel();
// The same without vector instructions, for any machine.
const BlockKernel& PortableModelBlockKernel();

// Return floating-point operations per microsecond of one thread, in a loop that does nothing else.
// The result is the best of `rounds` rounds of about 10 us each, or 0 if this machine lacks the
// unit. They serve to choose a target: VectorRate counts fused multiply-adds of f32 in AVX-512, the
// others the units' bf16 products.
double VectorRate(int rounds);
double AmxRate(int rounds);
double DotRate(int rounds);

}  // namespace ckv::matrix
