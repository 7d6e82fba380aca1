// Octave codes of optimizer moments: bytes that are floats whose number of codes an octave (a factor of two)
// each group chooses for itself. Integer arithmetic but for a multiply-add, so that devices agree bit by bit
// and no table is looked up.
//
// A group stores amax and n, at most 127. Code `top` (127 beside a sign bit, 255 without) is amax, code c
// lies (top - c) / n octaves below it, within an octave at equal distances as in a float:
//   f(c) = float from the bits one - (top - c) 2^23 / n,   one = the bits of 1.0f
// (rounded by a unit of the last place here and there). Code 0 is zero, and for others
//   value(c) = amax f(c)                          without signs: second moments, well above zero
//   value(c) = amax (f(c) - f(0)) / (1 - f(0))    with signs: first moments, which crowd around zero
// The latter underflows gradually, as floats with subnormal numbers do: equal distances near zero, equal
// ratios far from it; n = 127 is linear. n is the largest that lets code 1 reach the group's smallest
// magnitude, as all smaller n do (OctaveRows), so that a value that is not zero never becomes zero.
//
// A step of the optimizer reads a moment as two factors: f(c) - f(0), or f(c) without signs, and amax / (1 -
// f(0)) or amax.
//
// Encoding: position = top + n (bits of y - one) / 2^23, where y = |x| / amax without signs and
// |x| / amax (1 - f(0)) + f(0) with them, by one multiply-add of |x|. n is whole, so the borders of octaves
// are codes, and between two neighbouring codes the position is linear in the value: rounding it up with its
// fraction as probability is stochastic rounding in the value domain (COAT.md 5.4), p to 2^-16.
//
// All functions are pure; CUDA kernels call them.
#pragma once

#include <bit>
#include <cstdint>

namespace coat {

inline constexpr int kOctaveRows = 127;                  // the largest n
inline constexpr std::uint32_t kOneBits = 0x3F800000u;   // of 1.0f
inline constexpr std::uint32_t kOctaveBits = 0x800000u;  // an octave of float bits

// The smallest n: all codes lie within the 127 octaves that FP32 has below 1. What is smaller than code 1
// then is code 1.
constexpr int octave_first_row(int top) { return (top + 126) / 127; }

// A group's row as it is used: a group of zeros stores another (kLastRow).
constexpr int octave_row_used(int top, int row) {
  const int at_least = octave_first_row(top);
  return row < at_least ? at_least : row > kOctaveRows ? kOctaveRows : row;
}

// 2^31 / n rounded up: the upper half of a product with code 2^24 is code / n octaves.
constexpr std::uint32_t octave_step(int n) {
  const auto codes = static_cast<std::uint32_t>(n);
  return (0x80000000u + codes - 1) / codes;
}
// code / n octaves in float bits, at most one unit too many.
constexpr std::uint32_t octave_offset(std::uint32_t step, int code) {
  return static_cast<std::uint32_t>(std::uint64_t{static_cast<std::uint32_t>(code) << 24} * step >> 32);
}

// Float bits whose position is 0 but for less than 2^-16: what smaller y, zero too, are taken for.
constexpr std::uint32_t octave_floor(int top, int n) {
  return kOneBits - (static_cast<std::uint32_t>(top) << 23) / static_cast<std::uint32_t>(n);
}

// The gradual underflow of codes with signs, of others none.
struct OctaveTail {
  float start;    // f(0), or 0
  float rest;     // 1 - start
  float stretch;  // 1 / rest, or the float above where that would not bring 1 to 1
};
constexpr OctaveTail octave_tail(int top, int n) {
  if (top != 127) return {0.0f, 1.0f, 1.0f};
  const auto start = std::bit_cast<float>(octave_floor(top, n));
  const float rest = 1.0f - start, inverse = 1.0f / rest;
  const float above = std::bit_cast<float>(std::bit_cast<std::uint32_t>(inverse) + 1);
  return {start, rest, rest * inverse < 1.0f ? above : inverse};
}

// The magnitude of a code relative to amax / stretch: f(c) - start.
constexpr float octave_unstretched(int top, int n, int code) {
  const std::uint32_t step = octave_step(n), above = octave_offset(step, code);
  if (code == 0) return 0.0f;
  if (top == 127) return std::bit_cast<float>(octave_floor(top, n) + above) - octave_tail(top, n).start;
  return std::bit_cast<float>(kOneBits - octave_offset(step, top) + above);
}
// The same relative to amax.
constexpr float octave_value(int top, int n, int code) {
  const float stretched = octave_unstretched(top, n, code) * octave_tail(top, n).stretch;
  return stretched < 1.0f ? stretched : 1.0f;
}

// y = |x| * slope + start, with one rounding (fma), and at most 1. `inverse`: 1 / amax rounded up, of
// ratio_scale().
//
// The two units make up for the roundings of slope, of rest and of the ratio |x| * inverse: y of amax is 1,
// and y is at least ratio * rest + start, so that what OctaveRows::reach() says of a ratio holds for the
// magnitude.
constexpr float octave_slope(float inverse, float rest) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(inverse * rest) + 2);
}

// The position of `y`, at most 1, in 2^-24: code in the upper byte.
constexpr std::uint32_t octave_position(int top, int n, float y) {
  const std::uint32_t lowest = octave_floor(top, n), bits = std::bit_cast<std::uint32_t>(y);
  const std::uint32_t used = bits > lowest ? bits : lowest;
  return (used - kOneBits) * (2 * static_cast<std::uint32_t>(n)) + (static_cast<std::uint32_t>(top) << 24);
}

// `random`: 16 bits.
constexpr std::int32_t stochastic_octave_code(int top, int n, float y, std::uint32_t random) {
  return static_cast<std::int32_t>((octave_position(top, n, y) + (random << 8)) >> 24);
}

// To nearest, ties to the even code.
constexpr std::int32_t nearest_octave_code(int top, int n, float y) {
  const std::uint32_t position = octave_position(top, n, y);
  return static_cast<std::int32_t>((position + 0x7FFFFFu + ((position >> 24) & 1u)) >> 24);
}

}  // namespace coat
