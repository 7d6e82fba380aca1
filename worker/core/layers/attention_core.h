// Causal softmax attention on q, k, v, one implementation a device behind one interface.
#pragma once

#include <cstdint>
#include <limits>

#include "worker/core/layers/context.h"

namespace coat::layers {

struct AttentionShape {
  std::int64_t sequences = 0;
  std::int64_t length = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // divides heads; query head i reads key-value head i / (heads / kv_heads)
  std::int64_t head_dim = 0;
  std::int64_t tokens() const { return sequences * length; }
  std::int64_t width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
};

// Matrices are [tokens, heads * head_dim] (k, v: kv_heads) in any storage format; sequences lie one after
// another.
struct AttentionForwardArgs {
  AttentionShape shape;
  ConstMatrix q, k, v;
  Matrix out;              // from the FP32 result
  at::Tensor log_sum_exp;  // FP32 [tokens, heads], of the scaled scores, in an order of the core's own
};

struct AttentionBackwardArgs {
  AttentionShape shape;
  ConstMatrix q, k, v, out;
  at::Tensor log_sum_exp;
  ConstMatrix d_out;  // BF16
  Matrix dq, dk, dv;  // BF16
};

class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  virtual void forward(const LayerContext& context, const AttentionForwardArgs& args) const = 0;
  virtual void backward(const LayerContext& context, const AttentionBackwardArgs& args) const = 0;
  // Head dimensions that it takes: multiples of the unit, up to the largest.
  virtual std::int64_t head_dim_unit() const { return 1; }
  virtual std::int64_t largest_head_dim() const { return std::numeric_limits<std::int64_t>::max(); }
  // The most bytes that forward (backward) holds beside its arguments.
  virtual std::int64_t forward_workspace_bytes(const AttentionShape& shape) const = 0;
  virtual std::int64_t backward_workspace_bytes(const AttentionShape& shape) const = 0;
};

// Of that kind of device; throws UnsupportedError where this build has none. Lives for the whole program.
const AttentionCore& attention_core(at::DeviceType device);

// ATen's flash attention for the CPU, in FP32.
const AttentionCore& cpu_attention_core();

// cuDNN's, in BF16 with FP32 sums.
const AttentionCore& cuda_attention_core();

}  // namespace coat::layers
