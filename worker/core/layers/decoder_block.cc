#include "worker/core/layers/decoder_block.h"

#include <utility>

namespace coat::layers {

Residual decoder_block_forward(const LayerContext& context, const DecoderBlockWeights& weights,
                               const AttentionShape& shape, Residual x, NextNorm next,
                               DecoderBlockSaved& saved) {
  {
    const at::Tensor branch = attention_forward(context, weights.attention, shape, x.stored, saved.attention);
    x = add_branch(context, x, branch, NextNorm::kStored);
  }
  const at::Tensor branch = mlp_forward(context, weights.mlp, x.stored, saved.mlp);
  return add_branch(context, x, branch, next);
}

BoundedTensor decoder_block_backward(const LayerContext& context, const DecoderBlockWeights& weights,
                                     const AttentionShape& shape, DecoderBlockSaved saved,
                                     const BoundedTensor& dy) {
  BoundedTensor middle = add_gradient(context, dy.value, mlp_backward(context, weights.mlp, saved.mlp, dy));
  saved.mlp = MlpSaved{};
  return add_gradient(context, middle.value,
                      attention_backward(context, weights.attention, shape, saved.attention, middle));
}

}  // namespace coat::layers
