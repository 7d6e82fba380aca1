// Format conversions and maxima.
#include <algorithm>
#include <bit>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

// Tile by tile; encode(values, tile) stores them.
template <typename Encode>
void convert(const ConstMatrix& in, const Matrix& out, const Encode& encode) {
  const TileGrid grid(in.rows, in.cols, {in.format, out.format});
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> buffer(static_cast<std::size_t>(grid.width()));
    for (std::int64_t index = begin; index < end; ++index) {
      const Tile tile = grid.at(index);
      decode_span(in, tile.row, tile.col, tile.n, buffer.data());
      encode(buffer.data(), tile);
    }
  });
}

void convert(const ConstMatrix& in, const Matrix& out) {
  convert(in, out, [&](const float* values, const Tile& tile) {
    encode_span(values, out, tile.row, tile.col, tile.n);
  });
}

// The scales of rows and blocks, which must be there before the first code is made.
void find_scales(const ConstMatrix& in, const Matrix& out) {
  const std::int64_t height = out.format.rows_per_scale(), across = out.format.groups_per_row(in.cols);
  const std::int64_t strips = (in.rows + height - 1) / height;
  at::parallel_for(0, strips, row_grain(in.cols * height), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(in.cols));
    std::vector<std::int32_t> largest(static_cast<std::size_t>(across));
    for (std::int64_t strip = begin; strip < end; ++strip) {
      std::fill(largest.begin(), largest.end(), 0);
      for (std::int64_t r = strip * height; r < std::min(in.rows, (strip + 1) * height); ++r) {
        decode_span(in, r, 0, in.cols, row.data());
        std::int64_t col = 0;
        for (std::int32_t& bits : largest) {
          const std::int64_t run = out.format.scale_run(col, in.cols);
          bits = std::max(bits, magnitude_bits(row.data() + col, run));
          col += run;
        }
      }
      for (std::int64_t i = 0; i < across; ++i) {
        make_scale(out, strip * across + i, std::bit_cast<float>(largest[static_cast<std::size_t>(i)]));
      }
    }
  });
}

void transpose_scales(const Matrix& in, const Matrix& out) {
  const std::int64_t across = in.format.groups_per_row(in.cols), down = out.format.groups_per_row(out.cols);
  for (std::int64_t i = 0; i < in.format.scale_count(in.rows, in.cols); ++i) {
    store_scale(out, in.format.scaling == Scaling::kBlock ? i % across * down + i / across : i,
                load_scale(in, i));
  }
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
  if (args.rounding == Rounding::kStochastic && bytes_of(args.out.format.format) != 1) {
    throw std::logic_error("quantize: only FP8 is rounded stochastically");
  }
  if (args.out_transposed.data == nullptr) return;
  require_storable(args.out_transposed, "quantize: out_transposed");
  require_shape(args.out_transposed, args.in.cols, args.in.rows, "quantize: out_transposed");
  if (args.out_transposed.format != args.out.format) {
    throw std::logic_error("quantize: out_transposed must have the format of out");
  }
  if (args.out.format.scaling == Scaling::kGroup || args.out.format.scaling == Scaling::kRow) {
    throw std::logic_error("quantize: codes with scales of rows cannot be transposed (COAT.md 5.5 fact 25)");
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
    make_scale(args.out, 0, largest);
  } else if (!scales_in_one_pass(args.out.format.scaling)) {
    find_scales(args.in, args.out);
  }
  if (args.rounding == Rounding::kStochastic) {
    convert(args.in, args.out, [&](const float* values, const Tile& tile) {
      encode_span(values, args.out, tile.row, tile.col, tile.n, args.random);
    });
  } else {
    convert(args.in, args.out);
  }
  if (args.out_transposed.data == nullptr) return;
  transpose(args.out, args.out_transposed);
  transpose_scales(args.out, args.out_transposed);
}

void dequantize(const ConstMatrix& in, const Matrix& out) {
  require_storable(in, "dequantize: in");
  require_unscaled(out, "dequantize: out");
  require_shape(out, in.rows, in.cols, "dequantize: out");
  convert(in, out);
}

}  // namespace coat::kernels::cpu
