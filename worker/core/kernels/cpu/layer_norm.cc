#include <cmath>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/lane_sum.h"
#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

template <typename Term>
float mean_of(std::int64_t n, Term term) {
  return lane_sum(n, term) / static_cast<float>(n);
}

void normalise(float* __restrict x, std::int64_t n, float mean, float rstd) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = (x[i] - mean) * rstd;
}

// x: in: the normalized row; out: its gradient.
void row_backward(float* __restrict x, const float* __restrict dy, std::int64_t n, float rstd) {
  const float* normalized = x;
  const float mean = mean_of(n, [dy](std::int64_t i) { return dy[i]; });
  const float slope = mean_of(n, [=](std::int64_t i) { return dy[i] * normalized[i]; });
  for (std::int64_t i = 0; i < n; ++i) x[i] = (dy[i] - mean - x[i] * slope) * rstd;
}

}  // namespace

void layer_norm_forward(const LayerNormForwardArgs& args) {
  const std::int64_t rows = args.x.rows, cols = args.x.cols;
  require_storable(args.x, "layer_norm_forward: x");
  require_bf16(args.y, "layer_norm_forward: y");
  require_shape(args.y, rows, cols, "layer_norm_forward: y");
  SharedAmax largest;
  at::parallel_for(0, cols > 0 ? rows : 0, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> x(static_cast<std::size_t>(cols));
    std::int32_t bits = 0;
    for (std::int64_t row = begin; row < end; ++row) {
      decode_span(args.x, row, 0, cols, x.data());
      const float* values = x.data();
      const float mean = mean_of(cols, [values](std::int64_t i) { return values[i]; });
      const float variance = mean_of(cols, [values, mean](std::int64_t i) {
        const float centred = values[i] - mean;
        return centred * centred;
      });
      args.mean[row] = mean;
      args.rstd[row] = 1.0f / std::sqrt(variance + args.eps);
      normalise(x.data(), cols, mean, args.rstd[row]);
      encode_span(x.data(), args.y, row, 0, cols);
      if (args.amax_out == nullptr) continue;
      round_to_bf16(x.data(), cols);
      bits = std::max(bits, magnitude_bits(x.data(), cols));
    }
    largest.update(bits);
  });
  largest.store_to(args.amax_out);
}

void layer_norm_backward(const LayerNormBackwardArgs& args) {
  const std::int64_t rows = args.x.rows, cols = args.x.cols;
  require_storable(args.x, "layer_norm_backward: x");
  require_bf16(args.dy, "layer_norm_backward: dy");
  require_bf16(args.dx, "layer_norm_backward: dx");
  require_shape(args.dy, rows, cols, "layer_norm_backward: dy");
  require_shape(args.dx, rows, cols, "layer_norm_backward: dx");
  at::parallel_for(0, cols > 0 ? rows : 0, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> x(static_cast<std::size_t>(cols)), dy(static_cast<std::size_t>(cols));
    for (std::int64_t row = begin; row < end; ++row) {
      decode_span(args.x, row, 0, cols, x.data());
      decode_span(args.dy, row, 0, cols, dy.data());
      normalise(x.data(), cols, args.mean[row], args.rstd[row]);
      row_backward(x.data(), dy.data(), cols, args.rstd[row]);
      encode_span(x.data(), args.dx, row, 0, cols);
    }
  });
}

}  // namespace coat::kernels::cpu
