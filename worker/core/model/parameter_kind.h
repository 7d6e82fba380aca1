// How a recipe holds each kind of parameter between steps.
#pragma once

#include <cstdint>

#include "worker/core/base/parameter.h"
#include "worker/core/quant/recipe.h"

namespace coat {

enum class ParameterKind : std::uint8_t {
  kVector,      // norm weights: FP32 always, they are a ten-thousandth of a model
  kLinear,      // matrices of the layers
  kVocabulary,  // embedding and head: their gradients are sums over many chunks and tokens, so FP32
};

ParameterStorage storage_of(const Recipe& recipe, ParameterKind kind);

struct ParameterBytes {
  std::int64_t value = 0;  // with its residual
  std::int64_t gradient = 0;
};
ParameterBytes bytes_of(const ParameterStorage& storage, std::int64_t elements);

}  // namespace coat
