#include "worker/core/layers/residual.h"

namespace coat::layers {

Residual empty_residual(const LayerContext& context, const at::Tensor& h, NextNorm next) {
  const TensorFormat& format = context.recipe.saved_nonlinear;
  if (next == NextNorm::kBf16 || format == kPlainBf16) return {h, as_stored(h)};
  return {h, empty_stored(format, h.size(0), h.size(1), context.device)};
}

Matrix quantized_copy_of(Residual& residual) {
  return residual.stored.format == kPlainBf16 ? Matrix{} : residual.stored.view();
}

Residual add_branch(const LayerContext& context, const Residual& residual, const at::Tensor& branch,
                    NextNorm next) {
  Residual sum = empty_residual(context, branch, next);
  const Matrix quantized = quantized_copy_of(sum);
  context.kernels.residual_add(
      {.a = matrix_of(residual.h), .b = matrix_of(branch), .sum = matrix_of(branch), .quantized = quantized},
      context.stream);
  if (quantized.data != nullptr) measure(context, TensorClass::kActivation, matrix_of(sum.h), quantized);
  return sum;
}

BoundedTensor add_gradient(const LayerContext& context, const at::Tensor& gradient,
                           const at::Tensor& branch) {
  BoundedTensor sum{gradient, {}};
  if (context.recipe.linear_gradient.scaling == Scaling::kTensor) sum.amax = empty_fp32(context, {1});
  context.kernels.residual_add({.a = matrix_of(gradient),
                                .b = matrix_of(branch),
                                .sum = matrix_of(gradient),
                                .amax_out = sum.mutable_amax_data()},
                               context.stream);
  return sum;
}

at::Tensor empty_gradient_sum(const LayerContext& context, std::int64_t rows, std::int64_t cols) {
  if (context.recipe.input_gradient_sum == Format::kBf16) return empty_bf16(context, rows, cols);
  return empty_fp32(context, {rows, cols});
}

at::Tensor rounded_gradient_sum(const LayerContext& context, at::Tensor sum) {
  if (sum.scalar_type() == at::kBFloat16) return sum;
  at::Tensor rounded = empty_bf16(context, sum.size(0), sum.size(1));
  context.kernels.quantize({.in = matrix_of(sum), .out = matrix_of(rounded)}, context.stream);
  return rounded;
}

}  // namespace coat::layers
