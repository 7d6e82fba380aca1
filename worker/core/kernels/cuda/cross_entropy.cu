#include <cuda_pipeline.h>

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

// The same with the row in shared memory, by a block of kWideThreads: one read and one write of the logits.
constexpr int kWideThreads = 1024, kLanes = 2048, kSet = 256;

// lane_sum of shared memory, to every thread. A thread has 2 of the lanes; 8 lanes are 4 threads, a set of 32
// such groups is added by one warp.
__device__ float wide_lane_sum(const float* row, int n) {
  __shared__ float groups[kLanes / kSet][kWarp], sets[kLanes / kSet];
  const int thread = static_cast<int>(threadIdx.x), first = 2 * thread;
  float low = 0.0f, high = 0.0f;
  for (int base = first; base < n; base += kLanes) {
    low += row[base];
    if (base + 1 < n) high += row[base + 1];
  }
  float group = low + high;
  group += __shfl_xor_sync(kWholeWarp, group, 1);
  group += __shfl_xor_sync(kWholeWarp, group, 2);
  if (thread % 4 == 0) groups[first / kSet][first % kSet / kChunk] = group;
  __syncthreads();
  if (thread < kLanes / kChunk) {
    const float set = warp_sum(groups[thread / kWarp][thread % kWarp]);
    if (thread % kWarp == 0) sets[thread / kWarp] = set;
  }
  __syncthreads();
  float sum = sets[0];
#pragma unroll
  for (int set = 1; set < kLanes / kSet; ++set) sum += sets[set];
  return sum;
}

__global__ void __launch_bounds__(kWideThreads, 1)
    wide_row_kernel(DeviceMatrix logits, const std::int32_t* targets, const float* masks,
                    float gradient_scale, double* losses) {
  extern __shared__ float4 fours[];
  float* row_values = reinterpret_cast<float*>(fours);
  const std::int64_t row = blockIdx.x;
  const int cols = static_cast<int>(logits.cols), count = cols / 4;
  float4* values = reinterpret_cast<float4*>(static_cast<float*>(logits.data) + row * logits.cols);
  const float mask = masks != nullptr ? masks[row] : 1.0f;
  if (mask == 0.0f) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kWideThreads) values[i] = float4{};
    if (threadIdx.x == 0) losses[row] = 0.0;
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWideThreads) {
    __pipeline_memcpy_async(&fours[i], &values[i], sizeof(float4));
  }
  __pipeline_commit();
  const std::int32_t target = targets[row];
  const bool known = target >= 0 && target < cols;
  __pipeline_wait_prior(0);  // of what this thread copied, which is what it reads until the sum
  float largest = -INFINITY;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWideThreads) {
    const float4 v = fours[i];
    largest = fmaxf(largest, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  const float shift = block_max(largest);
  const double target_logit = known ? static_cast<double>(row_values[target]) : static_cast<double>(NAN);
  __syncthreads();  // before it is replaced
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWideThreads) {
    const float4 v = fours[i];
    fours[i] = {exp_f32(v.x - shift), exp_f32(v.y - shift), exp_f32(v.z - shift), exp_f32(v.w - shift)};
  }
  __syncthreads();
  const float sum = wide_lane_sum(row_values, cols);
  const float scale = gradient_scale * mask;
  const float probability_scale = 1.0f / sum;
  const float factor = probability_scale * scale;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWideThreads) {
    const float4 v = fours[i];
    float out[4] = {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
    if (known && i == target / 4) out[target % 4] -= scale;
    values[i] = {out[0], out[1], out[2], out[3]};
  }
  if (threadIdx.x == 0) {
    const double loss = log(static_cast<double>(sum)) + static_cast<double>(shift) - target_logit;
    losses[row] = static_cast<double>(mask) * loss;
  }
}

// The most that a block can have for a row, beside wide_row_kernel's other shared memory.
constexpr std::int64_t kMostRowBytes = 224 << 10;

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "cross_entropy";
  const DeviceMatrix logits = output(args.logits, kName);
  if (logits.format != Format::kFp32) throw std::logic_error("cross_entropy: logits must be FP32");
  if (logits.rows == 0 || logits.cols == 0) return;
  double* losses = DeviceState::current().partial_sums().elements<double>(logits.rows, kName);
  const std::int64_t row_bytes = logits.cols * bytes_of(Format::kFp32);
  if (logits.whole_chunks && row_bytes <= kMostRowBytes) {
    check(cudaFuncSetAttribute(wide_row_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kMostRowBytes)),
          kName);
    wide_row_kernel<<<static_cast<unsigned>(logits.rows), kWideThreads, static_cast<std::size_t>(row_bytes),
                      stream>>>(logits, args.targets, args.mask, args.gradient_scale, losses);
  } else {
    row_kernel<<<row_blocks(logits.rows), row_threads(logits.cols), 0, stream>>>(
        logits, args.targets, args.mask, args.gradient_scale, losses);
  }
  check_launch(kName);
  add_in_order(losses, logits.rows, args.loss_sum, kName, stream);
}

}  // namespace coat::kernels::cuda
