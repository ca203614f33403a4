// The instruction sets and devices that kernels are compiled for, as numbers that peers send.

#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace ckv {

// Two answers have equal bits only if one target made both. The numbers never change; new targets
// get new ones.
enum class KernelTargetId : uint8_t {
  kUnknown = 0,  // an old peer, or a target without a number here: equal to nothing
  kScalar = 1,
  kSse2 = 2,
  kSsse3 = 3,
  kSse4 = 4,
  kAvx2 = 5,
  kAvx3 = 6,
  kAvx3Dl = 7,
  kAvx3Zen4 = 8,
  kAvx3Spr = 9,
  kAvx10 = 10,
  kNeonWithoutAes = 20,
  kNeon = 21,
  kNeonBf16 = 22,
  kSve = 23,
  kSve2 = 24,
  kSve256 = 25,
  kSve2_128 = 26,
  kAmx = 40,         // AMX tiles, with bf16 operands
  kAvx512Bf16 = 41,  // VDPBF16PS
  kAmxModel = 42,    // the tiles in software, with the bits of kAmx
  kCudaSm90 = 60,    // a GPU of compute capability 9.0: H100, H200
};

// Their names: KernelTarget of attention/mla_partial.h, or a device's Backend::kernel_target.
inline constexpr std::array<std::pair<KernelTargetId, std::string_view>, 21> kKernelTargetNames = {{
    {KernelTargetId::kScalar, "SCALAR"},
    {KernelTargetId::kSse2, "SSE2"},
    {KernelTargetId::kSsse3, "SSSE3"},
    {KernelTargetId::kSse4, "SSE4"},
    {KernelTargetId::kAvx2, "AVX2"},
    {KernelTargetId::kAvx3, "AVX3"},
    {KernelTargetId::kAvx3Dl, "AVX3_DL"},
    {KernelTargetId::kAvx3Zen4, "AVX3_ZEN4"},
    {KernelTargetId::kAvx3Spr, "AVX3_SPR"},
    {KernelTargetId::kAvx10, "AVX10_2"},
    {KernelTargetId::kNeonWithoutAes, "NEON_WITHOUT_AES"},
    {KernelTargetId::kNeon, "NEON"},
    {KernelTargetId::kNeonBf16, "NEON_BF16"},
    {KernelTargetId::kSve, "SVE"},
    {KernelTargetId::kSve2, "SVE2"},
    {KernelTargetId::kSve256, "SVE_256"},
    {KernelTargetId::kSve2_128, "SVE2_128"},
    {KernelTargetId::kAmx, "AMX"},
    {KernelTargetId::kAvx512Bf16, "AVX512_BF16"},
    {KernelTargetId::kAmxModel, "AMX_MODEL"},
    {KernelTargetId::kCudaSm90, "CUDA_SM90"},
}};

// Returns the number of a target, kUnknown if its name has none.
constexpr KernelTargetId KernelTargetIdOf(std::string_view name) {
  for (const auto& [id, known] : kKernelTargetNames) {
    if (known == name) return id;
  }
  return KernelTargetId::kUnknown;
}

// Returns the name of a target, "unknown" if it has none.
constexpr std::string_view KernelTargetName(KernelTargetId id) {
  for (const auto& [known, name] : kKernelTargetNames) {
    if (known == id) return name;
  }
  return "unknown";
}

}  // namespace ckv
