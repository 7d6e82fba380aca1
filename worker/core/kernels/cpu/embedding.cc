#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

// Columns of the weight gradient that one thread adds up, over all rows in order.
constexpr std::int64_t kSliceCols = 64;

void require_tokens(const std::int32_t* tokens, std::int64_t rows, std::int64_t vocab) {
  for (std::int64_t row = 0; row < rows; ++row) {
    if (tokens[row] >= 0 && tokens[row] < vocab) continue;
    throw std::logic_error("embedding: token " + std::to_string(tokens[row]) + " is not in [0, " +
                           std::to_string(vocab) + ")");
  }
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args) {
  const std::int64_t rows = args.out.rows, cols = args.out.cols;
  require_bf16(args.out, "embedding_forward: out");
  const bool quantized = args.quantized.data != nullptr;
  if (quantized) {
    require_one_pass(args.quantized, "embedding_forward: quantized");
    require_shape(args.quantized, rows, cols, "embedding_forward: quantized");
  }
  require_unscaled(args.weight, "embedding_forward: weight");
  require_shape(args.weight, args.weight.rows, cols, "embedding_forward: weight");
  require_tokens(args.tokens, rows, args.weight.rows);
  at::parallel_for(0, cols > 0 ? rows : 0, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(cols));
    for (std::int64_t row = begin; row < end; ++row) {
      decode_span(args.weight, args.tokens[row], 0, cols, values.data());
      encode_span(values.data(), args.out, row, 0, cols);
      if (quantized) encode_span(values.data(), args.quantized, row, 0, cols);
    }
  });
}

void embedding_backward(const EmbeddingBackwardArgs& args) {
  const std::int64_t rows = args.dy.rows, cols = args.dy.cols;
  require_bf16(args.dy, "embedding_backward: dy");
  require_tokens(args.tokens, rows, args.vocab);
  at::parallel_for(0, (cols + kSliceCols - 1) / kSliceCols, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t col = begin * kSliceCols;
    const std::int64_t n = std::min(cols, end * kSliceCols) - col;
    std::vector<float> dy(static_cast<std::size_t>(n));
    for (std::int64_t row = 0; row < rows; ++row) {
      decode_span(args.dy, row, col, n, dy.data());
      const float* __restrict values = dy.data();
      float* __restrict sums = args.dweight + std::int64_t{args.tokens[row]} * cols + col;
      for (std::int64_t i = 0; i < n; ++i) sums[i] += values[i];
    }
  });
}

}  // namespace coat::kernels::cpu
