#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/api/exponential.h"
#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

void silu(const float* __restrict gate, std::int64_t n, float* __restrict out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = gate[i] * sigmoid_f32(gate[i]);
}

void multiply(const float* __restrict a, float* __restrict b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) b[i] = a[i] * b[i];
}

// dup: in: dproduct; out: dproduct * silu. dgate: in: d silu; out.
void backward(const float* __restrict gate, std::int64_t n, float* __restrict dgate, float* __restrict dup) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = gate[i], sig = sigmoid_f32(x);
    dgate[i] = dgate[i] * (sig + x * sig * (1.0f - sig));
    dup[i] = dup[i] * (x * sig);
  }
}

float amax_of_silu(const ConstMatrix& gate, const TileGrid& grid) {
  SharedAmax largest;
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    const auto width = static_cast<std::size_t>(grid.width());
    std::vector<float> in(width), out(width);
    for (std::int64_t index = begin; index < end; ++index) {
      const Tile tile = grid.at(index);
      decode_span(gate, tile.row, tile.col, tile.n, in.data());
      silu(in.data(), tile.n, out.data());
      largest.update(magnitude_bits(out.data(), tile.n));
    }
  });
  return largest.value();
}

// Stores BF16 and takes the maximum of what was stored, where it is wanted.
std::int32_t store_bf16(std::vector<float>& values, const Matrix& out, const Tile& tile,
                        const float* amax_out) {
  encode_span(values.data(), out, tile.row, tile.col, tile.n);
  if (amax_out == nullptr) return 0;
  round_to_bf16(values.data(), tile.n);
  return magnitude_bits(values.data(), tile.n);
}

}  // namespace

void swiglu_forward(const SwigluForwardArgs& args) {
  const std::int64_t rows = args.gate.rows, cols = args.gate.cols;
  require_storable(args.gate, "swiglu_forward: gate");
  require_storable(args.up, "swiglu_forward: up");
  require_bf16(args.product, "swiglu_forward: product");
  require_shape(args.up, rows, cols, "swiglu_forward: up");
  require_shape(args.product, rows, cols, "swiglu_forward: product");
  const bool keep_silu = args.activation.data != nullptr;
  if (args.product_reads_activation && !keep_silu && rows * cols > 0)
    throw std::logic_error("swiglu_forward: the product reads an activation that is not stored");
  const TileGrid grid(
      rows, cols, {args.gate.format, args.up.format, keep_silu ? args.activation.format : args.gate.format});
  if (keep_silu) {
    require_shape(args.activation, rows, cols, "swiglu_forward: activation");
    if (args.activation.format.scaling == Scaling::kTensor) {
      require_storable(args.activation, "swiglu_forward: activation");
      if (rows * cols > 0) make_scale(args.activation, 0, amax_of_silu(args.gate, grid));
    } else {
      require_one_pass(args.activation, "swiglu_forward: activation");
    }
  }
  SharedAmax largest;
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    const auto width = static_cast<std::size_t>(grid.width());
    std::vector<float> gate(width), up(width), activation(width);
    std::int32_t bits = 0;
    for (std::int64_t index = begin; index < end; ++index) {
      const Tile tile = grid.at(index);
      decode_span(args.gate, tile.row, tile.col, tile.n, gate.data());
      decode_span(args.up, tile.row, tile.col, tile.n, up.data());
      silu(gate.data(), tile.n, activation.data());
      if (keep_silu) encode_span(activation.data(), args.activation, tile.row, tile.col, tile.n);
      if (args.product_reads_activation)
        decode_span(args.activation, tile.row, tile.col, tile.n, activation.data());
      multiply(activation.data(), up.data(), tile.n);
      bits = std::max(bits, store_bf16(up, args.product, tile, args.amax_out));
    }
    largest.update(bits);
  });
  largest.store_to(args.amax_out);
}

void swiglu_backward(const SwigluBackwardArgs& args) {
  const std::int64_t rows = args.gate.rows, cols = args.gate.cols;
  require_storable(args.gate, "swiglu_backward: gate");
  require_storable(args.up, "swiglu_backward: up");
  require_shape(args.up, rows, cols, "swiglu_backward: up");
  require_bf16(args.dproduct, "swiglu_backward: dproduct");
  require_bf16(args.dgate, "swiglu_backward: dgate");
  require_bf16(args.dup, "swiglu_backward: dup");
  require_shape(args.dproduct, rows, cols, "swiglu_backward: dproduct");
  require_shape(args.dgate, rows, cols, "swiglu_backward: dgate");
  require_shape(args.dup, rows, cols, "swiglu_backward: dup");
  const bool saved_silu = args.activation.data != nullptr;
  if (saved_silu) {
    require_storable(args.activation, "swiglu_backward: activation");
    require_shape(args.activation, rows, cols, "swiglu_backward: activation");
  }
  SharedAmax dgate_largest, dup_largest;
  const TileGrid grid(
      rows, cols, {args.gate.format, args.up.format, saved_silu ? args.activation.format : args.gate.format});
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    const auto width = static_cast<std::size_t>(grid.width());
    std::vector<float> gate(width), dgate(width), dup(width), activation(width);
    std::int32_t dgate_bits = 0, dup_bits = 0;
    for (std::int64_t index = begin; index < end; ++index) {
      const Tile tile = grid.at(index);
      decode_span(args.gate, tile.row, tile.col, tile.n, gate.data());
      decode_span(args.up, tile.row, tile.col, tile.n, dgate.data());
      decode_span(args.dproduct, tile.row, tile.col, tile.n, dup.data());
      multiply(dup.data(), dgate.data(), tile.n);
      if (args.round_dsilu) round_to_bf16(dgate.data(), tile.n);
      backward(gate.data(), tile.n, dgate.data(), dup.data());
      if (saved_silu) {
        decode_span(args.dproduct, tile.row, tile.col, tile.n, dup.data());
        decode_span(args.activation, tile.row, tile.col, tile.n, activation.data());
        multiply(activation.data(), dup.data(), tile.n);
      }
      dgate_bits = std::max(dgate_bits, store_bf16(dgate, args.dgate, tile, args.dgate_amax_out));
      dup_bits = std::max(dup_bits, store_bf16(dup, args.dup, tile, args.dup_amax_out));
    }
    dgate_largest.update(dgate_bits);
    dup_largest.update(dup_bits);
  });
  dgate_largest.store_to(args.dgate_amax_out);
  dup_largest.store_to(args.dup_amax_out);
}

}  // namespace coat::kernels::cpu
