// Dynamic range expansion of optimizer moments (COAT.md 1.2) in its (amax, k) form.
//
// A group stores amax = max |x|, k16 = 16 k, and for each element the E4M3 code of 448 (|x| / amax)^k with
// x's sign. Decoding is defined by a table made once in FP64, so every device gives the same bits and no
// power is taken inside a step:
//   value = amax * values(k16)[code],   values(k16)[c] = float((e4m3(c) / 448)^(16 / k16))
#pragma once

#include <array>
#include <cstdint>

namespace coat {

inline constexpr int kExpandedCodes = 127;  // magnitudes 0x00..0x7E
inline constexpr int kMinK16 = 2;    // 1 would be for ratios beyond 2^132, which FP32 quotients cannot hold
inline constexpr int kMaxK16 = 255;  // binds for amax / amin below 2.06; a smaller k is always correct

class ExpansionTable {
 public:
  // Made on first use; thread-safe.
  static const ExpansionTable& instance();

  // 128 FP32, strictly increasing from 0 to 1 at code 0x7E; [127] is infinity.
  const float* values(int k16) const { return values_[static_cast<std::size_t>(k16)].data(); }
  // [c] is where codes c and c + 1 meet when rounding to nearest in the expanded domain: ((e4m3(c) + e4m3(c +
  // 1)) / 2 / 448)^(16 / k16). [126] and [127] are infinity.
  const float* boundaries(int k16) const { return boundaries_[static_cast<std::size_t>(k16)].data(); }

 private:
  ExpansionTable();
  using Row = std::array<float, 128>;
  std::array<Row, 256> values_;
  std::array<Row, 256> boundaries_;
};

// The largest k16 whose limit in `largest_ratios` (256 falling values) holds R = amax / amin, at least
// kMinK16.
constexpr int expanded_k16(const double* largest_ratios, float amax, float amin) {
  const double ratio = static_cast<double>(amax) / static_cast<double>(amin);
  int k16 = 0;
  for (int step = 128; step > 0; step >>= 1) k16 += ratio <= largest_ratios[k16 + step] ? step : 0;
  return k16 > kMinK16 ? k16 : kMinK16;
}

// k from the range of a group: k16 = floor(16 log2(bound) / log2(R)) within [kMinK16, kMaxK16], R = amax /
// amin over non-zero magnitudes. Compares R with bound^(16 / k16), made once: no logarithm that two devices
// might round differently.
class ExpansionRange {
 public:
  explicit ExpansionRange(double bound);
  int k16(float amax, float amin) const { return expanded_k16(largest_ratio_.data(), amax, amin); }
  // 256 values: [k16] is the largest R that k16 may have.
  const double* largest_ratios() const { return largest_ratio_.data(); }

 private:
  std::array<double, 256> largest_ratio_;
};

// Both encoders take ratio = |x| / amax, at most 1, and a row of 128, and return a magnitude code.
// Branch-free.

// To nearest, ties to the even code.
constexpr std::int32_t nearest_expanded_code(const float* boundaries, float ratio) {
  std::int32_t code = 0;
  for (std::int32_t step = 64; step > 0; step >>= 1) code += boundaries[code + step - 1] < ratio ? step : 0;
  return code + (boundaries[code] == ratio ? code & 1 : 0);
}

// Up with p = (ratio - lo) / (hi - lo), where lo and hi are the neighbouring decoded values and `uniform`
// lies in [0, 1): unbiased in the value itself (COAT.md 5.4).
constexpr std::int32_t stochastic_expanded_code(const float* values, float ratio, float uniform) {
  std::int32_t code = 0;
  for (std::int32_t step = 64; step > 0; step >>= 1) code += values[code + step] <= ratio ? step : 0;
  code = code < kExpandedCodes - 1 ? code : kExpandedCodes - 2;
  const float low = values[code];
  return code + (uniform * (values[code + 1] - low) < ratio - low ? 1 : 0);
}

}  // namespace coat
