#include "worker/core/layers/linear.h"

namespace coat::layers {
namespace {

struct GemmSide {
  ConstMatrix matrix;
  kernels::Layout layout;
};

// The side of a product that sums over the operand's rows.
GemmSide summed_over_rows(const Operand& operand) {
  if (operand.transposed.defined()) return {operand.transposed.view(), kernels::Layout::kKMajor};
  return {operand.rows.view(), kernels::Layout::kMnMajor};
}

}  // namespace

void linear_forward(const LayerContext& context, const Operand& x, const Parameter& weight,
                    const Matrix& out) {
  const Operand w =
      weight_operand(context, weight.value, context.recipe.linear_operand, OperandUse::kForward);
  context.kernels.gemm({.a = x.rows.view(), .b = w.rows.view(), .out = out}, context.stream);
}

void linear_backward_input(const LayerContext& context, const Operand& dy, const Parameter& weight,
                           const Matrix& dx, bool accumulate) {
  const Operand w =
      weight_operand(context, weight.value, context.recipe.linear_operand, OperandUse::kBackward);
  const GemmSide b = summed_over_rows(w);
  context.kernels.gemm({.a = dy.rows.view(),
                        .b = b.matrix,
                        .b_layout = b.layout,
                        .out = dx,
                        .accumulate = accumulate,
                        .round_product = dx.format.format == Format::kBf16},
                       context.stream);
}

void linear_backward_weight(const LayerContext& context, const Operand& dy, const Operand& x,
                            Parameter& weight) {
  const GemmSide a = summed_over_rows(dy);
  const GemmSide b = summed_over_rows(x);
  context.kernels.gemm({.a = a.matrix,
                        .b = b.matrix,
                        .a_layout = a.layout,
                        .b_layout = b.layout,
                        .out = matrix_of(weight.gradient),
                        .accumulate = true,
                        .round_product = context.recipe.weight_gradient_product == Format::kBf16},
                       context.stream);
}

}  // namespace coat::layers
