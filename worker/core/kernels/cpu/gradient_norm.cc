// The gradients' norm and the clipping factor that follows from it.
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/quant/bf16.h"

namespace coat::kernels::cpu {
namespace {

float to_float(float value) { return value; }
float to_float(std::uint16_t code) { return decode_bf16(code); }

template <typename T>
void add_squares(const T* data, std::int64_t elements, double* out) {
  constexpr std::int64_t kBlock = 4096, kLanes = 8;
  const std::int64_t blocks = (elements + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  at::parallel_for(0, blocks, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const T* values = data + block * kBlock;
      const std::int64_t n = std::min(kBlock, elements - block * kBlock);
      double lane[kLanes] = {};
      std::int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        for (std::int64_t j = 0; j < kLanes; ++j) {
          const double value = to_float(values[i + j]);
          lane[j] += value * value;
        }
      }
      for (std::int64_t j = 0; i < n; ++i, ++j) {
        const double value = to_float(values[i]);
        lane[j] += value * value;
      }
      double& sum = sums[static_cast<std::size_t>(block)];
      for (const double part : lane) sum += part;
    }
  });
  // Blocks in 256 lanes, and lanes by halves: what one block of 256 threads does.
  constexpr std::size_t kSumLanes = 256;
  double total[kSumLanes] = {};
  for (std::size_t i = 0; i < sums.size(); ++i) total[i % kSumLanes] += sums[i];
  for (std::size_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) total[j] += total[j + width];
  }
  *out += total[0];
}

}  // namespace

void sum_of_squares(const void* data, Format format, std::int64_t elements, double* out) {
  if (format == Format::kFp32) return add_squares(static_cast<const float*>(data), elements, out);
  if (format == Format::kBf16) return add_squares(static_cast<const std::uint16_t*>(data), elements, out);
  throw std::logic_error("sum_of_squares: the data must be FP32 or BF16");
}

void clip_factor(const ClipFactorArgs& args) {
  const double norm = std::sqrt(*args.sum_of_squares);
  const bool clips = args.clip_norm > 0 && norm > args.clip_norm;
  const double factor = clips ? args.clip_norm / norm : 1.0;
  *args.factor = std::isfinite(norm) ? static_cast<float>(factor) : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace coat::kernels::cpu
