// The operations of kernels/api as free functions; cuda_kernels.cc forwards to them. Contracts:
// kernels/api/kernels.h. All pointers are device memory, but for ErrorSums and AdamWErrors, which are read
// back (the call then waits for the stream).
#pragma once

#include <cuda_runtime_api.h>

#include "worker/core/kernels/api/kernels.h"

namespace coat::kernels::cuda {

void quantize(const QuantizeArgs& args, cudaStream_t stream);
void dequantize(const ConstMatrix& in, const Matrix& out, cudaStream_t stream);
void amax(const ConstMatrix& in, float* out, cudaStream_t stream);
void rms_norm_forward(const RmsNormForwardArgs& args, cudaStream_t stream);
void rms_norm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream);
void rms_norm_recompute(const RmsNormRecomputeArgs& args, cudaStream_t stream);
void layer_norm_forward(const LayerNormForwardArgs& args, cudaStream_t stream);
void layer_norm_backward(const LayerNormBackwardArgs& args, cudaStream_t stream);
void gelu_forward(const GeluForwardArgs& args, cudaStream_t stream);
void gelu_backward(const GeluBackwardArgs& args, cudaStream_t stream);
void swiglu_recompute(const SwigluRecomputeArgs& args, cudaStream_t stream);
void swiglu_forward(const SwigluForwardArgs& args, cudaStream_t stream);
void swiglu_backward(const SwigluBackwardArgs& args, cudaStream_t stream);
void rope(const RopeArgs& args, cudaStream_t stream);
void residual_add(const ResidualAddArgs& args, cudaStream_t stream);
// A token outside the vocabulary reads NaN, and its gradient is dropped: a kernel cannot throw.
void embedding_forward(const EmbeddingForwardArgs& args, cudaStream_t stream);
void embedding_backward(const EmbeddingBackwardArgs& args, cudaStream_t stream);
// A target outside the vocabulary makes the loss NaN.
void cross_entropy(const CrossEntropyArgs& args, cudaStream_t stream);
void gemm(const GemmArgs& args, cudaStream_t stream);
// errors: of what is stored, added; nullptr: not measured.
void adamw(const AdamWArgs& args, AdamWErrors* errors, cudaStream_t stream);
void sum_of_squares(const std::vector<SquaredArray>& arrays, double* out, cudaStream_t stream);
void clip_factor(const ClipFactorArgs& args, cudaStream_t stream);
void quantization_error(const ConstMatrix& reference, const ConstMatrix& stored, ErrorSums* sums,
                        cudaStream_t stream);

}  // namespace coat::kernels::cuda
