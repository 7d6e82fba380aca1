#include "worker/core/layers/attention_core.h"

namespace coat::layers {

const AttentionCore& attention_core(at::DeviceType device) {
  return device == at::kCPU ? cpu_attention_core() : cuda_attention_core();
}

}  // namespace coat::layers
