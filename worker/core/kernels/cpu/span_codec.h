// Between stored codes and FP32 buffers: a span is some consecutive elements of one row.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "worker/core/quant/matrix.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels::cpu {

// out[i] = value of (row, col + i).
void decode_span(const ConstMatrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n, float* out);

// The codes without their scale, as FP32.
void decode_codes(const ConstMatrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n, float* out);

// Stores in[0..n) at (row, col), to nearest. kTensor, kRow, kBlock: the scales must be stored already.
// kGroup: `col` is the start of a group, the span ends with a group or with the row, and the groups' scales
// are found and stored.
void encode_span(const float* in, const Matrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n);
// The same to FP8, rounded stochastically.
void encode_span(const float* in, const Matrix& matrix, std::int64_t row, std::int64_t col, std::int64_t n,
                 const PhiloxStream& random);

float load_scale(const ConstMatrix& matrix, std::int64_t index);
// Rounded as the matrix's scale_format says.
void store_scale(const Matrix& matrix, std::int64_t index, float scale);
// Finds and stores the scale of `largest` = max |x|; returns the one that codes are made with.
float make_scale(const Matrix& matrix, std::int64_t index, float largest);

// BF16 rows: the rounded values come back in `values`, so that their maximum can be taken.
void round_to_bf16(float* values, std::int64_t n);

// max |x| as the bits of an FP32, whose order as integers is that of the magnitudes, with NaN above infinity.
inline std::int32_t magnitude_bits(const float* values, std::int64_t n) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(values[i]) & 0x7FFFFFFF);
  }
  return largest;
}

// std::logic_error unless the matrix is what its operation takes. `what` names it: "rms_norm_forward: x".
void require_bf16(const ConstMatrix& matrix, const char* what);
void require_unscaled(const ConstMatrix& matrix, const char* what);  // FP32 or BF16, kNone
void require_storable(const ConstMatrix& matrix,
                      const char* what);  // any format that is consistent in itself
// Whose scales, if any, encode_span finds.
void require_one_pass(const ConstMatrix& matrix, const char* what);
void require_shape(const ConstMatrix& matrix, std::int64_t rows, std::int64_t cols, const char* what);

}  // namespace coat::kernels::cpu
