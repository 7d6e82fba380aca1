// What every layer is handed, and the few tensors it makes.
//
// Layers are free functions: forward(context, weights, input, saved&) -> output and backward(context,
// weights, saved, dy) -> dx. `saved` is a struct that holds exactly what backward reads, and can count its
// bytes. Weight gradients are added to Parameter::gradient. One stream, one caller at a time.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "worker/core/kernels/api/kernels.h"
#include "worker/core/layers/quantization_probe.h"
#include "worker/core/quant/recipe.h"
#include "worker/core/quant/stored_tensor.h"

namespace coat::layers {

struct LayerContext {
  const kernels::Kernels& kernels;
  kernels::Stream stream;
  at::Device device;
  const Recipe& recipe;
  QuantizationProbe* probe = nullptr;  // nullptr: nothing is measured
};

// A BF16 matrix with the largest magnitude in it, as its producer found it (Group Scaling, COAT.md 0.3).
struct BoundedTensor {
  at::Tensor value;  // BF16 [rows, cols]
  at::Tensor amax;   // FP32 [1]; undefined where no consumer scales per tensor
  const float* amax_data() const { return amax.defined() ? amax.const_data_ptr<float>() : nullptr; }
  float* mutable_amax_data() const { return amax.defined() ? amax.mutable_data_ptr<float>() : nullptr; }
};

inline constexpr TensorFormat kPlainBf16{Format::kBf16, Scaling::kNone};
inline constexpr TensorFormat kPlainFp32{Format::kFp32, Scaling::kNone};

// Uninitialised memory on the context's device.
at::Tensor empty_bf16(const LayerContext& context, std::int64_t rows, std::int64_t cols);
at::Tensor empty_fp32(const LayerContext& context, at::IntArrayRef shape);
// BF16 memory, with a place for its amax where `consumer` scales per tensor.
BoundedTensor empty_bounded(const LayerContext& context, std::int64_t rows, std::int64_t cols,
                            const TensorFormat& consumer);

// A contiguous BF16 or FP32 matrix as kernels see it.
Matrix matrix_of(const at::Tensor& tensor);

// Rows [first, first + count) of a matrix, with their scales.
Matrix rows_of(const Matrix& matrix, std::int64_t first, std::int64_t count);
ConstMatrix rows_of(const ConstMatrix& matrix, std::int64_t first, std::int64_t count);

enum class TensorClass : std::uint8_t { kActivation, kWeight, kGradient };

// Adds the error of `stored` against `reference` (FP32 or BF16) to the context's probe, if there is one.
void measure(const LayerContext& context, TensorClass tensor_class, const ConstMatrix& reference,
             const ConstMatrix& stored);

}  // namespace coat::layers
