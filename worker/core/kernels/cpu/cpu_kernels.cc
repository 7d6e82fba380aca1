#include "worker/core/kernels/cpu/cpu_kernels.h"

#include "worker/core/kernels/cpu/operations.h"

namespace coat::kernels {
namespace {

class CpuKernels final : public Kernels {
 public:
  const char* device_name() const override { return "cpu"; }

  void quantize(const QuantizeArgs& args, Stream) const override { cpu::quantize(args); }
  void dequantize(ConstMatrix in, Matrix out, Stream) const override { cpu::dequantize(in, out); }
  void amax(ConstMatrix in, float* out, Stream) const override { cpu::amax(in, out); }
  void rms_norm_forward(const RmsNormForwardArgs& args, Stream) const override {
    cpu::rms_norm_forward(args);
  }
  void rms_norm_backward(const RmsNormBackwardArgs& args, Stream) const override {
    cpu::rms_norm_backward(args);
  }
  void rms_norm_recompute(const RmsNormRecomputeArgs& args, Stream) const override {
    cpu::rms_norm_recompute(args);
  }
  void layer_norm_forward(const LayerNormForwardArgs& args, Stream) const override {
    cpu::layer_norm_forward(args);
  }
  void layer_norm_backward(const LayerNormBackwardArgs& args, Stream) const override {
    cpu::layer_norm_backward(args);
  }
  void gelu_forward(const GeluForwardArgs& args, Stream) const override { cpu::gelu_forward(args); }
  void gelu_backward(const GeluBackwardArgs& args, Stream) const override { cpu::gelu_backward(args); }
  void swiglu_recompute(const SwigluRecomputeArgs& args, Stream) const override {
    cpu::swiglu_recompute(args);
  }
  void swiglu_forward(const SwigluForwardArgs& args, Stream) const override { cpu::swiglu_forward(args); }
  void swiglu_backward(const SwigluBackwardArgs& args, Stream) const override { cpu::swiglu_backward(args); }
  void rope(const RopeArgs& args, Stream) const override { cpu::rope(args); }
  void residual_add(const ResidualAddArgs& args, Stream) const override { cpu::residual_add(args); }
  void embedding_forward(const EmbeddingForwardArgs& args, Stream) const override {
    cpu::embedding_forward(args);
  }
  void embedding_backward(const EmbeddingBackwardArgs& args, Stream) const override {
    cpu::embedding_backward(args);
  }
  void cross_entropy(const CrossEntropyArgs& args, Stream) const override { cpu::cross_entropy(args); }
  void gemm(const GemmArgs& args, Stream) const override { cpu::gemm(args); }
  void adamw(const AdamWArgs& args, Stream) const override { cpu::adamw(args, nullptr); }
  void adamw_measured(const AdamWArgs& args, AdamWErrors* errors, Stream) const override {
    cpu::adamw(args, errors);
  }
  void sum_of_squares(const std::vector<SquaredArray>& arrays, double* out, Stream) const override {
    cpu::sum_of_squares(arrays, out);
  }
  void clip_factor(const ClipFactorArgs& args, Stream) const override { cpu::clip_factor(args); }
  void quantization_error(ConstMatrix reference, ConstMatrix stored, ErrorSums* sums, Stream) const override {
    cpu::quantization_error(reference, stored, sums);
  }
};

}  // namespace

const Kernels& cpu_kernels() {
  static const CpuKernels kernels;
  return kernels;
}

}  // namespace coat::kernels
