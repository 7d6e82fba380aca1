#include <algorithm>
#include <tuple>

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "worker/core/layers/attention_core.h"

// Shapes: B sequences of a chunk, S length, N heads, K key-value heads, G = N / K, D head dimension.
namespace coat::layers {
namespace {

// Decoded copies exist for a few sequences at a time: enough that this many pieces (sequence x head) keep a
// machine's cores busy, few enough that the copies stay small beside what is saved.
constexpr std::int64_t kPiecesPerChunk = 16;

std::int64_t sequences_per_chunk(const AttentionShape& shape) {
  return std::min(shape.sequences, (kPiecesPerChunk + shape.heads - 1) / shape.heads);
}

// The rows of one chunk, and the views that ATen wants.
struct Chunk {
  const LayerContext& context;
  const AttentionShape& shape;
  std::int64_t sequences;
  std::int64_t first_row;
  std::int64_t rows() const { return sequences * shape.length; }

  at::Tensor decode(const ConstMatrix& matrix) const {
    at::Tensor values = empty_fp32(context, {rows(), matrix.cols});
    context.kernels.dequantize(rows_of(matrix, first_row, rows()), matrix_of(values), context.stream);
    return values;
  }
  // [B*S, N*D] -> [B, N, S, D]
  at::Tensor by_head(const at::Tensor& values) const {
    return values.view({sequences, shape.length, shape.heads, shape.head_dim}).transpose(1, 2);
  }
  // Key-value heads repeated for the query heads that read them: [B*S, K*D] -> [B*S, N*D].
  at::Tensor expanded(at::Tensor values) const {
    const std::int64_t repeat = shape.heads / shape.kv_heads;
    if (repeat == 1) return values;
    return values.view({rows(), shape.kv_heads, 1, shape.head_dim})
        .expand({rows(), shape.kv_heads, repeat, shape.head_dim})
        .reshape({rows(), shape.width()});
  }
  // [B, N, S, D] in ATen's order of memory -> rows of `out`, BF16 or another format.
  void store(const at::Tensor& heads, const Matrix& out) const {
    const at::Tensor values = heads.transpose(1, 2).contiguous().view({rows(), shape.width()});
    encode(values, out);
  }
  // The same, summed over the query heads that read one key-value head.
  void store_reduced(const at::Tensor& heads, const Matrix& out) const {
    const std::int64_t repeat = shape.heads / shape.kv_heads;
    if (repeat == 1) return store(heads, out);
    const at::Tensor values = heads.transpose(1, 2).contiguous();
    encode(
        values.view({rows(), shape.kv_heads, repeat, shape.head_dim}).sum(2).view({rows(), shape.kv_width()}),
        out);
  }
  void encode(const at::Tensor& values, const Matrix& out) const {
    context.kernels.quantize({.in = matrix_of(values), .out = rows_of(out, first_row, rows())},
                             context.stream);
  }
  at::Tensor log_sum_exp(const at::Tensor& all) const {
    return all.narrow(0, first_row, rows()).view({sequences, shape.length, shape.heads}).transpose(1, 2);
  }
};

template <typename Body>
void for_each_chunk(const LayerContext& context, const AttentionShape& shape, const Body& body) {
  const std::int64_t step = sequences_per_chunk(shape);
  for (std::int64_t first = 0; first < shape.sequences; first += step) {
    const std::int64_t sequences = std::min(step, shape.sequences - first);
    body(Chunk{context, shape, sequences, first * shape.length});
  }
}

class CpuAttentionCore final : public AttentionCore {
 public:
  void forward(const LayerContext& context, const AttentionForwardArgs& args) const override {
    for_each_chunk(context, args.shape, [&](const Chunk& chunk) {
      const at::Tensor q = chunk.decode(args.q);
      const at::Tensor k = chunk.expanded(chunk.decode(args.k));
      const at::Tensor v = chunk.expanded(chunk.decode(args.v));
      const auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
          chunk.by_head(q), chunk.by_head(k), chunk.by_head(v), /*dropout_p=*/0.0, /*is_causal=*/true);
      chunk.store(out, args.out);
      chunk.log_sum_exp(args.log_sum_exp).copy_(log_sum_exp);
    });
  }

  void backward(const LayerContext& context, const AttentionBackwardArgs& args) const override {
    for_each_chunk(context, args.shape, [&](const Chunk& chunk) {
      const at::Tensor q = chunk.decode(args.q);
      const at::Tensor k = chunk.expanded(chunk.decode(args.k));
      const at::Tensor v = chunk.expanded(chunk.decode(args.v));
      const at::Tensor out = chunk.decode(args.out);
      const at::Tensor d_out = chunk.decode(args.d_out);
      const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          chunk.by_head(d_out), chunk.by_head(q), chunk.by_head(k), chunk.by_head(v), chunk.by_head(out),
          chunk.log_sum_exp(args.log_sum_exp), /*dropout_p=*/0.0, /*is_causal=*/true);
      chunk.store(dq, args.dq);
      chunk.store_reduced(dk, args.dk);
      chunk.store_reduced(dv, args.dv);
    });
  }

  std::int64_t forward_workspace_bytes(const AttentionShape& shape) const override;
  std::int64_t backward_workspace_bytes(const AttentionShape& shape) const override;
};

// Tiles of scores that ATen keeps for each thread: it takes 256, 64 or 32 queries and 512 keys at a time.
struct Tiles {
  std::int64_t queries;
  std::int64_t keys;
};
Tiles tiles_of(const AttentionShape& shape) {
  const std::int64_t queries = shape.length >= 768 ? 256 : shape.length >= 192 ? 64 : 32;
  return {std::min(queries, shape.length), std::min<std::int64_t>(512, shape.length)};
}

std::int64_t CpuAttentionCore::forward_workspace_bytes(const AttentionShape& shape) const {
  const std::int64_t rows = sequences_per_chunk(shape) * shape.length;
  const Tiles tiles = tiles_of(shape);
  const std::int64_t per_thread = tiles.queries * (tiles.keys + 2 + shape.head_dim);
  // q, k, v, out; and log-sum-exp.
  return 4 * (rows * (4 * shape.width() + shape.heads) + at::get_num_threads() * per_thread);
}

std::int64_t CpuAttentionCore::backward_workspace_bytes(const AttentionShape& shape) const {
  const std::int64_t rows = sequences_per_chunk(shape) * shape.length;
  const Tiles tiles = tiles_of(shape);
  const std::int64_t per_thread = 2 * tiles.queries * tiles.keys + tiles.queries;
  // q, k, v, out, d_out and three gradients.
  return 4 * (rows * 8 * shape.width() + at::get_num_threads() * per_thread);
}

}  // namespace

const AttentionCore& cpu_attention_core() {
  static const CpuAttentionCore core;
  return core;
}

}  // namespace coat::layers
