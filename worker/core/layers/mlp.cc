#include "worker/core/layers/mlp.h"

#include <algorithm>
#include <utility>

#include "worker/core/layers/linear.h"
#include "worker/core/layers/residual.h"

namespace coat::layers {
namespace {

// The products' FP32 results are never held, so their error is measured on these first rows, computed once
// more.
constexpr std::int64_t kMeasuredRows = 256;

void measure_product(const LayerContext& context, const Operand& x, const Parameter& weight,
                     const StoredTensor& stored) {
  if (context.probe == nullptr || stored.format == kPlainBf16) return;
  const std::int64_t rows = std::min(kMeasuredRows, stored.view().rows);
  const at::Tensor reference = empty_fp32(context, {rows, stored.view().cols});
  const Operand w =
      weight_operand(context, weight.value, context.recipe.linear_operand, OperandUse::kBackward);
  context.kernels.gemm(
      {.a = rows_of(x.rows.view(), 0, rows), .b = w.rows.view(), .out = matrix_of(reference)},
      context.stream);
  measure(context, TensorClass::kActivation, matrix_of(reference), rows_of(stored.view(), 0, rows));
}

StoredTensor project(const LayerContext& context, const Operand& x, const Parameter& weight) {
  StoredTensor y =
      empty_stored(context.recipe.saved_nonlinear, x.rows.view().rows, weight.value.size(0), context.device);
  linear_forward(context, x, weight, y.view());
  measure_product(context, x, weight, y);
  return y;
}

BoundedTensor product_of(const LayerContext& context, const StoredTensor& gate, const StoredTensor& up,
                         const Matrix& activation) {
  const ConstMatrix g = gate.view();
  BoundedTensor product = empty_bounded(context, g.rows, g.cols, context.recipe.linear_operand);
  context.kernels.swiglu_forward({.gate = g,
                                  .up = up.view(),
                                  .product = matrix_of(product.value),
                                  .activation = activation,
                                  .amax_out = product.mutable_amax_data(),
                                  .product_reads_activation = activation.data != nullptr &&
                                                              context.recipe.product_reads_saved_activation},
                                 context.stream);
  return product;
}

Operand product_operand(const LayerContext& context, MlpSaved& saved) {
  const Recipe& recipe = context.recipe;
  if (recipe.save_activation) {
    const ConstMatrix gate = saved.gate.view();
    saved.activation = empty_stored(recipe.saved_nonlinear, gate.rows, gate.cols, context.device);
  }
  const Matrix activation = saved.activation.defined() ? saved.activation.view() : Matrix{};
  const BoundedTensor product = product_of(context, saved.gate, saved.up, activation);
  if (!recipe.save_product) saved.product_amax = product.amax;
  const OperandUse use = recipe.save_product ? OperandUse::kBackward : OperandUse::kForward;
  return make_measured_operand(context, product, recipe.linear_operand, use, TensorClass::kActivation);
}

// silu(gate) * up again, for the down product's weight gradient.
Operand recomputed_product(const LayerContext& context, const MlpSaved& saved) {
  const TensorFormat& format = context.recipe.linear_operand;
  if (!saved.product_amax.defined())
    return make_operand(context, product_of(context, saved.gate, saved.up, Matrix{}), format,
                        OperandUse::kBackward);
  const ConstMatrix gate = saved.gate.view();
  RecomputedOperand made = empty_recomputed(context, format, gate.rows, gate.cols);
  context.kernels.swiglu_recompute({.gate = gate,
                                    .up = saved.up.view(),
                                    .amax = saved.product_amax.const_data_ptr<float>(),
                                    .output = made.output},
                                   context.stream);
  return made.operand;
}

// dy -> d product; adds the down product's weight gradient.
at::Tensor down_backward(const LayerContext& context, const MlpWeights& weights, const MlpSaved& saved,
                         const BoundedTensor& dy) {
  const Operand gradient = gradient_operand(context, dy);
  {
    const Operand product = saved.product.defined() ? saved.product : recomputed_product(context, saved);
    linear_backward_weight(context, gradient, product, *weights.down);
  }
  at::Tensor dproduct = empty_bf16(context, saved.gate.view().rows, saved.gate.view().cols);
  linear_backward_input(context, gradient, *weights.down, matrix_of(dproduct), /*accumulate=*/false);
  return dproduct;
}

struct GateUpGradients {
  Operand gate, up;
};

GateUpGradients swiglu_backward(const LayerContext& context, const MlpSaved& saved, at::Tensor dproduct) {
  const TensorFormat& format = context.recipe.linear_gradient;
  BoundedTensor dgate = empty_bounded(context, dproduct.size(0), dproduct.size(1), format);
  BoundedTensor dup = empty_bounded(context, dproduct.size(0), dproduct.size(1), format);
  context.kernels.swiglu_backward(
      {.gate = saved.gate.view(),
       .up = saved.up.view(),
       .dproduct = matrix_of(dproduct),
       .activation = saved.activation.defined() ? saved.activation.view() : ConstMatrix{},
       .dgate = matrix_of(dgate.value),
       .dup = matrix_of(dup.value),
       .dgate_amax_out = dgate.mutable_amax_data(),
       .dup_amax_out = dup.mutable_amax_data(),
       .round_dsilu = context.recipe.round_activation_gradient},
      context.stream);
  dproduct.reset();
  GateUpGradients operands;
  operands.gate = gradient_operand(context, dgate);
  dgate = BoundedTensor{};
  operands.up = gradient_operand(context, dup);
  return operands;
}

}  // namespace

std::int64_t MlpSaved::bytes() const {
  return norm.bytes() + norm_output.bytes() + gate.bytes() + up.bytes() +
         (activation.defined() ? activation.bytes() : 0) + product.bytes() +
         (product_amax.defined() ? static_cast<std::int64_t>(product_amax.nbytes()) : 0);
}

at::Tensor mlp_forward(const LayerContext& context, const MlpWeights& weights, const StoredTensor& x,
                       MlpSaved& saved) {
  const Recipe& recipe = context.recipe;
  {
    const OperandUse use = recipe.save_norm_output ? OperandUse::kBackward : OperandUse::kForward;
    Operand operand = make_measured_operand(
        context,
        rms_norm_forward(context, *weights.norm, weights.norm_eps, x, recipe.linear_operand, saved.norm),
        recipe.linear_operand, use, TensorClass::kActivation);
    saved.gate = project(context, operand, *weights.gate);
    saved.up = project(context, operand, *weights.up);
    if (recipe.save_norm_output) {
      operand.keep_for_weight_gradient();
      saved.norm_output = operand;
    }
  }
  Operand product = product_operand(context, saved);
  at::Tensor branch = empty_bf16(context, saved.gate.view().rows, weights.down->value.size(0));
  linear_forward(context, product, *weights.down, matrix_of(branch));
  if (recipe.save_product) {
    product.keep_for_weight_gradient();
    saved.product = product;
  }
  return branch;
}

at::Tensor mlp_backward(const LayerContext& context, const MlpWeights& weights, const MlpSaved& saved,
                        const BoundedTensor& dy) {
  GateUpGradients d = swiglu_backward(context, saved, down_backward(context, weights, saved, dy));
  Operand x = saved.norm_output;
  if (!x.defined())
    x = rms_norm_operand(context, *weights.norm, weights.norm_eps, context.recipe.linear_operand, saved.norm);
  at::Tensor sum = empty_gradient_sum(context, dy.value.size(0), weights.gate->value.size(1));
  linear_backward_weight(context, d.gate, x, *weights.gate);
  linear_backward_input(context, d.gate, *weights.gate, matrix_of(sum), /*accumulate=*/false);
  d.gate = Operand{};
  linear_backward_weight(context, d.up, x, *weights.up);
  linear_backward_input(context, d.up, *weights.up, matrix_of(sum), /*accumulate=*/true);
  d.up = Operand{};
  x = Operand{};
  const at::Tensor dx = rounded_gradient_sum(context, std::move(sum));
  return rms_norm_backward(context, *weights.norm, saved.norm, dx);
}

}  // namespace coat::layers
