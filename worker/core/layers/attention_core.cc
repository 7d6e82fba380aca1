#include "worker/core/layers/attention_core.h"

#include "worker/core/base/error.h"

namespace coat::layers {

const AttentionCore& attention_core(const at::Device& device) {
  if (device.is_cpu()) return cpu_attention_core();
  throw UnsupportedError("the operation 'attention' has no " + device.str() +
                         " version yet; set resources.device: cpu");
}

}  // namespace coat::layers
