#include <cmath>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/lane_sum.h"
#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

// Rows whose weight gradients are added up before they are added to the others, in order.
constexpr std::int64_t kBlockRows = 64;

void norm_row(const float* __restrict x, const float* __restrict weight, float rstd, std::int64_t n,
              float* __restrict y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * rstd * weight[i];
}

void norm_row_backward(const float* __restrict x, const float* __restrict dy, const float* __restrict weight,
                       float rstd, std::int64_t n, float* __restrict dx, float* __restrict dweight) {
  const float mean =
      lane_sum(n, [&](std::int64_t i) { return x[i] * rstd * (weight[i] * dy[i]); }) / static_cast<float>(n);
  for (std::int64_t i = 0; i < n; ++i) {
    const float normalized = x[i] * rstd;
    dx[i] = (weight[i] * dy[i] - normalized * mean) * rstd;
    dweight[i] += dy[i] * normalized;
  }
}

}  // namespace

void rms_norm_forward(const RmsNormForwardArgs& args) {
  const std::int64_t rows = args.x.rows, cols = args.x.cols;
  require_storable(args.x, "rms_norm_forward: x");
  require_bf16(args.y, "rms_norm_forward: y");
  require_shape(args.y, rows, cols, "rms_norm_forward: y");
  SharedAmax largest;
  at::parallel_for(0, cols > 0 ? rows : 0, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> x(static_cast<std::size_t>(cols)), y(static_cast<std::size_t>(cols));
    std::int32_t bits = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      decode_span(args.x, row, 0, cols, x.data());
      const float* values = x.data();
      const float squares = lane_sum(cols, [values](std::int64_t i) { return values[i] * values[i]; });
      const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(cols) + args.eps);
      args.rstd[row] = rstd;
      norm_row(values, args.weight, rstd, cols, y.data());
      encode_span(y.data(), args.y, row, 0, cols);
      if (args.amax_out != nullptr) {
        round_to_bf16(y.data(), cols);
        bits = std::max(bits, magnitude_bits(y.data(), cols));
      }
    }
    largest.update(bits);
  });
  largest.store_to(args.amax_out);
}

void rms_norm_backward(const RmsNormBackwardArgs& args) {
  const std::int64_t rows = args.x.rows, cols = args.x.cols;
  require_storable(args.x, "rms_norm_backward: x");
  require_bf16(args.dy, "rms_norm_backward: dy");
  require_bf16(args.dx, "rms_norm_backward: dx");
  require_shape(args.dy, rows, cols, "rms_norm_backward: dy");
  require_shape(args.dx, rows, cols, "rms_norm_backward: dx");
  if (rows == 0 || cols == 0) return;
  const std::int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  std::vector<float> partial(static_cast<std::size_t>(blocks * cols));
  at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    const auto width = static_cast<std::size_t>(cols);
    std::vector<float> x(width), dy(width), dx(width);
    for (std::int64_t row = begin * kBlockRows; row < std::min(rows, end * kBlockRows); ++row) {
      decode_span(args.x, row, 0, cols, x.data());
      decode_span(args.dy, row, 0, cols, dy.data());
      norm_row_backward(x.data(), dy.data(), args.weight, args.rstd[row], cols, dx.data(),
                        partial.data() + row / kBlockRows * cols);
      encode_span(dx.data(), args.dx, row, 0, cols);
    }
  });
  for (std::int64_t block = 0; block < blocks; ++block) {
    const float* __restrict sums = partial.data() + block * cols;
    float* __restrict total = args.dweight;
    for (std::int64_t i = 0; i < cols; ++i) total[i] += sums[i];
  }
}

}  // namespace coat::kernels::cpu
