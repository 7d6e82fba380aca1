// The attention half of a decoder layer: norm, q k v products, rotary positions, attention, output product.
#pragma once

#include "worker/core/base/parameter.h"
#include "worker/core/layers/attention_core.h"
#include "worker/core/layers/context.h"
#include "worker/core/layers/operand.h"
#include "worker/core/layers/residual.h"
#include "worker/core/layers/rms_norm.h"

namespace coat::layers {

struct AttentionWeights {
  Parameter* norm = nullptr;  // [hidden]
  Parameter* q = nullptr;     // [heads * head_dim, hidden]
  Parameter* k = nullptr;     // [kv_heads * head_dim, hidden]
  Parameter* v = nullptr;
  Parameter* o = nullptr;  // [hidden, heads * head_dim]
  float norm_eps = 0;
  float rope_theta = 0;
};

struct AttentionSaved {
  RmsNormSaved norm;
  Operand norm_output;   // only with recipe.save_norm_output
  StoredTensor q, k, v;  // after rotary positions, in recipe.saved_attention
  StoredTensor
      out;  // in recipe.saved_attention; both the attention's and the output product's backward read it
  at::Tensor out_amax;  // its largest magnitude, FP32 [1], where the output product's operand has one scale
  at::Tensor log_sum_exp;  // FP32 [T, heads]
  std::int64_t bytes() const;
};

// The branch that is added to the residual: BF16 [T, hidden].
at::Tensor attention_forward(const LayerContext& context, const AttentionWeights& weights,
                             const AttentionShape& shape, const StoredTensor& x, AttentionSaved& saved);

// d branch -> d x, BF16. `dy` is the residual's whole gradient; it is quantized once for both of the output
// product's gradients.
at::Tensor attention_backward(const LayerContext& context, const AttentionWeights& weights,
                              const AttentionShape& shape, const AttentionSaved& saved,
                              const BoundedTensor& dy);

}  // namespace coat::layers
