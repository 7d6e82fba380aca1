// Format conversions and maxima.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"
#include "worker/core/quant/scale.h"

namespace coat::kernels::cpu {
namespace {

void convert(const ConstMatrix& in, const Matrix& out) {
  const TileGrid grid(in.rows, in.cols, {in.format, out.format});
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(grid.width()));
    for (std::int64_t index = begin; index < end; ++index) {
      const Tile tile = grid.at(index);
      decode_span(in, tile.row, tile.col, tile.n, buffer.data());
      encode_span(buffer.data(), out, tile.row, tile.col, tile.n);
    }
  });
}

// out[c, r] = in[r, c] in squares that fit the cache.
template <typename Code>
void transpose_codes(const void* in, void* out, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kSquare = 64;
  const Code* source = static_cast<const Code*>(in);
  Code* target = static_cast<Code*>(out);
  at::parallel_for(0, (cols + kSquare - 1) / kSquare, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t last_col = std::min(cols, end * kSquare);
    for (std::int64_t row0 = 0; row0 < rows; row0 += kSquare) {
      const std::int64_t last_row = std::min(rows, row0 + kSquare);
      for (std::int64_t col = begin * kSquare; col < last_col; ++col) {
        for (std::int64_t row = row0; row < last_row; ++row)
          target[col * rows + row] = source[row * cols + col];
      }
    }
  });
}

void transpose(const ConstMatrix& in, const Matrix& out) {
  switch (bytes_of(in.format.format)) {
    case 1:
      return transpose_codes<std::uint8_t>(in.data, out.data, in.rows, in.cols);
    case 2:
      return transpose_codes<std::uint16_t>(in.data, out.data, in.rows, in.cols);
    default:
      return transpose_codes<std::uint32_t>(in.data, out.data, in.rows, in.cols);
  }
}

void check(const QuantizeArgs& args) {
  require_unscaled(args.in, "quantize: in");
  require_storable(args.out, "quantize: out");
  require_shape(args.out, args.in.rows, args.in.cols, "quantize: out");
  if (args.out_transposed.data == nullptr) return;
  require_storable(args.out_transposed, "quantize: out_transposed");
  require_shape(args.out_transposed, args.in.cols, args.in.rows, "quantize: out_transposed");
  if (args.out_transposed.format != args.out.format) {
    throw std::logic_error("quantize: out_transposed must have the format of out");
  }
  if (args.out.format.scaling == Scaling::kGroup) {
    throw std::logic_error(
        "quantize: codes with a scale per group of a row cannot be transposed (COAT.md 5.5 fact 25)");
  }
}

}  // namespace

void amax(const ConstMatrix& in, float* out) {
  require_storable(in, "amax: in");
  SharedAmax largest;
  const TileGrid grid(in.rows, in.cols, {in.format});
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(grid.width()));
    std::int32_t bits = 0;
    for (std::int64_t index = begin; index < end; ++index) {
      const Tile tile = grid.at(index);
      decode_span(in, tile.row, tile.col, tile.n, buffer.data());
      bits = std::max(bits, magnitude_bits(buffer.data(), tile.n));
    }
    largest.update(bits);
  });
  *out = largest.value();
}

void quantize(const QuantizeArgs& args) {
  check(args);
  if (args.in.rows == 0 || args.in.cols == 0) return;
  if (args.out.format.scaling == Scaling::kTensor) {
    float largest = 0;
    if (args.amax != nullptr) {
      largest = *args.amax;
    } else {
      amax(args.in, &largest);
    }
    store_scale(args.out, 0, scale_from_amax(largest, max_value(args.out.format.format)));
    if (args.out_transposed.data != nullptr) store_scale(args.out_transposed, 0, load_scale(args.out, 0));
  }
  convert(args.in, args.out);
  if (args.out_transposed.data != nullptr) transpose(args.out, args.out_transposed);
}

void dequantize(const ConstMatrix& in, const Matrix& out) {
  require_storable(in, "dequantize: in");
  require_unscaled(out, "dequantize: out");
  require_shape(out, in.rows, in.cols, "dequantize: out");
  convert(in, out);
}

}  // namespace coat::kernels::cpu
