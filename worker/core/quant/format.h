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

enum class Scaling : std::uint8_t {
  kNone,    // values are stored as they are
  kTensor,  // one FP32 scale: value = code * scale
  kGroup,  // one scale for each `group` consecutive elements of a row; the last group of a row may be shorter
};

// How a matrix [rows, cols] is stored.
struct TensorFormat {
  Format format = Format::kBf16;
  Scaling scaling = Scaling::kNone;
  int group = 0;                        // of kGroup
  Format scale_format = Format::kFp32;  // kFp32 or kBf16; BF16 scales round to nearest (COAT.md 1.4)

  std::int64_t payload_bytes(std::int64_t rows, std::int64_t cols) const {
    return rows * cols * bytes_of(format);
  }
  std::int64_t groups_per_row(std::int64_t cols) const {
    return scaling == Scaling::kGroup ? (cols + group - 1) / group : 0;
  }
  std::int64_t scale_count(std::int64_t rows, std::int64_t cols) const {
    return scaling == Scaling::kTensor ? 1 : rows * groups_per_row(cols);
  }
  std::int64_t total_bytes(std::int64_t rows, std::int64_t cols) const {
    return payload_bytes(rows, cols) + scale_count(rows, cols) * bytes_of(scale_format);
  }
  bool operator==(const TensorFormat&) const = default;
};

}  // namespace coat
