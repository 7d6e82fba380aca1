#include "worker/core/kernels/cuda/cuda_kernels.h"

#include "worker/core/kernels/cuda/operations.h"

namespace coat::kernels {
namespace {

cudaStream_t of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

class CudaKernels final : public Kernels {
 public:
  const char* device_name() const override { return "cuda"; }
  // FP8 tensor cores read both operands with the summed dimension contiguous.
  bool needs_k_major(Format format) const override { return bytes_of(format) == 1; }

  void quantize(const QuantizeArgs& args, Stream s) const override { cuda::quantize(args, of(s)); }
  void dequantize(ConstMatrix in, Matrix out, Stream s) const override { cuda::dequantize(in, out, of(s)); }
  void amax(ConstMatrix in, float* out, Stream s) const override { cuda::amax(in, out, of(s)); }
  void rms_norm_forward(const RmsNormForwardArgs& args, Stream s) const override {
    cuda::rms_norm_forward(args, of(s));
  }
  void rms_norm_backward(const RmsNormBackwardArgs& args, Stream s) const override {
    cuda::rms_norm_backward(args, of(s));
  }
  void rms_norm_recompute(const RmsNormRecomputeArgs& args, Stream s) const override {
    cuda::rms_norm_recompute(args, of(s));
  }
  void layer_norm_forward(const LayerNormForwardArgs& args, Stream s) const override {
    cuda::layer_norm_forward(args, of(s));
  }
  void layer_norm_backward(const LayerNormBackwardArgs& args, Stream s) const override {
    cuda::layer_norm_backward(args, of(s));
  }
  void gelu_forward(const GeluForwardArgs& args, Stream s) const override { cuda::gelu_forward(args, of(s)); }
  void gelu_backward(const GeluBackwardArgs& args, Stream s) const override {
    cuda::gelu_backward(args, of(s));
  }
  void swiglu_recompute(const SwigluRecomputeArgs& args, Stream s) const override {
    cuda::swiglu_recompute(args, of(s));
  }
  void swiglu_forward(const SwigluForwardArgs& args, Stream s) const override {
    cuda::swiglu_forward(args, of(s));
  }
  void swiglu_backward(const SwigluBackwardArgs& args, Stream s) const override {
    cuda::swiglu_backward(args, of(s));
  }
  void rope(const RopeArgs& args, Stream s) const override { cuda::rope(args, of(s)); }
  void residual_add(const ResidualAddArgs& args, Stream s) const override { cuda::residual_add(args, of(s)); }
  void embedding_forward(const EmbeddingForwardArgs& args, Stream s) const override {
    cuda::embedding_forward(args, of(s));
  }
  void embedding_backward(const EmbeddingBackwardArgs& args, Stream s) const override {
    cuda::embedding_backward(args, of(s));
  }
  void cross_entropy(const CrossEntropyArgs& args, Stream s) const override {
    cuda::cross_entropy(args, of(s));
  }
  void gemm(const GemmArgs& args, Stream s) const override { cuda::gemm(args, of(s)); }
  void adamw(const AdamWArgs& args, Stream s) const override { cuda::adamw(args, nullptr, of(s)); }
  void adamw_measured(const AdamWArgs& args, AdamWErrors* errors, Stream s) const override {
    cuda::adamw(args, errors, of(s));
  }
  void sum_of_squares(const std::vector<SquaredArray>& arrays, double* out, Stream s) const override {
    cuda::sum_of_squares(arrays, out, of(s));
  }
  void clip_factor(const ClipFactorArgs& args, Stream s) const override { cuda::clip_factor(args, of(s)); }
  void quantization_error(ConstMatrix reference, ConstMatrix stored, ErrorSums* sums,
                          Stream s) const override {
    cuda::quantization_error(reference, stored, sums, of(s));
  }
};

}  // namespace

const Kernels& cuda_kernels() {
  static const CudaKernels kernels;
  return kernels;
}

}  // namespace coat::kernels
