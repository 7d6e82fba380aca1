// RMSNorm over what is stored: forward and backward read the same copy of the input (COAT.md 5.5 fact 27).
#pragma once

#include "worker/core/base/parameter.h"
#include "worker/core/layers/context.h"
#include "worker/core/layers/operand.h"

namespace coat::layers {

struct RmsNormSaved {
  StoredTensor x;   // [T, hidden]
  at::Tensor rstd;  // FP32 [T]
  at::Tensor amax;  // of the output, FP32 [1], where backward makes it again and its operand has one scale
  std::int64_t bytes() const;
};

// x * rstd * weight, the weight as recipe.weight_values says. Fills `saved`, which shares x's memory.
// `consumer`: the format that the output will be quantized to.
BoundedTensor rms_norm_forward(const LayerContext& context, const Parameter& weight, float eps,
                               const StoredTensor& x, const TensorFormat& consumer, RmsNormSaved& saved);

// The output again, bit for bit, from what was saved: as an operand of the weight gradients' products, and as
// it is.
Operand rms_norm_operand(const LayerContext& context, const Parameter& weight, float eps,
                         const TensorFormat& format, const RmsNormSaved& saved);
BoundedTensor rms_norm_recompute(const LayerContext& context, const Parameter& weight, float eps,
                                 const TensorFormat& consumer, const RmsNormSaved& saved);

// dx BF16 from dy BF16; adds the weight's gradient.
at::Tensor rms_norm_backward(const LayerContext& context, Parameter& weight, const RmsNormSaved& saved,
                             const at::Tensor& dy);

}  // namespace coat::layers
