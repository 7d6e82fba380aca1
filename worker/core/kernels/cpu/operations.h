// The operations of kernels/api as free functions; cpu_kernels.cc forwards to them. Contracts:
// kernels/api/kernels.h.
#pragma once

#include "worker/core/kernels/api/kernels.h"

namespace coat::kernels::cpu {

void quantize(const QuantizeArgs& args);
void dequantize(const ConstMatrix& in, const Matrix& out);
void amax(const ConstMatrix& in, float* out);
void rms_norm_forward(const RmsNormForwardArgs& args);
void rms_norm_backward(const RmsNormBackwardArgs& args);
void rms_norm_recompute(const RmsNormRecomputeArgs& args);
void layer_norm_forward(const LayerNormForwardArgs& args);
void layer_norm_backward(const LayerNormBackwardArgs& args);
void gelu_forward(const GeluForwardArgs& args);
void gelu_backward(const GeluBackwardArgs& args);
void swiglu_recompute(const SwigluRecomputeArgs& args);
void swiglu_forward(const SwigluForwardArgs& args);
void swiglu_backward(const SwigluBackwardArgs& args);
void rope(const RopeArgs& args);
void residual_add(const ResidualAddArgs& args);
void embedding_forward(const EmbeddingForwardArgs& args);
void embedding_backward(const EmbeddingBackwardArgs& args);
void cross_entropy(const CrossEntropyArgs& args);
void gemm(const GemmArgs& args);
// errors: of what is stored, added; nullptr: not measured.
void adamw(const AdamWArgs& args, AdamWErrors* errors);
void sum_of_squares(const std::vector<SquaredArray>& arrays, double* out);
void clip_factor(const ClipFactorArgs& args);
void quantization_error(const ConstMatrix& reference, const ConstMatrix& stored, ErrorSums* sums);

}  // namespace coat::kernels::cpu
