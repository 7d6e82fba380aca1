#include "tests/unit/worker/core/kernels/matrices.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "worker/core/quant/bf16.h"
#include "worker/core/quant/fp8.h"
#include "worker/core/quant/philox.h"

namespace coat::kernels::test {

OwnedMatrix::OwnedMatrix(const TensorFormat& format, std::int64_t rows, std::int64_t cols)
    : format_(format), rows_(rows), cols_(cols) {
  data_.resize(static_cast<std::size_t>(format.payload_bytes(rows, cols)), 0xCD);
  if (format.scaling != Scaling::kNone) {
    scale_.resize(static_cast<std::size_t>(format.scale_count(rows, cols) * bytes_of(format.scale_format)),
                  0xCD);
  }
}

Matrix OwnedMatrix::view() {
  return {data_.data(), scale_.empty() ? nullptr : scale_.data(), format_, rows_, cols_};
}

ConstMatrix OwnedMatrix::view() const {
  return {data_.data(), scale_.empty() ? nullptr : scale_.data(), format_, rows_, cols_};
}

std::vector<float> normal_values(std::int64_t count, std::uint32_t seed, double deviation) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const PhiloxBlock block = philox4x32({{static_cast<std::uint32_t>(i), 0, 0, 0}}, {{seed, 0}});
    const double radius = std::sqrt(-2 * std::log(1.0 - double{philox_uniform(block.word[0])}));
    const double angle = 2 * std::acos(-1.0) * double{philox_uniform(block.word[1])};
    values[i] = static_cast<float>(deviation * radius * std::cos(angle));
  }
  return values;
}

OwnedMatrix make_matrix(const std::vector<float>& values, const TensorFormat& format, std::int64_t rows,
                        std::int64_t cols) {
  OwnedMatrix source(kFp32, rows, cols);
  if (!values.empty()) std::memcpy(source.floats(), values.data(), values.size() * sizeof(float));
  if (format == kFp32) return source;
  OwnedMatrix matrix(format, rows, cols);
  cpu_kernels().quantize({.in = source.view(), .out = matrix.view()}, {});
  return matrix;
}

double scale_of(const ConstMatrix& matrix, std::int64_t row, std::int64_t col) {
  const std::int64_t group = matrix.format.group;
  std::int64_t index = 0;
  switch (matrix.format.scaling) {
    case Scaling::kNone:
      return 1.0;
    case Scaling::kTensor:
      break;
    case Scaling::kRow:
      index = row;
      break;
    case Scaling::kGroup:
      index = row * ((matrix.cols + group - 1) / group) + col / group;
      break;
    case Scaling::kBlock:
      index = row / group * ((matrix.cols + group - 1) / group) + col / group;
      break;
  }
  switch (matrix.format.scale_format) {
    case ScaleFormat::kFp32:
      return static_cast<const float*>(matrix.scale)[index];
    case ScaleFormat::kBf16:
    case ScaleFormat::kBf16Up:
      return decode_bf16(static_cast<const std::uint16_t*>(matrix.scale)[index]);
    case ScaleFormat::kE8M0:
      return std::ldexp(1.0, static_cast<const std::uint8_t*>(matrix.scale)[index] - 127);
  }
  return 0;
}

std::vector<double> decoded(const ConstMatrix& matrix) {
  std::vector<double> values;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t col = 0; col < matrix.cols; ++col) {
      const std::int64_t index = row * matrix.cols + col;
      double value = 0;
      switch (matrix.format.format) {
        case Format::kFp32:
          value = static_cast<const float*>(matrix.data)[index];
          break;
        case Format::kBf16:
          value = decode_bf16(static_cast<const std::uint16_t*>(matrix.data)[index]);
          break;
        case Format::kE4M3:
          value = decode_e4m3(static_cast<const std::uint8_t*>(matrix.data)[index]);
          break;
        case Format::kE5M2:
          value = decode_e5m2(static_cast<const std::uint8_t*>(matrix.data)[index]);
          break;
      }
      values.push_back(value * scale_of(matrix, row, col));
    }
  }
  return values;
}

double half_step(Format format, double value, double scale) {
  const auto half_ulp = [&](int mantissa_bits, int min_exponent) {
    const double unscaled = std::fabs(value) / scale;
    const int exponent = unscaled > 0 ? std::max(std::ilogb(unscaled), min_exponent) : min_exponent;
    return std::ldexp(scale, exponent - mantissa_bits - 1);
  };
  switch (format) {
    case Format::kFp32:
      return half_ulp(23, -126);
    case Format::kBf16:
      return half_ulp(7, -126);
    case Format::kE4M3:
      return half_ulp(3, -6);
    case Format::kE5M2:
      return half_ulp(2, -14);
  }
  return 0;
}

}  // namespace coat::kernels::test
