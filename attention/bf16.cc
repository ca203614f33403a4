#include "attention/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/bf16.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which compiles this file again for every target.
#include "attention/simd_math.inl.h"

HWY_BEFORE_NAMESPACE();
namespace ckv {
namespace HWY_NAMESPACE {

void RoundArray(const float* in, uint16_t* out, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    StoreU16Lanes(d, RoundToBf16(d, hn::LoadU(d, in + i)), out + i);
  }
  for (; i < count; ++i) out[i] = Bf16FromFloat(in[i]);
}

void WidenArray(const uint16_t* in, float* out, size_t count) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(LoadBf16(d, in + i), d, out + i);
  for (; i < count; ++i) out[i] = FloatFromBf16(in[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace ckv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ckv {

HWY_EXPORT(RoundArray);
HWY_EXPORT(WidenArray);

void Bf16FromFloats(const float* in, uint16_t* out, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(RoundArray)(in, out, count);
}

void FloatsFromBf16(const uint16_t* in, float* out, size_t count) noexcept {
  HWY_DYNAMIC_DISPATCH(WidenArray)(in, out, count);
}

}  // namespace ckv
#endif  // HWY_ONCE
