#include "worker/core/kernels/cuda/cuda_kernels.h"

namespace coat::kernels {
namespace {

// Operations without a CUDA version yet inherit the default, which throws UnsupportedError with the operation's name.
class CudaKernels final : public Kernels {
 public:
  const char* device_name() const override { return "cuda"; }
  // FP8 tensor cores read both operands with the summed dimension contiguous.
  bool needs_k_major(Format format) const override { return bytes_of(format) == 1; }
};

}  // namespace

const Kernels& cuda_kernels() {
  static const CudaKernels kernels;
  return kernels;
}

}  // namespace coat::kernels
