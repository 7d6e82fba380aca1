#include "worker/core/base/error.h"
#include "worker/core/kernels/cuda/cuda_kernels.h"

namespace coat::kernels {

const Kernels& cuda_kernels() {
  throw UnsupportedError(
      "this coat-trainer was built without CUDA; build with `cmake --preset cuda`, or set "
      "resources.device: cpu");
}

}  // namespace coat::kernels
