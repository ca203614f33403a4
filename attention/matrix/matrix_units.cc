// Which matrix units this machine has, and how fast they are. AmxUnit and DotUnit read CPUID and
// the register states that the system saves; for AMX they also request the kernel's permission.
// Each is determined once. The rates are multiply-adds in a second of a loop in L1, the best of
// some rounds. On other processors than x86-64 there is no unit.

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "attention/matrix/matrix_kernel.h"
#include "hwy/base.h"
#include "proto/base/clock.h"

namespace ckv::matrix {

#if defined(__x86_64__)

// In the files of the kernels, compiled for the units.
void AmxMultiply(const uint16_t* operands, int steps);
void DotMultiply(const uint16_t* operands, int steps);

namespace {

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};
Leaf Cpuid(uint32_t leaf, uint32_t sub) {
  Leaf r;
  if (__get_cpuid_count(leaf, sub, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}
bool Has(uint32_t word, int bit) { return (word >> bit & 1) != 0; }

// The register states that the system saves; 0 if it does not report them.
uint64_t SavedStates() {
  if (!Has(Cpuid(1, 0).ecx, 27)) return 0;  // OSXSAVE
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// AVX-512 F, DQ, BW and VL, with their registers saved.
bool HasAvx512() {
  const uint32_t ebx = Cpuid(7, 0).ebx;
  constexpr uint64_t kStates = 0xe6;  // SSE, AVX, and the three parts of AVX-512
  return Has(ebx, 16) && Has(ebx, 17) && Has(ebx, 30) && Has(ebx, 31) &&
         (SavedStates() & kStates) == kStates;
}

UnitState RequestAmx() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  const uint32_t edx = Cpuid(7, 0).edx;
  if (!HasAvx512()) return {false, "the processor, or its hypervisor, shows no AVX-512"};
  if (!Has(edx, 22) || !Has(edx, 24))
    return {false, "the processor, or its hypervisor, shows no amx_tile and amx_bf16"};
  constexpr uint64_t kTileStates = uint64_t{3} << 17;
  if ((SavedStates() & kTileStates) != kTileStates)
    return {false, "the system does not save tile registers (Linux does from 5.16 on)"};
  // Without the grant ldtilecfg succeeds, and the first tile operation is SIGILL.
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) {
    return {false, absl::StrCat("the system refused the use of tile registers: ",
                                std::strerror(errno), "; an alternate signal stack of less than ",
                                getauxval(AT_MINSIGSTKSZ), " bytes is a reason")};
  }
  return {true, ""};
}

HWY_PUSH_ATTRIBUTES("avx512f")
void VectorMultiply(int steps) {
  __m512 sum[16];
#pragma GCC unroll 16
  for (__m512& one : sum) {
    one = _mm512_setzero_ps();
    asm volatile("" : "+v"(one));  // else the compiler sees that all are equal, and computes one
  }
  const __m512 x = _mm512_set1_ps(1.5f);
  for (int i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (__m512& one : sum) one = _mm512_fmadd_ps(x, x, one);
    asm volatile("" : : : "memory");
  }
#pragma GCC unroll 16
  for (const __m512& one : sum) asm volatile("" : : "v"(one));
}
HWY_POP_ATTRIBUTES

// The best of several rounds: a disturbance makes a round slower, never faster.
template <class Round>
double RateOf(int rounds, double flop, Round round) {
  round();
  double best = 0;
  for (int i = 0; i < rounds; ++i) {
    const Instant begin = Clock::Real()->Now();
    round();
    best = std::max(best, flop / std::max(0.01, UsSince(begin, *Clock::Real())));
  }
  return best;
}

// 16 KB, which stay in the L1 cache. Aligned, because rows of a tile that straddle two cache lines
// load at a third of the rate.
struct Operands {
  Operands() { std::fill_n(values, 4 * 2048, uint16_t{0x3c00}); }
  alignas(64) uint16_t values[4 * 2048];
};

}  // namespace

const UnitState& AmxUnit() {
  static const UnitState* const state = new UnitState(RequestAmx());
  return *state;
}

const UnitState& DotUnit() {
  static const UnitState* const state =
      HasAvx512() && Has(Cpuid(7, 1).eax, 5)
          ? new UnitState{true, ""}
          : new UnitState{false, "the processor shows no avx512_bf16"};
  return *state;
}

double VectorRate(int rounds) {
  if (!HasAvx512()) return 0;
  constexpr int kSteps = 2000;  // 16 instructions of 32 operations: 5 us at two a cycle
  return RateOf(rounds, 512.0 * kSteps, [] { VectorMultiply(kSteps); });
}

double AmxRate(int rounds) {
  if (!AmxUnit().usable) return 0;
  constexpr int kSteps = 400;  // 4 products of 16384 operations: 10 us at 16 cycles each
  const Operands operands;
  return RateOf(rounds, 4 * 16384.0 * kSteps, [&] { AmxMultiply(operands.values, kSteps); });
}

double DotRate(int rounds) {
  if (!DotUnit().usable) return 0;
  constexpr int kSteps = 1000;  // 16 instructions of 64 operations
  const Operands operands;
  return RateOf(rounds, 1024.0 * kSteps, [&] { DotMultiply(operands.values, kSteps); });
}

#else

namespace {
const UnitState kNone = {false, "not an x86-64 processor"};
}  // namespace
const UnitState& AmxUnit() { return kNone; }
const UnitState& DotUnit() { return kNone; }
double VectorRate(int) { return 0; }
double AmxRate(int) { return 0; }
double DotRate(int) { return 0; }

#endif

}  // namespace ckv::matrix
