// Reductions whose order depends on the launch shape alone. Device code only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/matrix_io.cuh"

namespace coat::kernels::cuda {

template <typename T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kWholeWarp, value, offset);
  return value;
}

// The sum over a block of whole warps, to every thread: lanes by a tree, then warps in order.
template <typename T>
__device__ inline T block_sum(T value) {
  __shared__ T warps[kWarp];
  value = warp_sum(value);
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  T sum = warps[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) sum += warps[warp];
  return sum;
}

__device__ inline std::uint32_t block_largest(std::uint32_t value) {
  __shared__ std::uint32_t warps[kWarp];
  value = largest_of_lanes(value, kWarp);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  std::uint32_t largest = warps[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) largest = max(largest, warps[warp]);
  return largest;
}

// Joins the block's largest magnitude into *amax, which starts at 0 (clear_amax). A maximum of integers: any
// order gives the same result. `amax` is the same in the whole block; nullptr: nothing is wanted.
__device__ inline void join_amax(float* amax, std::uint32_t largest) {
  if (amax == nullptr) return;
  largest = block_largest(largest);
  if (threadIdx.x != 0) return;
  auto* joined = reinterpret_cast<std::uint32_t*>(amax);
  // What is there already only grows, so most blocks need not write.
  if (*static_cast<volatile std::uint32_t*>(joined) < largest) atomicMax(joined, largest);
}

}  // namespace coat::kernels::cuda
