// Token embedding: rows of the FP32 weight, rounded to BF16.
#pragma once

#include "worker/core/base/parameter.h"
#include "worker/core/layers/context.h"
#include "worker/core/layers/residual.h"

namespace coat::layers {

struct EmbeddingSaved {
  at::Tensor tokens;  // int32 [T]: the caller's, kept alive
  std::int64_t bytes() const { return static_cast<std::int64_t>(tokens.nbytes()); }
};

Residual embedding_forward(const LayerContext& context, const Parameter& weight, const at::Tensor& tokens,
                           EmbeddingSaved& saved);
void embedding_backward(const LayerContext& context, Parameter& weight, const EmbeddingSaved& saved,
                        const at::Tensor& dy);

}  // namespace coat::layers
