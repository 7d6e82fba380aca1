// The scale of a tensor, row, group or block from its largest magnitude.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "worker/core/quant/bf16.h"
#include "worker/core/quant/format.h"

namespace coat {

// The smallest scale: a power of two that every scale format holds as a normal number, whose reciprocal is
// finite. So a zero tensor has a finite scale, and a tensor times 2^-50 has the same codes (COAT.md 5.5 fact
// 33).
inline constexpr float kMinScale = 0x1p-126f;

// scale = max((amax + added) / largest, kMinScale), with the format's largest value; NaN and Inf stay
// visible.
constexpr float scale_from_amax(float amax, float largest, float added = 0) {
  const float scale = (amax + added) / largest;
  return scale < kMinScale ? kMinScale : scale;
}

// Up: of positive numbers from kMinScale on; infinity and NaN become 255.
constexpr std::uint8_t encode_e8m0(float scale) {
  const std::uint32_t above = (std::bit_cast<std::uint32_t>(scale) + 0x7FFFFFu) >> 23;
  return static_cast<std::uint8_t>(above < 255 ? above : 255);
}

constexpr float decode_e8m0(std::uint8_t code) {
  if (code == 255) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

// Up: of positive numbers; infinity stays, NaN stays a NaN.
constexpr std::uint16_t encode_bf16_up(float scale) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  const std::uint32_t above = bits > 0x7F800000u ? bits | 0x400000u : bits + 0xFFFFu;
  return static_cast<std::uint16_t>(above >> 16);
}

// The scale as it is stored. Rounding it down to BF16 brings |x| / scale to 448.9 at most, which still rounds
// to 448 (fact 23).
constexpr float stored_scale(float scale, ScaleFormat format) {
  switch (format) {
    case ScaleFormat::kFp32:
      return scale;
    case ScaleFormat::kBf16:
      return round_bf16(scale);
    case ScaleFormat::kBf16Up:
      return decode_bf16(encode_bf16_up(scale));
    case ScaleFormat::kE8M0:
      return decode_e8m0(encode_e8m0(scale));
  }
  return scale;
}

// The scale that codes are made with. With the stored one every code is the nearest to its value on the grid
// that decoding will use, which is more accurate than the reference's rule for groups (COAT.md 1.4).
constexpr float code_scale(float scale, ScaleFormat format, const ScaleRule& rule) {
  return rule.codes_use_stored_scale ? stored_scale(scale, format) : scale;
}

}  // namespace coat
