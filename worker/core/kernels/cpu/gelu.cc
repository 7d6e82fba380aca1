#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/api/normal_distribution.h"
#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

void gelu(float* __restrict x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] * normal_cdf_f32(x[i]);
}

void gelu_slope(float* __restrict x, const float* __restrict dy, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = dy[i] * (normal_cdf_f32(x[i]) + x[i] * normal_pdf_f32(x[i]));
  }
}

// Stores make(tile)'s values as BF16 and their maximum where it is wanted.
template <typename Make>
void store_tiles(const ConstMatrix& x, const Matrix& out, float* amax_out, const Make& make) {
  SharedAmax largest;
  const TileGrid grid(x.rows, x.cols, {x.format});
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    const auto width = static_cast<std::size_t>(grid.width());
    std::vector<float> values(width), other(width);
    std::int32_t bits = 0;
    for (std::int64_t index = begin; index < end; ++index) {
      const Tile tile = grid.at(index);
      decode_span(x, tile.row, tile.col, tile.n, values.data());
      make(tile, values.data(), other.data());
      encode_span(values.data(), out, tile.row, tile.col, tile.n);
      if (amax_out == nullptr) continue;
      round_to_bf16(values.data(), tile.n);
      bits = std::max(bits, magnitude_bits(values.data(), tile.n));
    }
    largest.update(bits);
  });
  largest.store_to(amax_out);
}

}  // namespace

void gelu_forward(const GeluForwardArgs& args) {
  require_storable(args.x, "gelu_forward: x");
  require_bf16(args.y, "gelu_forward: y");
  require_shape(args.y, args.x.rows, args.x.cols, "gelu_forward: y");
  store_tiles(args.x, args.y, args.amax_out,
              [](const Tile& tile, float* values, float*) { gelu(values, tile.n); });
}

void gelu_backward(const GeluBackwardArgs& args) {
  require_storable(args.x, "gelu_backward: x");
  require_bf16(args.dy, "gelu_backward: dy");
  require_bf16(args.dx, "gelu_backward: dx");
  require_shape(args.dy, args.x.rows, args.x.cols, "gelu_backward: dy");
  require_shape(args.dx, args.x.rows, args.x.cols, "gelu_backward: dx");
  store_tiles(args.x, args.dx, args.amax_out, [&](const Tile& tile, float* values, float* dy) {
    decode_span(args.dy, tile.row, tile.col, tile.n, dy);
    gelu_slope(values, dy, tile.n);
  });
}

}  // namespace coat::kernels::cpu
