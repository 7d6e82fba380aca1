// A sum over a row by one block, in the order that the CPU twins use. Device code only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/matrix_io.cuh"

namespace coat::kernels::cuda {

// term(0) + ... + term(n - 1), to every thread: term i goes to lane i % 16, each lane adds its terms in
// order, then the lanes are added pairwise. chunk_terms(i) gives terms i .. i + 7 for i a multiple of 8;
// those beyond n are not looked at.
template <typename ChunkTerms>
__device__ inline float lane_sum(std::int64_t n, ChunkTerms chunk_terms) {
  constexpr int kLanes = 16;
  constexpr int kTile = 4096;
  __shared__ float terms[kTile];
  __shared__ float total;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float lane = 0.0f;
  for (std::int64_t base = 0; base < n; base += kTile) {
    const int count = static_cast<int>(n - base < kTile ? n - base : kTile);
    for (int i = thread * kChunk; i < count; i += threads * kChunk) {
      const Values v = chunk_terms(base + i);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) terms[i + j] = v.x[j];
    }
    __syncthreads();
    if (thread < kLanes) {
      for (int i = thread; i < count; i += kLanes) lane += terms[i];
    }
    __syncthreads();
  }
  if (thread < kWarp) {
#pragma unroll
    for (int width = kLanes / 2; width > 0; width /= 2) lane += __shfl_down_sync(kWholeWarp, lane, width);
    if (thread == 0) total = lane;
  }
  __syncthreads();
  return total;
}

// Threads of a block that works on one row: whole warps, 256 at most.
inline int row_threads(std::int64_t cols) {
  const std::int64_t chunks = (cols + kChunk - 1) / kChunk;
  const std::int64_t whole_warps = (chunks + kWarp - 1) / kWarp * kWarp;
  return static_cast<int>(whole_warps < 256 ? whole_warps : 256);
}

// Blocks for rows of one block each; kernels stride over the rest.
inline unsigned row_blocks(std::int64_t rows) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  return static_cast<unsigned>(rows < kMost ? rows : kMost);
}

}  // namespace coat::kernels::cuda
