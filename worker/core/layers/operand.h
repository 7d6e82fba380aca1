// A matrix in the format in which products read it.
#pragma once

#include <cstdint>

#include "worker/core/layers/context.h"

namespace coat::layers {

// `transposed` holds the same codes under the same scale as `rows`. It exists only where backward's products
// read this format with the summed dimension contiguous (Kernels::needs_k_major: FP8 tensor cores); elsewhere
// they read `rows`.
struct Operand {
  StoredTensor rows;        // [rows, cols]
  StoredTensor transposed;  // [cols, rows]

  bool defined() const { return rows.defined() || transposed.defined(); }
  std::int64_t bytes() const;
  // Frees what the weight gradient's product does not read.
  void keep_for_weight_gradient();
};

enum class OperandUse : std::uint8_t {
  kForward,   // rows alone
  kBackward,  // rows, and transposed where needed
};

// `source` as it is where `format` is its own (memory is shared, nothing is computed), else a quantized copy.
Operand make_operand(const LayerContext& context, const BoundedTensor& source, const TensorFormat& format,
                     OperandUse use);

// A weight [out, in] from its FP32 master as recipe.weight_values says; lives for one product, so that no
// copy of the model is held.
Operand weight_operand(const LayerContext& context, const at::Tensor& master, const TensorFormat& format,
                       OperandUse use);

// The same with its error added to the probe under `tensor_class`; nothing is added where memory is shared.
Operand make_measured_operand(const LayerContext& context, const BoundedTensor& source,
                              const TensorFormat& format, OperandUse use, TensorClass tensor_class);

// An output gradient in recipe.linear_gradient: made once, read by the products of both gradients. Measured.
Operand gradient_operand(const LayerContext& context, const BoundedTensor& gradient);

// Memory for what the product of a weight gradient reads, to be made again by a kernel.
struct RecomputedOperand {
  Operand operand;
  kernels::RecomputedOutput output;
};
RecomputedOperand empty_recomputed(const LayerContext& context, const TensorFormat& format, std::int64_t rows,
                                   std::int64_t cols);

}  // namespace coat::layers
