#include "attention/target/processor.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "absl/strings/str_format.h"
#include "attention/matrix/matrix_kernel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ckv {
namespace {

// Units take turns. Otherwise, a neighbour that slows this core for 100 us would slow one unit
// only. Next to two busy threads, 37 of 200 starts measured too low a rate with one pass, and 14
// with five.
constexpr int kRatePasses = 5;
constexpr int kRateRounds = 20;  // 10 us each
// The tile unit takes more than 200 us to reach its full rate: 1.27 TFLOP/s at first, then 3.34.
constexpr int kAmxRateRounds = 100;

#if defined(__x86_64__)

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};
Leaf Cpuid(uint32_t leaf, uint32_t sub = 0) {
  Leaf r;
  if (__get_cpuid_count(leaf, sub, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

constexpr uint32_t Bits(std::initializer_list<int> bits) {
  uint32_t mask = 0;
  for (const int bit : bits) mask |= uint32_t{1} << bit;
  return mask;
}

// Instruction sets only. Other bits show how the system and its microcode guard against side
// channels, and change with updates of either.
constexpr uint32_t kLeaf1Ecx = Bits({0, 1, 9, 12, 19, 20, 23, 25, 28, 29});  // SSE3 to F16C
constexpr uint32_t kLeaf7Ebx = Bits({3, 5, 8, 16, 17, 21, 28, 30, 31});      // BMI, AVX2, AVX-512
constexpr uint32_t kLeaf7Ecx = Bits({1, 6, 8, 9, 10, 11, 12, 14});           // more of AVX-512
constexpr uint32_t kLeaf7Edx = Bits({2, 3, 8, 22, 23, 24, 25});              // FP16, AMX
constexpr uint32_t kLeaf7Sub1Eax = Bits({4, 5, 21, 23});                     // VNNI, BF16, AMX FP16
constexpr uint32_t kLeaf7Sub1Edx = Bits({4, 5, 19});                         // AVX10

#endif

}  // namespace

std::string DescribeProcessor() {
#if defined(__x86_64__)
  const Leaf name = Cpuid(0), one = Cpuid(1), seven = Cpuid(7), more = Cpuid(7, 1);
  char vendor[13] = {};
  std::memcpy(vendor, &name.ebx, 4);
  std::memcpy(vendor + 4, &name.edx, 4);
  std::memcpy(vendor + 8, &name.ecx, 4);
  // Families and models beyond 15 continue in fields of their own.
  uint32_t family = one.eax >> 8 & 0xf, model = one.eax >> 4 & 0xf;
  if (family == 6 || family == 15) model += (one.eax >> 16 & 0xf) << 4;
  if (family == 15) family += one.eax >> 20 & 0xff;
  const bool hypervisor = (one.ecx >> 31) != 0;
  return absl::StrFormat("%s %d.%d.%d, features %08x%08x%08x%08x%08x%08x, %s, %s", vendor, family,
                         model, one.eax & 0xf, one.ecx & kLeaf1Ecx, seven.ebx & kLeaf7Ebx,
                         seven.ecx & kLeaf7Ecx, seven.edx & kLeaf7Edx, more.eax & kLeaf7Sub1Eax,
                         more.edx & kLeaf7Sub1Edx, hypervisor ? "hypervisor" : "no hypervisor",
                         matrix::AmxUnit().usable ? "AMX" : "no AMX");
#else
  return "no x86-64 processor";
#endif
}

UnitRates MeasureUnits() {
  constexpr double kPerGflop = 1e3;  // operations a microsecond
  UnitRates best;
  // Without a matrix unit there is no choice to make, so nothing is measured.
  if (!matrix::AmxUnit().usable && !matrix::DotUnit().usable) return best;
  for (int pass = 0; pass < kRatePasses; ++pass) {
    best.f32 = std::max(best.f32, matrix::VectorRate(kRateRounds) / kPerGflop);
    best.amx = std::max(best.amx, matrix::AmxRate(kAmxRateRounds) / kPerGflop);
    best.dot = std::max(best.dot, matrix::DotRate(kRateRounds) / kPerGflop);
  }
  return best;
}

}  // namespace ckv
