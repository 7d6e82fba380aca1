// Shapes: B sequences, S length, N heads, K key-value heads, D head dimension.
//
// Forward runs in cuDNN through ATen, backward in cuDNN in its ordered way (cudnn_backward.h), or where that
// has no kernel in FlashAttention-2 with its deterministic sum over key blocks: equal runs must give equal
// bits. All take the same log-sum-exp (natural, of the scaled scores) in the order [B, N, S].
#include <string>
#include <tuple>

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "worker/core/layers/attention_core.h"
#include "worker/core/layers/cudnn_backward.h"

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

// [B*S, N*D] in BF16.
at::Tensor decoded(const LayerContext& context, const ConstMatrix& matrix) {
  if (matrix.format == kPlainBf16) {
    // ATen's tensors are writable by type; the operations below only read these.
    return tensor_over(context, const_cast<void*>(matrix.data), matrix.rows, matrix.cols);
  }
  const at::Tensor values = empty_bf16(context, matrix.rows, matrix.cols);
  context.kernels.dequantize(matrix, matrix_of(values), context.stream);
  return values;
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
        by_head(decoded(context, args.q), shape), by_head(decoded(context, args.k), shape),
        by_head(decoded(context, args.v), shape),
        /*attn_bias=*/{}, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, /*is_causal=*/true);
    store(context, shape, std::get<0>(result), args.out);
    const at::Tensor log_sum_exp = log_sum_exp_of(args.log_sum_exp, shape);
    log_sum_exp.copy_(std::get<1>(result).reshape(log_sum_exp.sizes()));
  }

  void backward(const LayerContext& context, const AttentionBackwardArgs& args) const override {
    const at::Tensor q = decoded(context, args.q), k = decoded(context, args.k), v = decoded(context, args.v),
                     out = decoded(context, args.out), d_out = decoded(context, args.d_out);
    const CudnnBackwardArgs pointers{args.shape,
                                     q.const_data_ptr(),
                                     k.const_data_ptr(),
                                     v.const_data_ptr(),
                                     out.const_data_ptr(),
                                     d_out.const_data_ptr(),
                                     args.log_sum_exp.const_data_ptr<float>(),
                                     args.dq.data,
                                     args.dk.data,
                                     args.dv.data};
    if (!cudnn_backward(context, pointers)) flash_backward(context, args, q, k, v, out, d_out);
  }

  std::int64_t head_dim_unit() const override { return 8; }
  std::int64_t largest_head_dim() const override { return 128; }

  // The output.
  std::int64_t forward_workspace_bytes(const AttentionShape& shape) const override {
    return shape.tokens() * (2 * shape.width() + 4 * shape.heads);
  }
  // cuDNN's, or FlashAttention's where that has no call: gradients, of k and v for every query head too where
  // those share one; dq in FP32, once for each group of blocks that adds to it in a fixed order; and the sums
  // of d_out * out.
  std::int64_t backward_workspace_bytes(const AttentionShape& shape) const override {
    const std::int64_t cudnn = cudnn_backward_workspace_bytes(shape);
    if (cudnn > 0) return cudnn;
    const std::int64_t gradients = shape.width() + 2 * shape.kv_width();
    const std::int64_t expanded = shape.kv_heads < shape.heads ? 2 * shape.width() : 0;
    const std::int64_t pieces = shape.sequences * shape.heads;
    const std::int64_t splits = (kMultiprocessors + pieces - 1) / pieces;
    return shape.tokens() * (2 * (gradients + expanded) + 4 * splits * shape.width() + 4 * shape.heads);
  }

 private:
  static void flash_backward(const LayerContext& context, const AttentionBackwardArgs& args,
                             const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& out, const at::Tensor& d_out) {
    const AttentionShape& shape = args.shape;
    const Deterministic deterministic;
    const at::Tensor unused = at::empty({2}, at::TensorOptions(context.device).dtype(at::kLong));
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
        by_head(d_out, shape), by_head(q, shape), by_head(k, shape), by_head(v, shape), by_head(out, shape),
        log_sum_exp_of(args.log_sum_exp, shape), /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, shape.length,
        shape.length, /*dropout_p=*/0.0, /*is_causal=*/true, /*philox_seed=*/unused,
        /*philox_offset=*/unused);
    store(context, shape, dq, args.dq);
    store(context, shape, dk, args.dk);
    store(context, shape, dv, args.dv);
  }
};

}  // namespace

const AttentionCore& cuda_attention_core() {
  static const CudaAttentionCore core;
  return core;
}

}  // namespace coat::layers
