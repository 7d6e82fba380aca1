#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {

void residual_add(const ResidualAddArgs& args) {
  require_bf16(args.a, "residual_add: a");
  require_bf16(args.b, "residual_add: b");
  require_bf16(args.sum, "residual_add: sum");
  require_shape(args.b, args.a.rows, args.a.cols, "residual_add: b");
  require_shape(args.sum, args.a.rows, args.a.cols, "residual_add: sum");
  const bool quantized = args.quantized.data != nullptr;
  if (quantized) {
    require_one_pass(args.quantized, "residual_add: quantized");
    require_shape(args.quantized, args.a.rows, args.a.cols, "residual_add: quantized");
  }
  SharedAmax largest;
  const TileGrid grid(args.a.rows, args.a.cols, {quantized ? args.quantized.format : args.sum.format});
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    const auto width = static_cast<std::size_t>(grid.width());
    std::vector<float> a(width), b(width);
    std::int32_t bits = 0;
    for (std::int64_t index = begin; index < end; ++index) {
      const Tile tile = grid.at(index);
      decode_span(args.a, tile.row, tile.col, tile.n, a.data());
      decode_span(args.b, tile.row, tile.col, tile.n, b.data());
      for (std::size_t i = 0; i < static_cast<std::size_t>(tile.n); ++i) a[i] += b[i];
      if (quantized) encode_span(a.data(), args.quantized, tile.row, tile.col, tile.n);
      encode_span(a.data(), args.sum, tile.row, tile.col, tile.n);
      if (args.amax_out != nullptr) {
        round_to_bf16(a.data(), tile.n);
        bits = std::max(bits, magnitude_bits(a.data(), tile.n));
      }
    }
    largest.update(bits);
  });
  largest.store_to(args.amax_out);
}

}  // namespace coat::kernels::cpu
