#include "worker/core/layers/attention.h"

#include <utility>

#include "worker/core/layers/linear.h"

namespace coat::layers {
namespace {

void rotate(const LayerContext& context, const AttentionWeights& weights, const AttentionShape& shape,
            const BoundedTensor& x, bool inverse) {
  context.kernels.rope({.x = matrix_of(x.value),
                        .heads = x.value.size(1) / shape.head_dim,
                        .head_dim = shape.head_dim,
                        .sequence_length = shape.length,
                        .theta = weights.rope_theta,
                        .inverse = inverse,
                        .amax_out = x.mutable_amax_data()},
                       context.stream);
}

at::Tensor project(const LayerContext& context, const Operand& x, const Parameter& weight) {
  at::Tensor y = empty_bf16(context, x.rows.view().rows, weight.value.size(0));
  linear_forward(context, x, weight, matrix_of(y));
  return y;
}

StoredTensor store(const LayerContext& context, const at::Tensor& value) {
  const BoundedTensor source{value, {}};
  return make_measured_operand(context, source, context.recipe.saved_attention, OperandUse::kForward,
                               TensorClass::kActivation)
      .rows;
}

BoundedTensor output_values(const LayerContext& context, const AttentionSaved& saved) {
  if (saved.out.format == kPlainBf16) return {saved.out.data, saved.out_amax};
  const ConstMatrix stored = saved.out.view();
  const BoundedTensor values{empty_bf16(context, stored.rows, stored.cols), saved.out_amax};
  context.kernels.dequantize(stored, matrix_of(values.value), context.stream);
  return values;
}

// The attention output as the output product reads it. Its largest magnitude is found here and saved.
Operand output_operand(const LayerContext& context, AttentionSaved& saved) {
  const TensorFormat& format = context.recipe.linear_operand;
  BoundedTensor values = output_values(context, saved);
  if (format.scaling == Scaling::kTensor) {
    saved.out_amax = values.amax = empty_fp32(context, {1});
    context.kernels.amax(matrix_of(values.value), values.mutable_amax_data(), context.stream);
  }
  return make_measured_operand(context, values, format, OperandUse::kForward, TensorClass::kActivation);
}

struct QkvGradients {
  BoundedTensor q, k, v;  // before rotary positions; those of v have no known bound
};

QkvGradients core_backward(const LayerContext& context, const AttentionWeights& weights,
                           const AttentionShape& shape, const AttentionSaved& saved,
                           const at::Tensor& d_out) {
  const TensorFormat& format = context.recipe.linear_gradient;
  const QkvGradients d{empty_bounded(context, shape.tokens(), shape.width(), format),
                       empty_bounded(context, shape.tokens(), shape.kv_width(), format),
                       {empty_bf16(context, shape.tokens(), shape.kv_width()), {}}};
  attention_core(context.device.type())
      .backward(context, {.shape = shape,
                          .q = saved.q.view(),
                          .k = saved.k.view(),
                          .v = saved.v.view(),
                          .out = saved.out.view(),
                          .log_sum_exp = saved.log_sum_exp,
                          .d_out = matrix_of(d_out),
                          .dq = matrix_of(d.q.value),
                          .dk = matrix_of(d.k.value),
                          .dv = matrix_of(d.v.value)});
  rotate(context, weights, shape, d.q, /*inverse=*/true);
  rotate(context, weights, shape, d.k, /*inverse=*/true);
  return d;
}

}  // namespace

std::int64_t AttentionSaved::bytes() const {
  return norm.bytes() + norm_output.bytes() + q.bytes() + k.bytes() + v.bytes() + out.bytes() +
         static_cast<std::int64_t>(log_sum_exp.nbytes() + (out_amax.defined() ? out_amax.nbytes() : 0));
}

at::Tensor attention_forward(const LayerContext& context, const AttentionWeights& weights,
                             const AttentionShape& shape, const StoredTensor& x, AttentionSaved& saved) {
  const TensorFormat& format = context.recipe.linear_operand;
  {
    const OperandUse use = context.recipe.save_norm_output ? OperandUse::kBackward : OperandUse::kForward;
    Operand operand = make_measured_operand(
        context, rms_norm_forward(context, *weights.norm, weights.norm_eps, x, format, saved.norm), format,
        use, TensorClass::kActivation);
    const at::Tensor q = project(context, operand, *weights.q);
    const at::Tensor k = project(context, operand, *weights.k);
    rotate(context, weights, shape, {q, {}}, /*inverse=*/false);
    rotate(context, weights, shape, {k, {}}, /*inverse=*/false);
    saved.q = store(context, q);
    saved.k = store(context, k);
    saved.v = store(context, project(context, operand, *weights.v));
    if (context.recipe.save_norm_output) {
      operand.keep_for_weight_gradient();
      saved.norm_output = operand;
    }
  }
  saved.out = empty_stored(context.recipe.saved_attention, shape.tokens(), shape.width(), context.device);
  saved.log_sum_exp = empty_fp32(context, {shape.tokens(), shape.heads});
  attention_core(context.device.type())
      .forward(context, {.shape = shape,
                         .q = saved.q.view(),
                         .k = saved.k.view(),
                         .v = saved.v.view(),
                         .out = saved.out.view(),
                         .log_sum_exp = saved.log_sum_exp});
  return project(context, output_operand(context, saved), *weights.o);
}

at::Tensor attention_backward(const LayerContext& context, const AttentionWeights& weights,
                              const AttentionShape& shape, const AttentionSaved& saved,
                              const BoundedTensor& dy) {
  at::Tensor d_out = empty_bf16(context, shape.tokens(), shape.width());
  {
    const Operand gradient = gradient_operand(context, dy);
    linear_backward_weight(context, gradient,
                           make_operand(context, output_values(context, saved), context.recipe.linear_operand,
                                        OperandUse::kBackward),
                           *weights.o);
    linear_backward_input(context, gradient, *weights.o, matrix_of(d_out), /*accumulate=*/false);
  }
  QkvGradients d = core_backward(context, weights, shape, saved, d_out);
  d_out.reset();

  Operand x = saved.norm_output;
  if (!x.defined())
    x = rms_norm_operand(context, *weights.norm, weights.norm_eps, context.recipe.linear_operand, saved.norm);
  at::Tensor sum = empty_gradient_sum(context, shape.tokens(), weights.q->value.size(1));
  bool accumulate = false;
  const auto backward_of = [&](BoundedTensor& gradient, Parameter& weight) {
    const Operand operand = gradient_operand(context, gradient);
    gradient = BoundedTensor{};
    linear_backward_weight(context, operand, x, weight);
    linear_backward_input(context, operand, weight, matrix_of(sum), accumulate);
    accumulate = true;
  };
  backward_of(d.q, *weights.q);
  backward_of(d.k, *weights.k);
  backward_of(d.v, *weights.v);
  x = Operand{};
  const at::Tensor dx = rounded_gradient_sum(context, std::move(sum));
  return rms_norm_backward(context, *weights.norm, saved.norm, dx);
}

}  // namespace coat::layers
