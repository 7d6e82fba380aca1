#include "worker/core/layers/embedding.h"

namespace coat::layers {

Residual embedding_forward(const LayerContext& context, const Parameter& weight, const at::Tensor& tokens,
                           EmbeddingSaved& saved) {
  saved.tokens = tokens;
  Residual out =
      empty_residual(context, empty_bf16(context, tokens.size(0), weight.value.size(1)), NextNorm::kStored);
  const Matrix quantized = quantized_copy_of(out);
  const bool from_rounded = context.recipe.weight_values == Format::kBf16 && quantized.data != nullptr;
  context.kernels.embedding_forward({.tokens = tokens.const_data_ptr<std::int32_t>(),
                                     .weight = matrix_of(weight.value),
                                     .out = matrix_of(out.h),
                                     .quantized = from_rounded ? Matrix{} : quantized},
                                    context.stream);
  if (from_rounded) context.kernels.quantize({.in = matrix_of(out.h), .out = quantized}, context.stream);
  if (quantized.data != nullptr) measure(context, TensorClass::kActivation, matrix_of(out.h), quantized);
  return out;
}

void embedding_backward(const LayerContext& context, Parameter& weight, const EmbeddingSaved& saved,
                        const at::Tensor& dy) {
  context.kernels.embedding_backward({.tokens = saved.tokens.const_data_ptr<std::int32_t>(),
                                      .dy = matrix_of(dy),
                                      .vocab = weight.value.size(0),
                                      .dweight = weight.gradient.mutable_data_ptr<float>()},
                                     context.stream);
}

}  // namespace coat::layers
