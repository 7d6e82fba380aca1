#include "worker/core/base/error.h"
#include "worker/core/layers/attention_core.h"

namespace coat::layers {

const AttentionCore& cuda_attention_core() {
  throw UnsupportedError(
      "this coat-trainer was built without CUDA; build with `cmake --preset cuda`, or set "
      "resources.device: cpu");
}

}  // namespace coat::layers
