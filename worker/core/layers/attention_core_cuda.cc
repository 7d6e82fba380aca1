// Shapes: B sequences, S length, N heads, K key-value heads, D head dimension.
//
// Forward runs in cuDNN. Backward runs in FlashAttention-2 with its deterministic sum over key blocks:
// cuDNN's through ATen adds parts of dq in the order in which blocks finish, and equal runs must give equal
// bits. Both take the same log-sum-exp (natural, of the scaled scores) in the order [B, N, S].
#include <string>
#include <tuple>

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "worker/core/layers/attention_core.h"

namespace coat::layers {
namespace {

// [B*S, N*D] as [B, N, S, D].
at::Tensor by_head(const at::Tensor& values, const AttentionShape& shape) {
  const std::int64_t heads = values.size(1) / shape.head_dim;
  return values.view({shape.sequences, shape.length, heads, shape.head_dim}).transpose(1, 2);
}

// Memory of someone else as a BF16 tensor.
at::Tensor tensor_over(const LayerContext& context, void* data, std::int64_t rows, std::int64_t cols) {
  const at::TensorOptions options = at::TensorOptions(context.device).dtype(at::kBFloat16);
  return at::for_blob(data, {rows, cols}).options(options).target_device(context.device).make_tensor();
}

at::Tensor decoded(const LayerContext& context, const AttentionShape& shape, const ConstMatrix& matrix) {
  if (matrix.format == kPlainBf16) {
    // ATen's tensors are writable by type; the operations below only read these.
    return by_head(tensor_over(context, const_cast<void*>(matrix.data), matrix.rows, matrix.cols), shape);
  }
  const at::Tensor values = empty_bf16(context, matrix.rows, matrix.cols);
  context.kernels.dequantize(matrix, matrix_of(values), context.stream);
  return by_head(values, shape);
}

void store(const LayerContext& context, const AttentionShape& shape, const at::Tensor& heads,
           const Matrix& out) {
  if (out.format == kPlainBf16) {
    by_head(tensor_over(context, out.data, out.rows, out.cols), shape).copy_(heads);
    return;
  }
  const at::Tensor values = heads.transpose(1, 2).contiguous().view({out.rows, out.cols});
  context.kernels.quantize({.in = matrix_of(values), .out = out}, context.stream);
}

at::Tensor log_sum_exp_of(const at::Tensor& all, const AttentionShape& shape) {
  return all.view({shape.sequences, shape.heads, shape.length});
}

// While it lives, ATen's operations of this process are deterministic where they can be.
class Deterministic {
 public:
  Deterministic()
      : was_(at::globalContext().deterministicAlgorithms()),
        warned_(at::globalContext().deterministicAlgorithmsWarnOnly()),
        filled_(at::globalContext().deterministicFillUninitializedMemory()) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
  ~Deterministic() {
    at::globalContext().setDeterministicFillUninitializedMemory(filled_);
    at::globalContext().setDeterministicAlgorithms(was_, warned_);
  }

 private:
  bool was_, warned_, filled_;
};

// Of an H100 or H200: into so many groups FlashAttention splits its blocks.
constexpr std::int64_t kMultiprocessors = 132;

class CudaAttentionCore final : public AttentionCore {
 public:
  void forward(const LayerContext& context, const AttentionForwardArgs& args) const override {
    const AttentionShape& shape = args.shape;
    const auto result = at::_scaled_dot_product_cudnn_attention(
        decoded(context, shape, args.q), decoded(context, shape, args.k), decoded(context, shape, args.v),
        /*attn_bias=*/{}, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, /*is_causal=*/true);
    store(context, shape, std::get<0>(result), args.out);
    const at::Tensor log_sum_exp = log_sum_exp_of(args.log_sum_exp, shape);
    log_sum_exp.copy_(std::get<1>(result).reshape(log_sum_exp.sizes()));
  }

  void backward(const LayerContext& context, const AttentionBackwardArgs& args) const override {
    const AttentionShape& shape = args.shape;
    const Deterministic deterministic;
    const at::Tensor unused = at::empty({2}, at::TensorOptions(context.device).dtype(at::kLong));
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
        decoded(context, shape, args.d_out), decoded(context, shape, args.q), decoded(context, shape, args.k),
        decoded(context, shape, args.v), decoded(context, shape, args.out),
        log_sum_exp_of(args.log_sum_exp, shape), /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, shape.length,
        shape.length, /*dropout_p=*/0.0, /*is_causal=*/true, /*philox_seed=*/unused,
        /*philox_offset=*/unused);
    store(context, shape, dq, args.dq);
    store(context, shape, dk, args.dk);
    store(context, shape, dv, args.dv);
  }

  std::int64_t head_dim_unit() const override { return 8; }
  std::int64_t largest_head_dim() const override { return 128; }

  // The output.
  std::int64_t forward_workspace_bytes(const AttentionShape& shape) const override {
    return shape.tokens() * (2 * shape.width() + 4 * shape.heads);
  }
  // Gradients, of k and v for every query head too where those share one; dq in FP32, once for each group of
  // blocks that adds to it in a fixed order; and the sums of d_out * out.
  std::int64_t backward_workspace_bytes(const AttentionShape& shape) const override {
    const std::int64_t gradients = shape.width() + 2 * shape.kv_width();
    const std::int64_t expanded = shape.kv_heads < shape.heads ? 2 * shape.width() : 0;
    const std::int64_t pieces = shape.sequences * shape.heads;
    const std::int64_t splits = (kMultiprocessors + pieces - 1) / pieces;
    return shape.tokens() * (2 * (gradients + expanded) + 4 * splits * shape.width() + 4 * shape.heads);
  }
};

}  // namespace

const AttentionCore& cuda_attention_core() {
  static const CudaAttentionCore core;
  return core;
}

}  // namespace coat::layers
