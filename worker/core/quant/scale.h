// The scale of a tensor or group from its largest magnitude.
#pragma once

#include "worker/core/quant/bf16.h"
#include "worker/core/quant/format.h"

namespace coat {

// The smallest scale: a power of two that BF16 and FP32 hold as normal numbers, whose reciprocal is finite.
// So a zero tensor has a finite scale, and a tensor times 2^-50 has the same codes (COAT.md 5.5 fact 33).
inline constexpr float kMinScale = 0x1p-126f;

// scale = max(amax, kMinScale * largest) / largest, with the format's largest value; NaN and Inf stay
// visible.
constexpr float scale_from_amax(float amax, float largest) {
  const float scale = amax / largest;
  return scale < kMinScale ? kMinScale : scale;
}

// The scale as it is stored. Codes are made with this one, not with the FP32 value before its rounding: then
// every code is the nearest to its value on the grid that decoding will use, which is more accurate than
// COAT.md 1.4. Rounding a scale down to BF16 brings |x| / scale to 448.9 at most, which still rounds to 448
// (fact 23).
constexpr float stored_scale(float scale, Format scale_format) {
  return scale_format == Format::kBf16 ? round_bf16(scale) : scale;
}

}  // namespace coat
