// What backward makes again from what was saved, straight to FP8 codes.
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/api/exponential.h"
#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

void check(const RecomputedOutput& output, const ConstMatrix& shape) {
  if (output.rows.data == nullptr && output.transposed.data == nullptr)
    throw std::logic_error("recompute: there is nothing to write");
  const auto check_side = [](const Matrix& side, std::int64_t rows, std::int64_t cols, const char* what) {
    if (side.data == nullptr) return;
    require_storable(side, what);
    require_shape(side, rows, cols, what);
    if (side.format.scaling != Scaling::kTensor)
      throw std::logic_error("recompute: one scale for the tensor");
  };
  check_side(output.rows, shape.rows, shape.cols, "recompute: rows");
  check_side(output.transposed, shape.cols, shape.rows, "recompute: transposed");
}

// One column of what `transposed` holds after its row, or a span of a row of `rows`.
void store(const RecomputedOutput& output, const Tile& tile, const float* values) {
  if (output.rows.data != nullptr) encode_span(values, output.rows, tile.row, tile.col, tile.n);
  if (output.transposed.data == nullptr) return;
  for (std::int64_t i = 0; i < tile.n; ++i)
    encode_span(values + i, output.transposed, tile.col + i, tile.row, 1);
}

// Calls make(tile, values) over the tiles of rows; the values are rounded to BF16 as the forward pass does,
// then stored.
template <typename Make>
void recompute(const RecomputedOutput& output, const ConstMatrix& shape, const float* amax,
               const Make& make) {
  if (shape.rows == 0 || shape.cols == 0) return;
  check(output, shape);
  if (output.rows.data != nullptr) make_scale(output.rows, 0, *amax);
  if (output.transposed.data != nullptr) make_scale(output.transposed, 0, *amax);
  at::parallel_for(0, shape.rows, row_grain(shape.cols), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(static_cast<std::size_t>(shape.cols));
    for (std::int64_t row = begin; row < end; ++row) {
      const Tile tile{row, 0, shape.cols};
      make(tile, values);
      round_to_bf16(values.data(), tile.n);
      store(output, tile, values.data());
    }
  });
}

}  // namespace

void rms_norm_recompute(const RmsNormRecomputeArgs& args) {
  require_storable(args.x, "rms_norm_recompute: x");
  recompute(args.output, args.x, args.amax, [&](const Tile& tile, std::vector<float>& values) {
    decode_span(args.x, tile.row, tile.col, tile.n, values.data());
    float* __restrict y = values.data();
    const float rstd = args.rstd[tile.row];
    for (std::int64_t i = 0; i < tile.n; ++i) y[i] = y[i] * rstd * args.weight[i];
  });
}

void swiglu_recompute(const SwigluRecomputeArgs& args) {
  require_storable(args.gate, "swiglu_recompute: gate");
  require_storable(args.up, "swiglu_recompute: up");
  require_shape(args.up, args.gate.rows, args.gate.cols, "swiglu_recompute: up");
  recompute(args.output, args.gate, args.amax, [&](const Tile& tile, std::vector<float>& values) {
    std::vector<float> up(values.size());
    decode_span(args.gate, tile.row, tile.col, tile.n, values.data());
    decode_span(args.up, tile.row, tile.col, tile.n, up.data());
    float* __restrict y = values.data();
    const float* __restrict u = up.data();
    for (std::int64_t i = 0; i < tile.n; ++i) y[i] = y[i] * sigmoid_f32(y[i]) * u[i];
  });
}

}  // namespace coat::kernels::cpu
