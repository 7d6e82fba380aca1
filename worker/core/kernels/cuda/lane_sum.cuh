// A sum over a row by one block, in the order that the CPU twins use (kernels/cpu/lane_sum.h). Device code
// only.
#pragma once

#include <cstdint>

#include "worker/core/kernels/cuda/reduce.cuh"

namespace coat::kernels::cuda {

// Threads of a row's block at most; thread t holds lanes 8 t .. 8 t + 7.
constexpr int kRowThreads = 256;

// A thread's lanes added in pairs.
__device__ inline float add_pairs(const Values& lanes) {
  const float* x = lanes.x;
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

// The lanes of all threads added: a thread's 8 in pairs, the threads of a warp by halves, the warps in order.
// Every thread of the block takes part and gets the sum.
__device__ inline float add_lanes(const Values& lanes) { return block_sum(add_pairs(lanes)); }

// term(0) + ... + term(n - 1), to every thread: term i goes to lane i % 2048, each lane adds its terms in
// order from 0. chunk_terms(i) gives terms i .. i + 7 for i a multiple of 8; those beyond n are not looked
// at.
template <typename ChunkTerms>
__device__ inline float lane_sum(std::int64_t n, ChunkTerms chunk_terms) {
  Values lanes{};
  for (std::int64_t col = threadIdx.x * kChunk; col < n; col += blockDim.x * kChunk) {
    const Values v = chunk_terms(col);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) lanes.x[j] += col + j < n ? v.x[j] : 0.0f;
  }
  return add_lanes(lanes);
}

// Threads of a block that works on one row: whole warps; with fewer than kRowThreads, each has one chunk.
inline int row_threads(std::int64_t cols) {
  const std::int64_t chunks = (cols + kChunk - 1) / kChunk;
  const std::int64_t whole_warps = (chunks + kWarp - 1) / kWarp * kWarp;
  return static_cast<int>(whole_warps < kRowThreads ? whole_warps : kRowThreads);
}

// Blocks for rows of one block each; kernels stride over the rest.
inline unsigned row_blocks(std::int64_t rows) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  return static_cast<unsigned>(rows < kMost ? rows : kMost);
}

}  // namespace coat::kernels::cuda
