// Parameters and contexts for the tests of single layers.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "worker/core/base/parameter.h"
#include "worker/core/layers/decoder_block.h"

namespace coat::layers {

// On the CPU.
LayerContext cpu_context(const Recipe& recipe, QuantizationProbe* probe = nullptr);

// BF16 values, so that the layer and an exact oracle start from the same numbers.
at::Tensor random_bf16(at::IntArrayRef shape, double deviation, std::uint64_t seed);

struct BlockShape {
  AttentionShape attention{2, 17, 4, 4, 12};
  std::int64_t intermediate = 88;
};

// A decoder layer's parameters under "model.layers.0.", random.
struct BlockFixture {
  explicit BlockFixture(const BlockShape& shape);
  ParameterRegistry parameters;
  DecoderBlockWeights weights;
};

}  // namespace coat::layers
