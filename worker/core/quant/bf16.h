// BF16: the upper half of an FP32. Branch-free, so that loops over these functions vectorise; constexpr, here
// and in the other codecs of this folder, so that CUDA kernels call the same code.
#pragma once

#include <bit>
#include <cstdint>

namespace coat {

constexpr float decode_bf16(std::uint16_t code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

// Round to nearest even; a NaN stays a (quiet) NaN.
constexpr std::uint16_t encode_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFFu);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>(magnitude > 0x7F800000 ? quiet_nan : rounded);
}

// The value after a round trip through BF16.
constexpr float round_bf16(float value) { return decode_bf16(encode_bf16(value)); }

}  // namespace coat
