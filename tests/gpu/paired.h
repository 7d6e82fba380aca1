// Data that lies in host memory for the CPU twin and in device memory for the CUDA kernel, and their
// comparison.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/device/device_memory.h"
#include "tests/gpu/random_values.h"
#include "worker/core/kernels/api/kernels.h"
#include "worker/core/kernels/cpu/cpu_kernels.h"
#include "worker/core/kernels/cuda/cuda_kernels.h"
#include "worker/core/quant/matrix.h"

namespace coat::gpu_test {

// Skips every test where there is no device.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "SKIPPED: no CUDA device";
  }
  const kernels::Kernels& cpu() const { return kernels::cpu_kernels(); }
  const kernels::Kernels& cuda() const { return kernels::cuda_kernels(); }
};

// An array of T on both sides. What the kernels are to write starts poisoned, the same on both sides.
template <typename T>
class Paired {
 public:
  explicit Paired(std::int64_t count, std::size_t misalignment = 0)
      : host_(static_cast<std::size_t>(count)), device_(host_.size() * sizeof(T), misalignment) {
    device_.download(host_.data(), device_.size());
  }
  explicit Paired(std::vector<T> contents, std::size_t misalignment = 0)
      : host_(std::move(contents)), device_(host_.size() * sizeof(T), misalignment) {
    device_.upload(host_.data(), device_.size());
  }

  T* host() { return host_.data(); }
  T* device() { return static_cast<T*>(device_.data()); }
  std::int64_t count() const { return static_cast<std::int64_t>(host_.size()); }
  void upload() { device_.upload(host_.data(), device_.size()); }
  std::vector<T> from_device() const {
    std::vector<T> out(host_.size());
    device_.download(out.data(), device_.size());
    return out;
  }
  bool guards_are_intact() const { return device_.guards_are_intact(); }

 private:
  std::vector<T> host_;
  DeviceBytes device_;
};

// A matrix in a storage format on both sides.
class PairedMatrix {
 public:
  // Poisoned.
  PairedMatrix(const TensorFormat& format, std::int64_t rows, std::int64_t cols,
               std::size_t misalignment = 0);
  // Quantized from values by the CPU twin; the same codes and scales on both sides.
  PairedMatrix(const TensorFormat& format, std::int64_t rows, std::int64_t cols,
               const std::vector<float>& contents, std::size_t misalignment = 0);

  Matrix host();
  Matrix device();
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  const TensorFormat& format() const { return format_; }
  bool guards_are_intact() const { return data_.guards_are_intact() && scale_.guards_are_intact(); }
  std::vector<float> decoded_host();
  std::vector<float> decoded_device();

  Paired<std::uint8_t>& data() { return data_; }
  Paired<std::uint8_t>& scale() { return scale_; }

 private:
  TensorFormat format_;
  std::int64_t rows_, cols_;
  Paired<std::uint8_t> data_, scale_;
};

// The same codes and scales on both sides, where one NaN is as good as another, and untouched guards.
testing::AssertionResult same_bits(PairedMatrix& matrix);
testing::AssertionResult same_bits(Paired<float>& values);
testing::AssertionResult same_bits(Paired<double>& values);
testing::AssertionResult same_bits(Paired<std::uint8_t>& values);

inline constexpr TensorFormat kFp32{Format::kFp32, Scaling::kNone, 0, ScaleFormat::kFp32};
inline constexpr TensorFormat kBf16{Format::kBf16, Scaling::kNone, 0, ScaleFormat::kFp32};
inline constexpr TensorFormat kE4M3Tensor{Format::kE4M3, Scaling::kTensor, 0, ScaleFormat::kFp32};
inline constexpr TensorFormat kE5M2Tensor{Format::kE5M2, Scaling::kTensor, 0, ScaleFormat::kFp32};
inline constexpr TensorFormat kE4M3Group16{Format::kE4M3, Scaling::kGroup, 16, ScaleFormat::kBf16};
inline constexpr TensorFormat kE4M3Group128{Format::kE4M3, Scaling::kGroup, 128, ScaleFormat::kFp32};
inline constexpr TensorFormat kE4M3Row{Format::kE4M3, Scaling::kRow, 0, ScaleFormat::kBf16Up};
inline constexpr TensorFormat kE4M3Block128{Format::kE4M3, Scaling::kBlock, 128, ScaleFormat::kFp32};
inline constexpr TensorFormat kE5M2Block128{Format::kE5M2, Scaling::kBlock, 128, ScaleFormat::kE8M0};
inline constexpr TensorFormat kE4M3Group64{Format::kE4M3, Scaling::kGroup, 64, ScaleFormat::kBf16Up};
inline constexpr TensorFormat kE4M3Group32E8M0{Format::kE4M3, Scaling::kGroup, 32, ScaleFormat::kE8M0};
// Those of the reference.
inline constexpr TensorFormat kReferenceE4M3{Format::kE4M3, Scaling::kTensor, 0, ScaleFormat::kBf16,
                                             kReferenceTensorRule};
inline constexpr TensorFormat kReferenceE5M2{Format::kE5M2, Scaling::kTensor, 0, ScaleFormat::kBf16,
                                             kReferenceTensorRule};
inline constexpr TensorFormat kReferenceGroup16{Format::kE4M3, Scaling::kGroup, 16, ScaleFormat::kBf16,
                                                kReferenceGroupRule};
inline constexpr TensorFormat kE5M2Group32{Format::kE5M2, Scaling::kGroup, 32, ScaleFormat::kFp32};

std::string describe(const TensorFormat& format);

struct Shape {
  std::int64_t rows, cols;
};
std::string describe(const Shape& shape);

// Odd token counts, the hidden and intermediate sizes of real models, and sizes that are no multiple of
// anything.
std::vector<Shape> activation_shapes();
std::vector<Shape> small_shapes();

}  // namespace coat::gpu_test
