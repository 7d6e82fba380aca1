// The two FP8 formats (COAT.md 5.1 fact 1), scalar and branch-free, so that loops over these functions
// vectorise.
//
// Encoding rounds to nearest even and saturates as CUDA's conversion with "satfinite" does: what lies beyond
// the largest finite value, infinities too, becomes that value with its sign; NaN becomes code 0x7F.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace coat {

// Where the fields lie, for both formats. Bias is that of the 8-bit exponent field.
template <int MantissaBits, int Bias, int MaxCode>
struct Fp8Layout {
  static constexpr int kShift = 23 - MantissaBits;  // from the FP32 mantissa
  static constexpr int kMaxFiniteCode = MaxCode;
  static constexpr std::int32_t kRebias = (127 - Bias) << 23;
  static constexpr std::int32_t kMinNormalBits = kRebias + (1 << 23);
  static constexpr std::int32_t kMaxBits = (MaxCode << kShift) + kRebias;
  // Adding it to a value below the smallest normal one rounds that to a multiple of the smallest subnormal
  // one.
  static constexpr std::int32_t kRounderBits = (127 + 1 - Bias - MantissaBits + 23) << 23;
};
using E4M3Layout = Fp8Layout<3, 7, 0x7E>;
using E5M2Layout = Fp8Layout<2, 15, 0x7B>;

template <typename Layout>
constexpr std::uint8_t encode_fp8(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  const std::int32_t magnitude = bits & 0x7FFFFFFF;
  const std::int32_t clamped = magnitude < Layout::kMaxBits ? magnitude : Layout::kMaxBits;
  const std::int32_t half_step = (1 << (Layout::kShift - 1)) - 1;
  const std::int32_t normal =
      (clamped + half_step + ((clamped >> Layout::kShift) & 1) - Layout::kRebias) >> Layout::kShift;
  const float rounder = std::bit_cast<float>(Layout::kRounderBits);
  const std::int32_t subnormal =
      std::bit_cast<std::int32_t>(std::bit_cast<float>(clamped) + rounder) - Layout::kRounderBits;
  const std::int32_t finite = (clamped < Layout::kMinNormalBits ? subnormal : normal) | ((bits >> 24) & 0x80);
  return static_cast<std::uint8_t>(magnitude > 0x7F800000 ? 0x7F : finite);
}

constexpr std::uint8_t encode_e4m3(float value) { return encode_fp8<E4M3Layout>(value); }
constexpr std::uint8_t encode_e5m2(float value) { return encode_fp8<E5M2Layout>(value); }

// A subnormal code is read as the normal number of the exponent above, less that exponent's leading one: no
// FP32 subnormal appears on the way.
template <typename Layout>
constexpr float decode_fp8_finite(std::int32_t code) {
  const std::int32_t fields = (code & 0x7F) << Layout::kShift;
  const float normal = std::bit_cast<float>(fields + Layout::kRebias);
  const float subnormal =
      std::bit_cast<float>(fields + Layout::kMinNormalBits) - std::bit_cast<float>(Layout::kMinNormalBits);
  return fields < (1 << 23) ? subnormal : normal;
}

// Up in magnitude with p = (|x| - lo) / (hi - lo), lo and hi the neighbouring finite values and `uniform` in
// [0, 1) of 24 bits: exact, and unbiased in the value. Saturates; NaN becomes 0x7F.
template <typename Layout>
constexpr std::uint8_t encode_fp8_stochastic(float value, float uniform) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  const std::int32_t magnitude = bits & 0x7FFFFFFF;
  const std::int32_t clamped = magnitude < Layout::kMaxBits ? magnitude : Layout::kMaxBits;
  const float x = std::bit_cast<float>(clamped);
  const float smallest = decode_fp8_finite<Layout>(1);
  const std::int32_t below = clamped < Layout::kMinNormalBits ? static_cast<std::int32_t>(x / smallest)
                                                              : (clamped - Layout::kRebias) >> Layout::kShift;
  const float low = decode_fp8_finite<Layout>(below);
  const float step = decode_fp8_finite<Layout>(below + 1) - low;
  const std::int32_t code = below + (uniform * step < x - low ? 1 : 0);
  return static_cast<std::uint8_t>(magnitude > 0x7F800000 ? 0x7F : code | ((bits >> 24) & 0x80));
}

constexpr float decode_e4m3(std::uint8_t code) {
  const float finite = decode_fp8_finite<E4M3Layout>(code);
  const float magnitude = (code & 0x7F) == 0x7F ? std::numeric_limits<float>::quiet_NaN() : finite;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) |
                              (static_cast<std::uint32_t>(code & 0x80) << 24));
}

constexpr float decode_e5m2(std::uint8_t code) {
  const auto finite = std::bit_cast<std::int32_t>(decode_fp8_finite<E5M2Layout>(code));
  const std::int32_t special = ((code & 0x7F) << E5M2Layout::kShift) | 0x7F800000;
  const std::int32_t magnitude = (code & 0x7F) > E5M2Layout::kMaxFiniteCode ? special : finite;
  return std::bit_cast<float>(static_cast<std::uint32_t>(magnitude) |
                              (static_cast<std::uint32_t>(code & 0x80) << 24));
}

}  // namespace coat
