// The magnitudes that moment codes stand for, and how a value finds its code.
//
// Decoding is defined by tables that are made once in FP64, so every device gives the same bits and no power
// is taken inside a step:
//   value = amax * values(row)[code],   values(row)[c] = float(magnitude(c)^(16 / row))
// where magnitude(c) rises from 0 to 1: e4m3(c) / 448 and so on. A code that does not expand uses row 16. For
// log255, values(row)[c] = range(row)^(-(255 - c) / 254) and 0 for c = 0, with ranges from 2^126 at row 0 to
// 2^0.041 at row 255, each 2^(1/22) of the exponent below the last: a group's range wastes at most 3.2 % of
// it.
//
// Facts: COAT.md 5.1. All functions are pure or thread-safe; the constexpr ones are what CUDA kernels call.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "worker/core/quant/moment_format.h"
#include "worker/core/quant/octave_rows.h"

namespace coat {

constexpr int octave_top(MomentCode code) { return is_signed(code) ? 127 : 255; }

inline constexpr int kMomentRows = 256;
inline constexpr int kPlainRow = 16;  // of codes that do not expand: exponent 1
inline constexpr int kLastRow = 255;  // what a group of zeros stores

class MomentTable {
 public:
  // Of any code but kFp32. Made on first use.
  static const MomentTable& of(MomentCode code);

  int count() const { return count_; }  // magnitudes, 124 to 256
  int width() const { return width_; }  // floats of a row: 128 for codes with a sign, else 256
  // Rows below it do not exist: their smallest magnitude is none in FP32, or FP32 quotients cannot hold the
  // range.
  int first_row() const { return first_row_; }

  // `width` floats, strictly increasing from 0 to 1 at code count - 1; infinite beyond.
  const float* values(int row) const { return values_.data() + row * width_; }
  // The same in two factors, for a reader who multiplies by amax anyway: values(row)[c] is
  // unstretched(row)[c] * stretch(row), at most 1. stretch is 1 but for octave codes with signs.
  const float* unstretched(int row) const {
    return (unstretched_.empty() ? values_ : unstretched_).data() + row * width_;
  }
  float stretch(int row) const;
  // [c] is where codes c and c + 1 meet when rounding to nearest; NaN from count - 1 on: no ratio passes
  // them.
  const float* boundaries(int row) const { return boundaries_.data() + row * width_; }
  // k of COAT.md: the exponent that brings a range of row `row` to that of row 16.
  double exponent(int row) const;
  // All rows, for a device's copy.
  const std::vector<float>& all_values() const { return values_; }
  const std::vector<float>& all_boundaries() const { return boundaries_; }

 private:
  explicit MomentTable(MomentCode code);
  void fill_octaves();
  MomentCode code_;
  int count_, width_, first_row_;
  std::vector<float> values_, boundaries_;
  std::vector<float> unstretched_;  // empty: values_
};

// The largest row whose limit in `limits` (256 falling values) holds R = amax / amin, at least first_row.
constexpr int choose_row(const double* limits, int first_row, float amax, float amin) {
  const double ratio = static_cast<double>(amax) / static_cast<double>(amin);
  int row = 0;
  for (int step = 128; step > 0; step >>= 1) row += ratio <= limits[row + step] ? step : 0;
  return row > first_row ? row : first_row;
}

// ratio = |x| / amax, at most 1 and exactly 1 for |x| = amax, without a division an element: times a
// reciprocal that is at least 1 / amax, of magnitudes that are brought into its range first where they are
// tiny.
struct RatioScale {
  float up, inverse;
};
constexpr RatioScale ratio_scale(float amax) {
  const float up = amax < 0x1p-100f ? 0x1p64f : 1.0f;
  return {up, std::bit_cast<float>(std::bit_cast<std::uint32_t>(1.0f / (amax * up)) + 1)};
}
constexpr float ratio_of(float magnitude, const RatioScale& scale) {
  const float ratio = magnitude * scale.up * scale.inverse;
  return ratio > 1.0f ? 1.0f : ratio;
}

// Which row a group of that format takes. Compares with limits that were made once: no logarithm that two
// devices might round differently.
class RowChoice {
 public:
  explicit RowChoice(const MomentFormat& format);
  // amin: the smallest non-zero magnitude.
  int row(float amax, float amin) const {
    if (!expands_) return kPlainRow;
    if (is_octave(code_)) {
      return choose_octave_row(OctaveRows::of(octave_top(code_)).reach().data(),
                               ratio_of(amin, ratio_scale(amax)));
    }
    return choose_row(limits_.data(), first_row_, amax, amin);
  }
  // Of codes that are no octaves.
  const std::array<double, kMomentRows>& limits() const { return limits_; }
  int first_row() const { return first_row_; }

 private:
  MomentCode code_;
  bool expands_;
  int first_row_;
  std::array<double, kMomentRows> limits_;
};

// amax as a group stores it: never infinite or NaN, so that no decoded value is. `bf16`: rounded up.
constexpr float stored_amax(float largest, bool bf16) {
  constexpr float kLargestFp32 = 0x1.fffffep127f, kLargestBf16 = 0x1.fep127f;
  if (!(largest <= (bf16 ? kLargestBf16 : kLargestFp32))) return bf16 ? kLargestBf16 : kLargestFp32;
  if (!bf16) return largest;
  const auto bits = std::bit_cast<std::uint32_t>(largest);
  return std::bit_cast<float>((bits + 0xFFFFu) & 0xFFFF0000u);
}

// The smallest code of a value that is not zero, in a row that expands: 1, or the first that amax times it is
// not zero where amax is all but nothing.
constexpr std::int32_t smallest_code(const float* values, float amax) {
  std::int32_t code = 1;
  while (amax * values[code] == 0.0f) ++code;
  return code;
}

// The encoders take a ratio and a row of 2^kBits floats, and return a magnitude
// code. kBits: 7 for codes with a sign, 8 for those without. Branch-free.

// To nearest, ties to the even code.
template <int kBits>
constexpr std::int32_t nearest_code(const float* boundaries, float ratio) {
  std::int32_t code = 0;
  for (std::int32_t step = 1 << (kBits - 1); step > 0; step >>= 1) {
    code += boundaries[code + step - 1] < ratio ? step : 0;
  }
  return code + (boundaries[code] == ratio ? code & 1 : 0);
}

// Up with p = (ratio - lo) / (hi - lo), where lo and hi are the neighbouring decoded values and `uniform`
// lies in (0, 1): unbiased in the value itself (COAT.md 5.4). Large numbers round up, as they do octave codes
// and weights. `last` is count - 1.
template <int kBits>
constexpr std::int32_t stochastic_code(const float* values, std::int32_t last, float ratio, float uniform) {
  std::int32_t code = 0;
  for (std::int32_t step = 1 << (kBits - 1); step > 0; step >>= 1)
    code += values[code + step] <= ratio ? step : 0;
  code = code < last ? code : last - 1;
  const float high = values[code + 1];
  return code + (uniform * (high - values[code]) > high - ratio ? 1 : 0);
}

}  // namespace coat
