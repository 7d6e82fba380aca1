// The three products of a linear layer y[T, N] = x[T, K] · W[N, K]ᵀ. The weight is quantized from its FP32
// master for each product and dropped after it.
#pragma once

#include "worker/core/base/parameter.h"
#include "worker/core/layers/context.h"
#include "worker/core/layers/operand.h"

namespace coat::layers {

// `out` [T, N]: BF16, FP32 or a kGroup format, which is quantized from the FP32 accumulator (COAT.md 5.5 fact
// 26).
void linear_forward(const LayerContext& context, const Operand& x, const Parameter& weight,
                    const Matrix& out);

// dx[T, K] (+)= dy[T, N] · W. Where several layers read one input, all but the first accumulate: into FP32
// scratch, so that the sum is rounded once, or into BF16, where every product is rounded too.
void linear_backward_input(const LayerContext& context, const Operand& dy, const Parameter& weight,
                           const Matrix& dx, bool accumulate);

// weight.gradient[N, K] += dyᵀ · x, in FP32, the product rounded as recipe.weight_gradient_product says.
void linear_backward_weight(const LayerContext& context, const Operand& dy, const Operand& x,
                            Parameter& weight);

}  // namespace coat::layers
