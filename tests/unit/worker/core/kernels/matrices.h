// Matrices of the kernel tests: memory that owns itself, numbers that do not depend on the machine, and a
// decoder in FP64 that is independent of the kernels' own.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/core/kernels/cpu/cpu_kernels.h"

namespace coat::kernels::test {

inline constexpr TensorFormat kFp32{Format::kFp32, Scaling::kNone, 0, ScaleFormat::kFp32};
inline constexpr TensorFormat kBf16{Format::kBf16, Scaling::kNone, 0, ScaleFormat::kFp32};
inline constexpr TensorFormat kE4M3Tensor{Format::kE4M3, Scaling::kTensor, 0, ScaleFormat::kFp32};
inline constexpr TensorFormat kE5M2Tensor{Format::kE5M2, Scaling::kTensor, 0, ScaleFormat::kFp32};
inline constexpr TensorFormat kE4M3Group16{Format::kE4M3, Scaling::kGroup, 16, ScaleFormat::kBf16};
inline constexpr TensorFormat kE5M2Group16{Format::kE5M2, Scaling::kGroup, 16, ScaleFormat::kBf16};
inline constexpr TensorFormat kE4M3Group20{Format::kE4M3, Scaling::kGroup, 20, ScaleFormat::kFp32};
inline constexpr TensorFormat kE4M3Row{Format::kE4M3, Scaling::kRow, 0, ScaleFormat::kFp32};
inline constexpr TensorFormat kE5M2Row{Format::kE5M2, Scaling::kRow, 0, ScaleFormat::kBf16Up};
inline constexpr TensorFormat kE4M3Group32E8M0{Format::kE4M3, Scaling::kGroup, 32, ScaleFormat::kE8M0};
inline constexpr TensorFormat kE4M3Group64{Format::kE4M3, Scaling::kGroup, 64, ScaleFormat::kBf16Up};
inline constexpr TensorFormat kE4M3Block128{Format::kE4M3, Scaling::kBlock, 128, ScaleFormat::kFp32};
inline constexpr TensorFormat kE5M2Block128{Format::kE5M2, Scaling::kBlock, 128, ScaleFormat::kE8M0};
inline constexpr TensorFormat kE4M3Group128{Format::kE4M3, Scaling::kGroup, 128, ScaleFormat::kFp32};

class OwnedMatrix {
 public:
  OwnedMatrix(const TensorFormat& format, std::int64_t rows, std::int64_t cols);
  Matrix view();
  ConstMatrix view() const;
  // Of the payload and of the scales, for comparisons bit for bit.
  const std::vector<std::uint8_t>& data() const { return data_; }
  const std::vector<std::uint8_t>& scale() const { return scale_; }
  float* floats() { return reinterpret_cast<float*>(data_.data()); }

 private:
  TensorFormat format_;
  std::int64_t rows_, cols_;
  std::vector<std::uint8_t> data_, scale_;
};

// Normal(0, deviation), a function of (seed, index).
std::vector<float> normal_values(std::int64_t count, std::uint32_t seed, double deviation = 1.0);

// Values as FP32, or rounded to BF16.
OwnedMatrix make_matrix(const std::vector<float>& values, const TensorFormat& format, std::int64_t rows,
                        std::int64_t cols);

// Every element as its format defines it: code times scale.
std::vector<double> decoded(const ConstMatrix& matrix);

// The scale that element (row, col) is stored with; 1 without scaling.
double scale_of(const ConstMatrix& matrix, std::int64_t row, std::int64_t col);

// Half of the distance between neighbouring values of the format around `value`, for a scale of `scale`.
double half_step(Format format, double value, double scale);

}  // namespace coat::kernels::test
