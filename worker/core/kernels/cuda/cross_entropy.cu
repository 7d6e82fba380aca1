#include <cmath>
#include <stdexcept>

#include "worker/core/kernels/api/exponential.h"
#include "worker/core/kernels/cuda/add_in_order.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/lane_sum.cuh"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"

namespace coat::kernels::cuda {
namespace {

constexpr int kMaxThreads = 256;

// The largest over the block, in every thread; NaN is passed over, as it shows in the sum of exponentials.
__device__ float block_max(float value) {
  __shared__ float warps[kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, offset));
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = warps[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) value = fmaxf(value, warps[warp]);
  return value;
}

__device__ float largest_of_row(const DeviceMatrix& logits, std::int64_t row) {
  float largest = -INFINITY;
  for (std::int64_t col = threadIdx.x * kChunk; col < logits.cols; col += blockDim.x * kChunk) {
    const Values v = load(logits, row, col);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (col + i < logits.cols) largest = fmaxf(largest, v.x[i]);
    }
  }
  return block_max(largest);
}

// row *= factor.
__device__ void scale_row(const DeviceMatrix& logits, std::int64_t row, float factor) {
  for (std::int64_t col = threadIdx.x * kChunk; col < logits.cols; col += blockDim.x * kChunk) {
    Values v = load(logits, row, col);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * factor;
    store_codes(logits, row, col, encode(Format::kFp32, v));
  }
}

// Replaces the row's logits by their exponentials and returns the sum.
__device__ float exponentials(const DeviceMatrix& logits, std::int64_t row, float shift) {
  return lane_sum(logits.cols, [&](std::int64_t col) {
    Values v = load(logits, row, col);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v.x[i] = exp_f32(v.x[i] - shift);
    store_codes(logits, row, col, encode(Format::kFp32, v));
    return v;
  });
}

__global__ void __launch_bounds__(kMaxThreads)
    row_kernel(DeviceMatrix logits, const std::int32_t* targets, const float* masks, float gradient_scale,
               double* losses) {
  for (std::int64_t row = blockIdx.x; row < logits.rows; row += gridDim.x) {
    const float mask = masks != nullptr ? masks[row] : 1.0f;
    float* values = static_cast<float*>(logits.data) + row * logits.cols;
    if (mask == 0.0f) {
      for (std::int64_t col = threadIdx.x; col < logits.cols; col += blockDim.x) values[col] = 0.0f;
      if (threadIdx.x == 0) losses[row] = 0.0;
      continue;
    }
    const std::int32_t target = targets[row];
    const bool known = target >= 0 && target < logits.cols;
    const double target_logit = known ? static_cast<double>(values[target]) : static_cast<double>(NAN);
    const float shift = largest_of_row(logits, row);
    const float sum = exponentials(logits, row, shift);
    const float scale = gradient_scale * mask;
    const float probability_scale = 1.0f / sum;
    scale_row(logits, row, probability_scale * scale);
    __syncthreads();
    if (threadIdx.x == 0) {
      if (known) values[target] -= scale;
      const double loss = log(static_cast<double>(sum)) + static_cast<double>(shift) - target_logit;
      losses[row] = static_cast<double>(mask) * loss;
    }
  }
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "cross_entropy";
  const DeviceMatrix logits = output(args.logits, kName);
  if (logits.format != Format::kFp32) throw std::logic_error("cross_entropy: logits must be FP32");
  if (logits.rows == 0 || logits.cols == 0) return;
  double* losses = DeviceState::current().partial_sums().elements<double>(logits.rows, kName);
  row_kernel<<<row_blocks(logits.rows), row_threads(logits.cols), 0, stream>>>(
      logits, args.targets, args.mask, args.gradient_scale, losses);
  check_launch(kName);
  add_in_order(losses, logits.rows, args.loss_sum, kName, stream);
}

}  // namespace coat::kernels::cuda
