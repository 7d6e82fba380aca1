#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

// The largest |x| / scale that rounds to the largest finite code by itself: half a step beyond it, where the
// tie goes to the even code, which is below for E4M3 (464) and above for E5M2 (61440).
float saturation_threshold(Format format) {
  switch (format) {
    case Format::kE4M3:
      return 464.0f;
    case Format::kE5M2:
      return std::nextafter(61440.0f, 0.0f);
    default:
      return std::numeric_limits<float>::infinity();
  }
}

// Elements of the span that share one scale.
std::int64_t uniform_length(const ConstMatrix& matrix, std::int64_t col, std::int64_t n) {
  if (matrix.format.scaling == Scaling::kNone || matrix.format.scaling == Scaling::kTensor) return n;
  return std::min(n, matrix.format.scale_run(col, matrix.cols));
}

float scale_at(const ConstMatrix& matrix, std::int64_t row, std::int64_t col) {
  if (matrix.format.scaling == Scaling::kNone) return 1.0f;
  return load_scale(matrix, matrix.format.scale_index(row, col, matrix.cols));
}

struct Buffers {
  std::vector<float> reference, stored;
};

void add_tile(const ConstMatrix& reference, const ConstMatrix& stored, const Tile& tile, Buffers& buffers,
              ErrorSums* sums) {
  decode_span(reference, tile.row, tile.col, tile.n, buffers.reference.data());
  decode_span(stored, tile.row, tile.col, tile.n, buffers.stored.data());
  const float threshold = saturation_threshold(stored.format.format);
  for (std::int64_t done = 0; done < tile.n;) {
    const std::int64_t end = done + uniform_length(stored, tile.col + done, tile.n - done);
    const float limit = threshold * scale_at(stored, tile.row, tile.col + done);
    for (; done < end; ++done) {
      const double x = buffers.reference[static_cast<std::size_t>(done)];
      const double y = buffers.stored[static_cast<std::size_t>(done)];
      sums->error_squared += (y - x) * (y - x);
      sums->reference_squared += x * x;
      sums->saturated += std::fabs(x) > static_cast<double>(limit) ? 1.0 : 0.0;
      sums->underflowed += x != 0.0 && y == 0.0 ? 1.0 : 0.0;
    }
  }
  sums->elements += static_cast<double>(tile.n);
}

}  // namespace

void quantization_error(const ConstMatrix& reference, const ConstMatrix& stored, ErrorSums* sums) {
  require_unscaled(reference, "quantization_error: reference");
  require_storable(stored, "quantization_error: stored");
  require_shape(stored, reference.rows, reference.cols, "quantization_error: stored");
  const TileGrid grid(reference.rows, reference.cols, {stored.format});
  std::vector<ErrorSums> tiles(static_cast<std::size_t>(grid.count()));
  at::parallel_for(0, grid.count(), grid.grain(), [&](std::int64_t begin, std::int64_t end) {
    const auto width = static_cast<std::size_t>(grid.width());
    Buffers buffers{std::vector<float>(width), std::vector<float>(width)};
    for (std::int64_t index = begin; index < end; ++index) {
      add_tile(reference, stored, grid.at(index), buffers, &tiles[static_cast<std::size_t>(index)]);
    }
  });
  for (const ErrorSums& tile : tiles) sums->add(tile);
}

}  // namespace coat::kernels::cpu
