#include "worker/core/layers/rms_norm.h"

namespace coat::layers {
namespace {

// FP32 [hidden], as the recipe wants the weight.
at::Tensor weight_values(const LayerContext& context, const Parameter& weight) {
  if (context.recipe.weight_values == Format::kFp32) return weight.value;
  const std::int64_t hidden = weight.value.numel();
  const at::Tensor rounded = empty_bf16(context, 1, hidden), values = empty_fp32(context, {1, hidden});
  context.kernels.quantize({.in = matrix_of(weight.value.view({1, hidden})), .out = matrix_of(rounded)},
                           context.stream);
  context.kernels.dequantize(matrix_of(rounded), matrix_of(values), context.stream);
  return values;
}

BoundedTensor normalise(const LayerContext& context, const Parameter& weight, float eps,
                        const StoredTensor& x, const TensorFormat& consumer, const at::Tensor& rstd) {
  const at::Tensor values = weight_values(context, weight);
  const ConstMatrix input = x.view();
  BoundedTensor y = empty_bounded(context, input.rows, input.cols, consumer);
  context.kernels.rms_norm_forward({.x = input,
                                    .weight = values.const_data_ptr<float>(),
                                    .eps = eps,
                                    .y = matrix_of(y.value),
                                    .rstd = rstd.mutable_data_ptr<float>(),
                                    .amax_out = y.mutable_amax_data()},
                                   context.stream);
  return y;
}

}  // namespace

std::int64_t RmsNormSaved::bytes() const {
  return x.bytes() + static_cast<std::int64_t>(rstd.nbytes() + (amax.defined() ? amax.nbytes() : 0));
}

BoundedTensor rms_norm_forward(const LayerContext& context, const Parameter& weight, float eps,
                               const StoredTensor& x, const TensorFormat& consumer, RmsNormSaved& saved) {
  saved = {x, empty_fp32(context, {x.view().rows}), {}};
  BoundedTensor y = normalise(context, weight, eps, x, consumer, saved.rstd);
  if (!context.recipe.save_norm_output) saved.amax = y.amax;
  return y;
}

Operand rms_norm_operand(const LayerContext& context, const Parameter& weight, float eps,
                         const TensorFormat& format, const RmsNormSaved& saved) {
  if (!saved.amax.defined()) {
    return make_operand(context, rms_norm_recompute(context, weight, eps, format, saved), format,
                        OperandUse::kBackward);
  }
  const ConstMatrix x = saved.x.view();
  const at::Tensor values = weight_values(context, weight);
  RecomputedOperand made = empty_recomputed(context, format, x.rows, x.cols);
  context.kernels.rms_norm_recompute({.x = x,
                                      .weight = values.const_data_ptr<float>(),
                                      .rstd = saved.rstd.const_data_ptr<float>(),
                                      .amax = saved.amax.const_data_ptr<float>(),
                                      .output = made.output},
                                     context.stream);
  return made.operand;
}

BoundedTensor rms_norm_recompute(const LayerContext& context, const Parameter& weight, float eps,
                                 const TensorFormat& consumer, const RmsNormSaved& saved) {
  return normalise(context, weight, eps, saved.x, consumer, saved.rstd);
}

at::Tensor rms_norm_backward(const LayerContext& context, Parameter& weight, const RmsNormSaved& saved,
                             const at::Tensor& dy) {
  at::Tensor dx = empty_bf16(context, dy.size(0), dy.size(1));
  const at::Tensor values = weight_values(context, weight);
  context.kernels.rms_norm_backward({.x = saved.x.view(),
                                     .weight = values.const_data_ptr<float>(),
                                     .rstd = saved.rstd.const_data_ptr<float>(),
                                     .dy = matrix_of(dy),
                                     .dx = matrix_of(dx),
                                     .dweight = weight.gradient.mutable_data_ptr<float>()},
                                    context.stream);
  return dx;
}

}  // namespace coat::layers
