#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <cmath>
#include <stdexcept>

#include "worker/core/kernels/api/exponential.h"
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

// Rows that are done in a launch: 0 between kernels, which run one after another (one stream).
__device__ std::uint32_t done_rows;

// By one warp: stores the loss of a row. The last row's adds all of them to *loss_sum, row r in lane r % 32,
// each lane in order, the lanes by halves.
__device__ void finish_row(double* losses, std::int64_t rows, std::int64_t row, double loss,
                           double* loss_sum) {
  const int lane = static_cast<int>(threadIdx.x);
  bool last = false;
  if (lane == 0) {
    losses[row] = loss;
    __threadfence();
    const auto all_but_one = static_cast<std::uint32_t>(rows - 1);
    last = atomicInc(&done_rows, all_but_one) == all_but_one;
  }
  if (!__any_sync(kWholeWarp, last)) return;
  __threadfence();
  double sum = 0.0;
  for (std::int64_t i = lane; i < rows; i += kWarp) sum += __ldcg(losses + i);
  sum = warp_sum(sum);
  if (lane == 0) *loss_sum += sum;
}

__global__ void __launch_bounds__(kMaxThreads)
    row_kernel(DeviceMatrix logits, const std::int32_t* targets, const float* masks, float gradient_scale,
               double* losses, double* loss_sum) {
  const bool leads = threadIdx.x < kWarp;
  for (std::int64_t row = blockIdx.x; row < logits.rows; row += gridDim.x) {
    const float mask = masks != nullptr ? masks[row] : 1.0f;
    float* values = static_cast<float*>(logits.data) + row * logits.cols;
    if (mask == 0.0f) {
      for (std::int64_t col = threadIdx.x; col < logits.cols; col += blockDim.x) values[col] = 0.0f;
      if (leads) finish_row(losses, logits.rows, row, 0.0, loss_sum);
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
    if (leads) {
      if (threadIdx.x == 0 && known) values[target] -= scale;
      const double loss = log(static_cast<double>(sum)) + static_cast<double>(shift) - target_logit;
      finish_row(losses, logits.rows, row, static_cast<double>(mask) * loss, loss_sum);
    }
  }
}

// The same with the row in the shared memory of a cluster of kParts blocks: one read and one write of the
// logits, and the blocks that fit a multiprocessor read, compute and write different rows at the same time.
//
// Block p of a cluster has lanes p * kPartLanes ... of lane_sum, a thread two of them.
constexpr int kParts = 4, kPartThreads = 256, kPartLanes = 2 * kPartThreads, kLanes = kParts * kPartLanes;
constexpr int kSetLanes = kWarp * kChunk, kPartSets = kPartLanes / kSetLanes, kSetThreads = kSetLanes / 2;
constexpr int kPartWarps = kPartThreads / kWarp;

// What the blocks of a cluster tell each other; `largest` and `sets` are written by all of them.
struct Exchange {
  float largest[kParts], sets[kParts * kPartSets];
  float warps[kPartWarps], groups[kPartSets][kWarp];
};

// The largest of the cluster's blocks, to every thread.
__device__ float cluster_max(const cooperative_groups::cluster_group& cluster, Exchange& exchange,
                             float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, offset));
  }
  if (threadIdx.x % kWarp == 0) exchange.warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (threadIdx.x < kParts) {
    value = exchange.warps[0];
    for (int warp = 1; warp < kPartWarps; ++warp) value = fmaxf(value, exchange.warps[warp]);
    cluster.map_shared_rank(&exchange, threadIdx.x)->largest[cluster.block_rank()] = value;
  }
  cluster.sync();
  value = exchange.largest[0];
#pragma unroll
  for (int part = 1; part < kParts; ++part) value = fmaxf(value, exchange.largest[part]);
  return value;
}

// The sum of all lanes, in the order of lane_sum, to every thread; low and high are those of the thread.
__device__ float cluster_lane_sum(const cooperative_groups::cluster_group& cluster, Exchange& exchange,
                                  float low, float high) {
  const int thread = static_cast<int>(threadIdx.x);
  float group = low + high;  // eight lanes are four threads
  group += __shfl_xor_sync(kWholeWarp, group, 1);
  group += __shfl_xor_sync(kWholeWarp, group, 2);
  if (thread % 4 == 0) exchange.groups[thread / kSetThreads][thread % kSetThreads / 4] = group;
  __syncthreads();
  if (thread < kPartSets * kWarp) {
    const float set = warp_sum(exchange.groups[thread / kWarp][thread % kWarp]);
    const unsigned place = cluster.block_rank() * kPartSets + static_cast<unsigned>(thread / kWarp);
    if (thread % kWarp < kParts) cluster.map_shared_rank(&exchange, thread % kWarp)->sets[place] = set;
  }
  cluster.sync();
  float sum = exchange.sets[0];
#pragma unroll
  for (int set = 1; set < kParts * kPartSets; ++set) sum += exchange.sets[set];
  return sum;
}

