// exp for loops that vectorise, and the same bits on every device: constexpr, so that CUDA kernels call it
// too.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace coat::kernels {

// e^x within 2 ulp (1 step of the smallest subnormal where the result is subnormal), overflow to infinity,
// NaN to NaN; no branch. x = n ln 2 + r with |r| <= ln(2) / 2; the Taylor polynomial of degree 7 leaves a
// relative error of r^8 / 8! < 6e-9.
constexpr float exp_f32(float x) {
  constexpr float kRounder = 0x1.8p23f;  // adding it rounds to an integer, which is then in the low bits
  constexpr float kLn2High = 0x1.62e4p-1f;
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  const float above = x < -104.0f ? -104.0f : x;
  const float clamped = above > 89.0f ? 89.0f : above;
  const float shifted = std::fma(clamped, 0x1.715476p0f, kRounder);
  const float n = shifted - kRounder;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, clamped));
  float p = 1.0f / 5040.0f;
  p = std::fma(p, r, 1.0f / 720.0f);
  p = std::fma(p, r, 1.0f / 120.0f);
  p = std::fma(p, r, 1.0f / 24.0f);
  p = std::fma(p, r, 1.0f / 6.0f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  // 2^n in two factors, each of which is a normal number.
  const std::uint32_t integer =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRounder);
  const auto half = static_cast<std::uint32_t>(static_cast<std::int32_t>(integer) >> 1);
  const float factor1 = std::bit_cast<float>((half + 127u) << 23);
  const float factor2 = std::bit_cast<float>((integer - half + 127u) << 23);
  return p * factor1 * factor2;
}

constexpr float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

}  // namespace coat::kernels
