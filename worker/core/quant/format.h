// Number formats and how a tensor is scaled into them. Plain data; no tensor type, no device.
#pragma once

#include <cstdint>

namespace coat {

enum class Format : std::uint8_t {
  kFp32,
  kBf16,
  kE4M3,  // float8_e4m3fn: 127 non-negative finite codes, max 448, min subnormal 2^-9, NaN 0x7F, no infinity
  kE5M2,  // float8_e5m2: max 57344, min subnormal 2^-16, infinity 0x7C
};

constexpr int bytes_of(Format format) {
  return format == Format::kFp32 ? 4 : format == Format::kBf16 ? 2 : 1;
}

// The largest finite value (448, 57344, ...).
float max_value(Format format);
const char* name_of(Format format);  // "fp32", "bf16", "e4m3", "e5m2"

// How a scale is stored. What rounds up leaves no value above the largest code.
enum class ScaleFormat : std::uint8_t {
  kFp32,
  kBf16,    // to nearest
  kBf16Up,  // up
  kE8M0,    // up to a power of two: code e is 2^(e - 127), 255 is NaN
};

constexpr int bytes_of(ScaleFormat format) {
  return format == ScaleFormat::kFp32 ? 4 : format == ScaleFormat::kE8M0 ? 1 : 2;
}

const char* name_of(ScaleFormat format);  // "fp32", "bf16", "bf16-up", "e8m0"

enum class Scaling : std::uint8_t {
  kNone,    // values are stored as they are
  kTensor,  // one scale: value = code * scale
  kRow,     // one scale for each row
  kGroup,  // one scale for each `group` consecutive elements of a row; the last group of a row may be shorter
  kBlock,  // one scale for each block of `group` rows and as many columns; those at the edges may be smaller
};

// How a scale comes from the largest magnitude that it is for, and codes from it (quant/scale.h).
struct ScaleRule {
  float added = 0;                     // to the largest magnitude
  bool codes_use_stored_scale = true;  // false: codes are made with the scale before its rounding
  bool operator==(const ScaleRule&) const = default;
};

// Those of the reference implementation (COAT.md 1.4).
inline constexpr ScaleRule kReferenceTensorRule{1e-10f, true};
inline constexpr ScaleRule kReferenceGroupRule{1e-10f, false};

// How a matrix [rows, cols] is stored.
struct TensorFormat {
  Format format = Format::kBf16;
  Scaling scaling = Scaling::kNone;
  int group = 0;  // of kGroup and kBlock
  ScaleFormat scale_format = ScaleFormat::kFp32;
  ScaleRule rule{};

  std::int64_t payload_bytes(std::int64_t rows, std::int64_t cols) const {
    return rows * cols * bytes_of(format);
  }
  // Scales that a row has for itself or, of kBlock, shares with the rows of its blocks.
  std::int64_t groups_per_row(std::int64_t cols) const {
    if (scaling == Scaling::kRow) return 1;
    return scaling == Scaling::kGroup || scaling == Scaling::kBlock ? (cols + group - 1) / group : 0;
  }
  // Rows that share their scales.
  std::int64_t rows_per_scale() const { return scaling == Scaling::kBlock ? group : 1; }
  std::int64_t scale_count(std::int64_t rows, std::int64_t cols) const {
    if (scaling == Scaling::kTensor) return 1;
    return (rows + rows_per_scale() - 1) / rows_per_scale() * groups_per_row(cols);
  }
  // Where the scale of an element lies among the scales of a matrix of `cols` columns.
  std::int64_t scale_index(std::int64_t row, std::int64_t col, std::int64_t cols) const {
    if (scaling == Scaling::kTensor) return 0;
    if (scaling == Scaling::kRow) return row;
    return row / rows_per_scale() * groups_per_row(cols) + col / group;
  }
  // Elements of a row from `col` on that share one scale; not for kNone and kTensor.
  std::int64_t scale_run(std::int64_t col, std::int64_t cols) const {
    const std::int64_t left = cols - col;
    if (scaling == Scaling::kRow) return left;
    const std::int64_t in_group = group - col % group;
    return in_group < left ? in_group : left;
  }
  std::int64_t total_bytes(std::int64_t rows, std::int64_t cols) const {
    return payload_bytes(rows, cols) + scale_count(rows, cols) * bytes_of(scale_format);
  }
  bool operator==(const TensorFormat&) const = default;
};

// Whether every scale comes from consecutive elements of one row, so that a producer can find it on the way.
constexpr bool scales_in_one_pass(Scaling scaling) {
  return scaling == Scaling::kNone || scaling == Scaling::kGroup;
}

}  // namespace coat
