// One decoder layer: h += attention(norm(h)); h += mlp(norm(h)).
#pragma once

#include "worker/core/layers/attention.h"
#include "worker/core/layers/mlp.h"
#include "worker/core/layers/residual.h"

namespace coat::layers {

struct DecoderBlockWeights {
  AttentionWeights attention;
  MlpWeights mlp;
};

struct DecoderBlockSaved {
  AttentionSaved attention;
  MlpSaved mlp;
  std::int64_t bytes() const { return attention.bytes() + mlp.bytes(); }
};

// `x` is taken: its BF16 memory is freed as soon as the first sum exists, unless a norm saved it.
Residual decoder_block_forward(const LayerContext& context, const DecoderBlockWeights& weights,
                               const AttentionShape& shape, Residual x, NextNorm next,
                               DecoderBlockSaved& saved);

// d h after the layer -> d h before it, in the same memory. `saved` is taken and freed half by half.
BoundedTensor decoder_block_backward(const LayerContext& context, const DecoderBlockWeights& weights,
                                     const AttentionShape& shape, DecoderBlockSaved saved,
                                     const BoundedTensor& dy);

}  // namespace coat::layers
