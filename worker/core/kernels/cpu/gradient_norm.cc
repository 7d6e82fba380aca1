// The gradients' norm and the clipping factor that follows from it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/cpu/lane_sum.h"
#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/quant/bf16.h"

namespace coat::kernels::cpu {
namespace {

float to_float(float value) { return value; }
float to_float(std::uint16_t code) { return decode_bf16(code); }

// Elements whose squares are added in 8 lanes, and such blocks whose sums are added in order: what 8 threads
// and one block of threads do.
constexpr std::int64_t kBlock = 4096, kLanes = 8, kPart = 16 * kBlock;

template <typename T>
double sum_of_block(const T* values, std::int64_t n) {
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
  double sum = 0;
  for (const double part : lane) sum += part;
  return sum;
}

// The sums of an array's parts, behind those in `sums`.
template <typename T>
void add_parts(const T* data, std::int64_t elements, std::vector<double>& sums) {
  const auto first = static_cast<std::int64_t>(sums.size()), parts = (elements + kPart - 1) / kPart;
  sums.resize(static_cast<std::size_t>(first + parts));
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      double& sum = sums[static_cast<std::size_t>(first + part)];
      const std::int64_t last = std::min(elements, (part + 1) * kPart);
      for (std::int64_t at = part * kPart; at < last; at += kBlock) {
        sum += sum_of_block(data + at, std::min(kBlock, last - at));
      }
    }
  });
}

}  // namespace

void sum_of_squares(const std::vector<SquaredArray>& arrays, double* out) {
  std::vector<double> sums;
  for (const SquaredArray& array : arrays) {
    if (array.format == Format::kFp32) {
      add_parts(static_cast<const float*>(array.data), array.elements, sums);
    } else if (array.format == Format::kBf16) {
      add_parts(static_cast<const std::uint16_t*>(array.data), array.elements, sums);
    } else {
      throw std::logic_error("sum_of_squares: the data must be FP32 or BF16");
    }
  }
  *out += sum_in_lanes<256>(sums);  // of a block
}

void clip_factor(const ClipFactorArgs& args) {
  const double norm = std::sqrt(*args.sum_of_squares);
  const bool clips = args.clip_norm > 0 && norm > args.clip_norm;
  const double factor = clips ? args.clip_norm / norm : 1.0;
  *args.factor = std::isfinite(norm) ? static_cast<float>(factor) : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace coat::kernels::cpu
