// How an optimizer moment is stored. Plain data; no tensor type, no device.
//
// A moment is cut into groups of `group` consecutive elements of the flattened parameter. A group stores its
// largest magnitude (amax) and for each element a one-byte code; codes stand for magnitudes relative to amax
// (quant/moment_table.h). Codes that expand select the row of magnitudes that suits the group's range, and
// store which (COAT.md 1.2).
#pragma once

#include <cstdint>

#include "worker/core/quant/format.h"

namespace coat {

enum class MomentCode : std::uint8_t {
  kFp32,         // values as they are: no groups
  kE4M3,         // 127 magnitudes and a sign
  kE5M2,         // 124 magnitudes and a sign
  kDe8,          // the dynamic map of bitsandbytes for signed values; 128 magnitudes and a sign
  kDe8Unsigned,  // ... for values that are not negative: 256 magnitudes
  kLog255,       // not negative: 0, and 255 magnitudes in equal ratios over the group's range. Always expands
  kSoftsign8,    // FlashOptim's first moment: y = 2z / (1 + |z|) in 1/127ths; 128 magnitudes and a sign
  kSqrt8,        // FlashOptim's second moment, not negative: sqrt(z) in 1/255ths
  kOctave8,      // quant/octave_code.h: 128 magnitudes and a sign, with gradual underflow. Always expands
  kOctave8Unsigned,  // ... not negative: 256 magnitudes, without
};

const char* name_of(MomentCode code);  // "fp32", "e4m3", "de8", "log255", ...

// Whether negative values can be stored; codes that cannot are for the second moment alone.
constexpr bool is_signed(MomentCode code) {
  return code != MomentCode::kDe8Unsigned && code != MomentCode::kLog255 && code != MomentCode::kSqrt8 &&
         code != MomentCode::kOctave8Unsigned;
}

constexpr bool is_octave(MomentCode code) {
  return code == MomentCode::kOctave8 || code == MomentCode::kOctave8Unsigned;
}

// Whether the code is made for a range that each group stores.
constexpr bool always_expands(MomentCode code) { return code == MomentCode::kLog255 || is_octave(code); }

enum class Rounding : std::uint8_t {
  kNearestEven,  // to the nearest code, in the domain in which codes are equally far apart; ties to the even
                 // one
  kStochastic,  // in the value domain: up with p = (x - lo) / (hi - lo), lo and hi the dequantized neighbours
};

// Bounds of E4M3: that of the reference's code, and the paper's (COAT.md 1.2).
inline constexpr double kE4M3RangeBound = 448.0 * 448.0 / 2.0;
inline constexpr double kE4M3FullRange = 448.0 * 512.0;

struct MomentFormat {
  MomentCode code = MomentCode::kFp32;
  int group = 128;
  bool expand = false;  // rows by k: magnitude^(1 / k), k = floor(16 log2(bound) / log2(amax / amin)) / 16
  double range_bound = kE4M3RangeBound;  // R^k is brought to it. Only where a code other than kLog255 expands
  // FP32, or BF16 rounded up (saturating): half the bytes, but amax itself is then not exact.
  Format amax_format = Format::kFp32;
  Rounding rounding = Rounding::kNearestEven;

  bool is_quantized() const { return code != MomentCode::kFp32; }
  bool stores_row() const { return is_quantized() && expand; }
  std::int64_t groups(std::int64_t elements) const {
    return is_quantized() ? (elements + group - 1) / group : 0;
  }
  std::int64_t total_bytes(std::int64_t elements) const {
    if (!is_quantized()) return elements * 4;
    return elements + groups(elements) * (bytes_of(amax_format) + (stores_row() ? 1 : 0));
  }
  bool operator==(const MomentFormat&) const = default;
};

// The range that brings a group's smallest magnitude to about code 2: max^2 / 2 for the FP8 formats, as the
// reference's code has it; 1 / magnitude(2) for others.
double default_range_bound(MomentCode code);

// Expanding where `expand`, with the code's own bound and FP32 amax.
MomentFormat moment_format(MomentCode code, bool expand, int group, Rounding rounding);

enum class MomentUse : std::uint8_t { kFirst, kSecond };
// Throws std::logic_error with the reason where a moment cannot be stored so: no group, a code without signs
// for the first moment, log255 that does not expand, an amax that is neither FP32 nor BF16.
void require_usable(const MomentFormat& format, MomentUse use);

}  // namespace coat
