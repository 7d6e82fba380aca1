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
  value = __reduce_max_sync(kWholeWarp, value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  std::uint32_t largest = warps[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) largest = max(largest, warps[warp]);
  return largest;
}

// What the blocks of a running kernel have joined: zeros between kernels. Kernels that use it run one after
// another, as the interface demands (one stream).
struct JoinedMaximum {
  std::uint32_t largest, blocks;
};
static __device__ JoinedMaximum joined_maxima[2];

// *amax = the largest magnitude of all blocks of a one-dimensional grid; the last of them stores it. A
// maximum of integers: any order gives the same result. `amax` is the same in the whole grid; nullptr:
// nothing is wanted. A kernel with two maxima joins the second one as kWhich = 1.
template <int kWhich = 0>
__device__ inline void join_amax(float* amax, std::uint32_t largest) {
  if (amax == nullptr) return;
  largest = block_largest(largest);
  if (threadIdx.x != 0) return;
  JoinedMaximum& joined = joined_maxima[kWhich];
  // What is there already only grows, so most blocks need not write.
  std::uint32_t before = *static_cast<volatile std::uint32_t*>(&joined.largest);
  if (before < largest) before = atomicMax(&joined.largest, largest);
  // Never so, as magnitudes have no sign; but the count that follows waits for the maximum to be there. A
  // fence would wait for all that the block has stored as well.
  if (before > 0x7FFFFFFFu) return;
  if (atomicInc(&joined.blocks, gridDim.x - 1) != gridDim.x - 1) return;
  *amax = __uint_as_float(atomicExch(&joined.largest, 0u));
}

}  // namespace coat::kernels::cuda
