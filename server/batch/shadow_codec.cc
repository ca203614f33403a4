#include "server/batch/shadow_codec.h"

#include <array>
#include <cmath>
#include <cstring>

#include "attention/bf16.h"
#include "attention/fp8.h"

namespace ckv {
namespace {

// The kernel takes scales below 2^120, which are of values below 448 x 2^119; far beyond any model.
constexpr float kValueMax = 0x1p120f;
constexpr uint32_t kValueCountMax = 2048;

class Codec final : public ShadowCodec {
 public:
  uint32_t PackedRowBytes(const Geometry& geometry) const override {
    const bool packs = geometry.dtype == RowDtype::kBf16 && geometry.d_v % kFp8ScaleGroup == 0 &&
                       geometry.d_qk == geometry.d_v + geometry.d_rope &&
                       geometry.d_qk <= kValueCountMax;
    if (!packs) return 0;
    Geometry packed = geometry;
    packed.dtype = RowDtype::kFp8DsMla;
    return packed.row_bytes();
  }

  bool Pack(const Geometry& geometry, const std::byte* row, std::byte* packed) const override {
    std::array<uint16_t, kValueCountMax> bits;
    std::array<float, kValueCountMax> values;
    std::memcpy(bits.data(), row, geometry.d_qk * sizeof(uint16_t));
    FloatsFromBf16(bits.data(), values.data(), geometry.d_qk);
    // Also false of NaN.
    for (uint32_t i = 0; i < geometry.d_qk; ++i) {
      if (!(std::fabs(values[i]) < kValueMax)) return false;
    }
    PackFp8DsMlaRow(values.data(), geometry.d_v, geometry.d_rope,
                    reinterpret_cast<uint8_t*>(packed));
    return true;
  }
};

}  // namespace

const ShadowCodec* Fp8ShadowCodec() {
  static const Codec* const codec = new Codec;
  return codec;
}

}  // namespace ckv
