#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "worker/core/kernels/api/exponential.h"
#include "worker/core/kernels/cpu/lane_sum.h"
#include "worker/core/kernels/cpu/operations.h"
#include "worker/core/kernels/cpu/span_codec.h"
#include "worker/core/kernels/cpu/tiles.h"

namespace coat::kernels::cpu {
namespace {

// Replaces the logits by e^(logit - shift) and returns their sum.
float exponentials(float* __restrict logits, float shift, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) logits[i] = exp_f32(logits[i] - shift);
  return lane_sum(n, [logits](std::int64_t i) { return logits[i]; });
}

// The loss of one row; the logits become gradient_scale * (softmax - onehot).
double row_loss(float* logits, std::int64_t n, std::int64_t target, float gradient_scale) {
  float shift = logits[0];
  for (std::int64_t i = 1; i < n; ++i) shift = std::max(shift, logits[i]);
  const double target_logit = static_cast<double>(logits[target]);
  const float sum = exponentials(logits, shift, n);
  const float probability_scale = 1.0f / sum;
  for (std::int64_t i = 0; i < n; ++i) logits[i] *= probability_scale * gradient_scale;
  logits[target] -= gradient_scale;
  return std::log(static_cast<double>(sum)) + static_cast<double>(shift) - target_logit;
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args) {
  const std::int64_t rows = args.logits.rows, cols = args.logits.cols;
  if (args.logits.format != TensorFormat{Format::kFp32, Scaling::kNone, 0, ScaleFormat::kFp32}) {
    throw std::logic_error("cross_entropy: logits must be FP32");
  }
  if (rows == 0 || cols == 0) return;
  std::vector<double> losses(static_cast<std::size_t>(rows));
  float* logits = static_cast<float*>(args.logits.data);
  at::parallel_for(0, rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* values = logits + row * cols;
      if (args.mask != nullptr && args.mask[row] == 0.0f) {
        std::fill_n(values, cols, 0.0f);
        continue;
      }
      const std::int32_t target = args.targets[row];
      if (target < 0 || target >= cols) {
        throw std::logic_error("cross_entropy: target " + std::to_string(target) + " is not in [0, " +
                               std::to_string(cols) + ")");
      }
      const float mask = args.mask != nullptr ? args.mask[row] : 1.0f;
      losses[static_cast<std::size_t>(row)] =
          static_cast<double>(mask) * row_loss(values, cols, target, args.gradient_scale * mask);
    }
  });
  *args.loss_sum += sum_in_lanes<32>(losses);  // of a warp
}

}  // namespace coat::kernels::cpu
