// The kernels on units that multiply bf16, and whether this machine has the units.

#pragma once

#include <string>

#include "attention/block_kernel.h"

namespace ckv::matrix {

// Whether this process may use a unit, or why not.
struct UnitState {
  bool usable = false;
  std::string why_not;
};

// AMX: the processor has it (amx_tile, amx_bf16, AVX-512), the system saves its registers, and
// Linux has granted this process their use. Asks for the grant, once; threads and children inherit
// it. It is refused if a thread has an alternate signal stack of less than a frame, 11,952 bytes.
// Once it is granted, a stack of less is refused. client/requester.h tells embedders.
const UnitState& AmxUnit();
// AVX512_BF16's VDPBF16PS.
const UnitState& DotUnit();

const BlockKernel& AmxBlockKernel();  // needs AmxUnit
const BlockKernel& DotBlockKernel();  // needs DotUnit
// TDPBF16PS' arithmetic in plain code, with the bits of AmxBlockKernel. Needs AVX-512.
const BlockKernel& ModelBlockKernel();
// The same without vector instructions, for any machine.
const BlockKernel& PortableModelBlockKernel();

// Floating-point operations a microsecond of one thread, in a loop that does nothing else: the best
// of `rounds` rounds of some 10 us. For choosing a target: fused multiply-adds of f32 in AVX-512,
// and the units' products of bf16. 0 if this machine lacks them.
double VectorRate(int rounds);
double AmxRate(int rounds);
double DotRate(int rounds);

}  // namespace ckv::matrix