__global__ void __cluster_dims__(kParts) __launch_bounds__(kPartThreads)
    cluster_row_kernel(DeviceMatrix logits, const std::int32_t* targets, const float* masks,
                       float gradient_scale, double* losses, double* loss_sum) {
  extern __shared__ float2 kept[];  // this thread's pairs, kPartThreads apart
  __shared__ Exchange exchange;
  const auto cluster = cooperative_groups::this_cluster();
  const std::int64_t row = blockIdx.x / kParts;
  const int cols = static_cast<int>(logits.cols), thread = static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(cluster.block_rank()) * kPartLanes + 2 * thread;
  float* values = static_cast<float*>(logits.data) + row * logits.cols;
  const auto for_own_pairs = [&](auto body) {
    float2* pair = kept + thread;
#pragma unroll 4
    for (int col = first; col < cols; col += kLanes, pair += kPartThreads) body(*pair, col);
  };
  const bool leads = cluster.block_rank() == 0 && thread < kWarp;
  const float mask = masks != nullptr ? masks[row] : 1.0f;
  if (mask == 0.0f) {
    for_own_pairs([&](float2&, int col) { *reinterpret_cast<float2*>(values + col) = float2{}; });
    if (leads) finish_row(losses, logits.rows, row, 0.0, loss_sum);
    return;
  }
  cluster.barrier_arrive();  // all blocks must run before one writes to another's memory
  for_own_pairs([&](float2& pair, int col) { __pipeline_memcpy_async(&pair, values + col, sizeof(float2)); });
  __pipeline_commit();
  const std::int32_t target = targets[row];
  const bool known = target >= 0 && target < cols;
  // Read before any block of the cluster writes gradients: they wait for each other below.
  const double target_logit = leads && known ? static_cast<double>(values[target]) : static_cast<double>(NAN);
  cluster.barrier_wait();
  __pipeline_wait_prior(0);  // of what this thread copied, which is all that it reads
  float largest = -INFINITY;
  for_own_pairs([&](const float2& pair, int) { largest = fmaxf(largest, fmaxf(pair.x, pair.y)); });
  const float shift = cluster_max(cluster, exchange, largest);
  float low = 0.0f, high = 0.0f;
  for_own_pairs([&](float2& pair, int) {
    pair = {exp_f32(pair.x - shift), exp_f32(pair.y - shift)};
    low += pair.x;
    high += pair.y;
  });
  const float sum = cluster_lane_sum(cluster, exchange, low, high);
  const float scale = gradient_scale * mask;
  const float probability_scale = 1.0f / sum;
  const float factor = probability_scale * scale;
  const int target_pair = known ? target & ~1 : -1;
  for_own_pairs([&](const float2& pair, int col) {
    float2 out = {pair.x * factor, pair.y * factor};
    if (col == target_pair) (target % 2 == 0 ? out.x : out.y) -= scale;
    *reinterpret_cast<float2*>(values + col) = out;
  });
  if (leads) {
    const double loss = log(static_cast<double>(sum)) + static_cast<double>(shift) - target_logit;
    finish_row(losses, logits.rows, row, static_cast<double>(mask) * loss, loss_sum);
  }
}

// The most that a block can have for its part of a row, beside what the kernel has otherwise.
constexpr std::int64_t kMostPartBytes = 224 << 10;
constexpr std::int64_t kMostClusters = 1 << 28;

// Shared memory of a block for its part of a row.
std::int64_t part_bytes(std::int64_t cols) {
  return (cols + kLanes - 1) / kLanes * kPartThreads * static_cast<std::int64_t>(sizeof(float2));
}

}  // namespace

void cross_entropy(const CrossEntropyArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "cross_entropy";
  const DeviceMatrix logits = output(args.logits, kName);
  if (logits.format != Format::kFp32) throw std::logic_error("cross_entropy: logits must be FP32");
  if (logits.rows == 0 || logits.cols == 0) return;
  double* losses = DeviceState::current().partial_sums().elements<double>(logits.rows, kName);
  const std::int64_t bytes = part_bytes(logits.cols);
  if (logits.whole_chunks && logits.cols >= kLanes && bytes <= kMostPartBytes &&
      logits.rows <= kMostClusters) {
    check(cudaFuncSetAttribute(cluster_row_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kMostPartBytes)),
          kName);
    cluster_row_kernel<<<static_cast<unsigned>(logits.rows * kParts), kPartThreads,
                         static_cast<std::size_t>(bytes), stream>>>(
        logits, args.targets, args.mask, args.gradient_scale, losses, args.loss_sum);
  } else {
    row_kernel<<<row_blocks(logits.rows), row_threads(logits.cols), 0, stream>>>(
        logits, args.targets, args.mask, args.gradient_scale, losses, args.loss_sum);
  }
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
