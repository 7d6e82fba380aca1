#include "worker/core/layers/operand.h"

namespace coat::layers {
namespace {

Operand quantized(const LayerContext& context, const at::Tensor& source, const float* amax,
                  const TensorFormat& format, OperandUse use) {
  const std::int64_t rows = source.size(0);
  const std::int64_t cols = source.size(1);
  Operand operand{empty_stored(format, rows, cols, context.device), {}};
  kernels::QuantizeArgs args{.in = matrix_of(source), .out = operand.rows.view(), .amax = amax};
  if (use == OperandUse::kBackward && context.kernels.needs_k_major(format.format)) {
    operand.transposed = empty_stored(format, cols, rows, context.device);
    operand.transposed.scale = operand.rows.scale;
    args.out_transposed = operand.transposed.view();
  }
  context.kernels.quantize(args, context.stream);
  return operand;
}

}  // namespace

std::int64_t Operand::bytes() const {
  const std::int64_t row_bytes = rows.defined() ? rows.bytes() : 0;
  return row_bytes + (transposed.defined() ? transposed.bytes() : 0);
}

void Operand::keep_for_weight_gradient() {
  if (transposed.defined()) rows = StoredTensor{};
}

RecomputedOperand empty_recomputed(const LayerContext& context, const TensorFormat& format, std::int64_t rows,
                                   std::int64_t cols) {
  RecomputedOperand made;
  if (context.kernels.needs_k_major(format.format)) {
    made.operand.transposed = empty_stored(format, cols, rows, context.device);
    made.output.transposed = made.operand.transposed.view();
  } else {
    made.operand.rows = empty_stored(format, rows, cols, context.device);
    made.output.rows = made.operand.rows.view();
  }
  return made;
}

Operand make_operand(const LayerContext& context, const BoundedTensor& source, const TensorFormat& format,
                     OperandUse use) {
  if (format == kPlainBf16) return {as_stored(source.value), {}};
  const float* amax = format.scaling == Scaling::kTensor ? source.amax_data() : nullptr;
  return quantized(context, source.value, amax, format, use);
}

Operand weight_operand(const LayerContext& context, const at::Tensor& master, const TensorFormat& format,
                       OperandUse use) {
  if (master.scalar_type() == at::kBFloat16 && format == kPlainBf16) return {as_stored(master), {}};
  at::Tensor values = master;
  if (context.recipe.weight_values == Format::kBf16 && format != kPlainBf16 &&
      master.scalar_type() != at::kBFloat16) {
    values = empty_bf16(context, master.size(0), master.size(1));
    context.kernels.quantize({.in = matrix_of(master), .out = matrix_of(values)}, context.stream);
  }
  Operand operand = quantized(context, values, nullptr, format, use);
  // Backward makes the same codes again: once a step is enough to measure.
  if (use == OperandUse::kForward)
    measure(context, TensorClass::kWeight, matrix_of(values), operand.rows.view());
  return operand;
}

Operand make_measured_operand(const LayerContext& context, const BoundedTensor& source,
                              const TensorFormat& format, OperandUse use, TensorClass tensor_class) {
  Operand operand = make_operand(context, source, format, use);
  if (format != kPlainBf16) measure(context, tensor_class, matrix_of(source.value), operand.rows.view());
  return operand;
}

Operand gradient_operand(const LayerContext& context, const BoundedTensor& gradient) {
  return make_measured_operand(context, gradient, context.recipe.linear_gradient, OperandUse::kBackward,
                               TensorClass::kGradient);
}

}  // namespace coat::layers
