// The backward of causal attention by cuDNN in the way that adds in a fixed order, so that equal runs give
// equal bits. ATen calls the other way, whose blocks add to dq as they finish.
#pragma once

#include <cstdint>

#include "worker/core/layers/attention_core.h"

namespace coat::layers {

// Device memory of BF16 matrices [tokens, heads * head_dim] (k, v, dk, dv: kv_heads); log_sum_exp: FP32
// [sequences, heads, length], natural, of the scores times 1 / sqrt(head_dim).
struct CudnnBackwardArgs {
  AttentionShape shape;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* out = nullptr;
  const void* d_out = nullptr;
  const float* log_sum_exp = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
};

// False where it has no kernel for the shape, or would need more than the bound on its workspace: nothing is
// done then. Not thread-safe, as all work of a device.
bool cudnn_backward(const LayerContext& context, const CudnnBackwardArgs& args);

// The workspace that a call holds, at most 1 GiB; 0 where there is no call.
std::int64_t cudnn_backward_workspace_bytes(const AttentionShape& shape);

}  // namespace coat::layers
