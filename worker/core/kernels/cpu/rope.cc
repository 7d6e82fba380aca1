#include <cmath>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

void rotate(float* __restrict low, float* __restrict high, const float* __restrict cosine,
            const float* __restrict sine, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a * cosine[i] - b * sine[i];
    high[i] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace

void rope(const RopeArgs& args) {
  require_bf16(args.x, "rope: x");
  require_shape(args.x, args.x.rows, args.heads * args.head_dim, "rope: x");
  if (args.head_dim % 2 != 0) throw std::logic_error("rope: head_dim must be even");
  if (args.sequence_length <= 0) throw std::logic_error("rope: sequence_length must be positive");
  const std::int64_t half = args.head_dim / 2, cols = args.x.cols, rows = args.x.rows;
  SharedAmax largest;
  if (rows == 0 || cols == 0) return largest.store_to(args.amax_out);
  const auto half_size = static_cast<std::size_t>(half);
  std::vector<double> frequency(half_size);
  for (std::size_t i = 0; i < half_size; ++i) {
    frequency[i] =
        std::pow(static_cast<double>(args.theta), -static_cast<double>(i) / static_cast<double>(half));
  }
  // Position by position, so that each angle is found once for all rows and heads that have it.
  const std::int64_t positions = std::min(rows, args.sequence_length);
  at::parallel_for(0, positions, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> cosine(half_size), sine(half_size), values(static_cast<std::size_t>(cols));
    std::int32_t bits = 0;
    for (std::int64_t position = begin; position < end; ++position) {
      for (std::size_t i = 0; i < half_size; ++i) {
        const double angle = static_cast<double>(position) * frequency[i];
        cosine[i] = static_cast<float>(std::cos(angle));
        sine[i] = static_cast<float>(args.inverse ? -std::sin(angle) : std::sin(angle));
      }
      for (std::int64_t row = position; row < rows; row += args.sequence_length) {
        decode_span(args.x, row, 0, cols, values.data());
        for (std::int64_t head = 0; head < args.heads; ++head) {
          float* low = values.data() + head * args.head_dim;
          rotate(low, low + half, cosine.data(), sine.data(), half);
        }
        encode_span(values.data(), args.x, row, 0, cols);
        if (args.amax_out == nullptr) continue;
        round_to_bf16(values.data(), cols);
        bits = std::max(bits, magnitude_bits(values.data(), cols));
      }
    }
    largest.update(bits);
  });
  largest.store_to(args.amax_out);
}

}  // namespace coat::kernels::cpu
