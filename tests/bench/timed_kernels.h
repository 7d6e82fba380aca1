// The kernels of a device with every operation's time added up.
#pragma once

#include "tests/bench/device_timer.h"
#include "worker/core/kernels/api/kernels.h"

namespace coat::bench {

class TimedKernels final : public kernels::Kernels {
 public:
  TimedKernels(const kernels::Kernels& kernels, Profile& profile) : kernels_(kernels), profile_(profile) {}
  const char* device_name() const override { return kernels_.device_name(); }
  bool needs_k_major(Format format) const override { return kernels_.needs_k_major(format); }

  // Named by what they convert: "quantize bf16 to e4m3, transposed too".
  void quantize(const kernels::QuantizeArgs& args, kernels::Stream stream) const override;
  // Named by operands and result: "gemm e4m3 x e4m3 to bf16".
  void gemm(const kernels::GemmArgs& args, kernels::Stream stream) const override;
  void dequantize(ConstMatrix in, Matrix out, kernels::Stream s) const override {
    profile_.around("dequantize", [&] { kernels_.dequantize(in, out, s); });
  }
  void amax(ConstMatrix in, float* out, kernels::Stream s) const override {
    profile_.around("amax", [&] { kernels_.amax(in, out, s); });
  }
  void rms_norm_forward(const kernels::RmsNormForwardArgs& args, kernels::Stream s) const override {
    profile_.around("rms_norm_forward", [&] { kernels_.rms_norm_forward(args, s); });
  }
  void rms_norm_backward(const kernels::RmsNormBackwardArgs& args, kernels::Stream s) const override {
    profile_.around("rms_norm_backward", [&] { kernels_.rms_norm_backward(args, s); });
  }
  void rms_norm_recompute(const kernels::RmsNormRecomputeArgs& args, kernels::Stream s) const override {
    profile_.around("rms_norm_recompute", [&] { kernels_.rms_norm_recompute(args, s); });
  }
  void swiglu_recompute(const kernels::SwigluRecomputeArgs& args, kernels::Stream s) const override {
    profile_.around("swiglu_recompute", [&] { kernels_.swiglu_recompute(args, s); });
  }
  void swiglu_forward(const kernels::SwigluForwardArgs& args, kernels::Stream s) const override {
    profile_.around("swiglu_forward", [&] { kernels_.swiglu_forward(args, s); });
  }
  void swiglu_backward(const kernels::SwigluBackwardArgs& args, kernels::Stream s) const override {
    profile_.around("swiglu_backward", [&] { kernels_.swiglu_backward(args, s); });
  }
  void rope(const kernels::RopeArgs& args, kernels::Stream s) const override {
    profile_.around("rope", [&] { kernels_.rope(args, s); });
  }
  void residual_add(const kernels::ResidualAddArgs& args, kernels::Stream s) const override {
    profile_.around("residual_add", [&] { kernels_.residual_add(args, s); });
  }
  void embedding_forward(const kernels::EmbeddingForwardArgs& args, kernels::Stream s) const override {
    profile_.around("embedding_forward", [&] { kernels_.embedding_forward(args, s); });
  }
  void embedding_backward(const kernels::EmbeddingBackwardArgs& args, kernels::Stream s) const override {
    profile_.around("embedding_backward", [&] { kernels_.embedding_backward(args, s); });
  }
  void cross_entropy(const kernels::CrossEntropyArgs& args, kernels::Stream s) const override {
    profile_.around("cross_entropy", [&] { kernels_.cross_entropy(args, s); });
  }
  void adamw(const kernels::AdamWArgs& args, kernels::Stream s) const override {
    profile_.around("adamw", [&] { kernels_.adamw(args, s); });
  }
  void sum_of_squares(const std::vector<kernels::SquaredArray>& arrays, double* out,
                      kernels::Stream s) const override {
    profile_.around("sum_of_squares", [&] { kernels_.sum_of_squares(arrays, out, s); });
  }
  void clip_factor(const kernels::ClipFactorArgs& args, kernels::Stream s) const override {
    profile_.around("clip_factor", [&] { kernels_.clip_factor(args, s); });
  }

 private:
  const kernels::Kernels& kernels_;
  Profile& profile_;
};

}  // namespace coat::bench
