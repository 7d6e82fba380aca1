// The MLP half of a decoder layer: norm, gate and up products, silu(gate) * up, down product.
#pragma once

#include "worker/core/base/parameter.h"
#include "worker/core/layers/context.h"
#include "worker/core/layers/operand.h"
#include "worker/core/layers/rms_norm.h"

namespace coat::layers {

struct MlpWeights {
  Parameter* norm = nullptr;  // [hidden]
  Parameter* gate = nullptr;  // [intermediate, hidden]
  Parameter* up = nullptr;
  Parameter* down = nullptr;  // [hidden, intermediate]
  float norm_eps = 0;
};

struct MlpSaved {
  RmsNormSaved norm;
  Operand norm_output;      // only with recipe.save_norm_output
  StoredTensor gate, up;    // in recipe.saved_nonlinear, from the products' FP32 accumulators
  StoredTensor activation;  // silu(gate); only with recipe.save_activation
  Operand product;          // silu(gate) * up; only with recipe.save_product, else
  at::Tensor product_amax;  // its largest magnitude, FP32 [1], where the operand has one scale
  std::int64_t bytes() const;
};

// The branch that is added to the residual: BF16 [T, hidden].
at::Tensor mlp_forward(const LayerContext& context, const MlpWeights& weights, const StoredTensor& x,
                       MlpSaved& saved);

// d branch -> d x, BF16. `dy` is the residual's whole gradient.
at::Tensor mlp_backward(const LayerContext& context, const MlpWeights& weights, const MlpSaved& saved,
                        const BoundedTensor& dy);

}  // namespace coat::layers
