// How weights are stored between optimizer steps, bit by bit. Branch-free; constexpr, so that CUDA kernels
// call the same code.
//
// kBf16Residual keeps the upper 24 bits of the FP32 value: a BF16 and a byte of the next eight bits, signed,
// so that the BF16 is the nearest one. In units: value = bf16 + residual * 2^-8 of the distance to the next
// BF16 away from zero (below bf16, where residual < 0: of the distance towards zero, half as much below a
// power of two). The whole is a float of 15 stored mantissa bits, so powers of two and subnormals need no
// rule of their own.
#pragma once

#include <bit>
#include <cstdint>

namespace coat {

enum class WeightFormat : std::uint8_t {
  kFp32,
  kBf16Stochastic,  // BF16; what a step computes is rounded up with p = (x - lo) / (hi - lo): unbiased
  kBf16Residual,    // BF16 and an int8
};

struct SplitWeight {
  std::uint16_t bf16;
  std::int8_t residual;
};

inline constexpr std::uint32_t kFp32Infinity = 0x7F800000u;
inline constexpr std::uint32_t kLargestBf16Code = 0x7F7Fu;

// The FP32 value rounded to 24 bits, to nearest even, then cut; a tie of the BF16 goes away from zero. Finite
// values stay finite (the largest become 0x7F7F and 127). Infinity and NaN are those of BF16, with residual
// 0.
constexpr SplitWeight split_weight(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu, sign = bits >> 31 << 15;
  if (magnitude >= kFp32Infinity) {
    const std::uint32_t quiet = magnitude > kFp32Infinity ? 0x40u : 0u;
    return {static_cast<std::uint16_t>(sign | magnitude >> 16 | quiet), 0};
  }
  const std::uint32_t kept = (magnitude + 0x7Fu + ((magnitude >> 8) & 1u)) >> 8;
  const std::uint32_t nearest = (kept + 0x80u) >> 8;
  const std::uint32_t bf16 = nearest < kLargestBf16Code ? nearest : kLargestBf16Code;
  const auto residual = static_cast<std::int32_t>(kept) - static_cast<std::int32_t>(bf16 << 8);
  return {static_cast<std::uint16_t>(sign | bf16), static_cast<std::int8_t>(residual < 127 ? residual : 127)};
}

// The FP32 value of the 24 bits, exactly.
constexpr float join_weight(std::uint16_t bf16, std::int8_t residual) {
  const std::uint32_t code = bf16, sign = code >> 15 << 31;
  const std::uint32_t magnitude =
      ((code & 0x7FFFu) << 16) + (static_cast<std::uint32_t>(std::int32_t{residual}) << 8);
  return std::bit_cast<float>(sign | magnitude);
}

// Rounded to BF16, up in magnitude with p = (the 16 bits that are cut) / 2^16 exactly, for `random` uniform
// in 0 .. 65535. Finite values stay finite; infinity and NaN stay what they are.
constexpr std::uint16_t round_bf16_stochastic(float value, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu, sign = bits >> 31 << 15;
  if (magnitude >= kFp32Infinity) {
    const std::uint32_t quiet = magnitude > kFp32Infinity ? 0x40u : 0u;
    return static_cast<std::uint16_t>(sign | magnitude >> 16 | quiet);
  }
  const std::uint32_t rounded = (magnitude + random) >> 16;
  return static_cast<std::uint16_t>(sign | (rounded < kLargestBf16Code ? rounded : kLargestBf16Code));
}

}  // namespace coat
