// How the threads of a kernel share the chunks of a matrix. Device code only.
#pragma once

#include <type_traits>

#include "worker/core/kernels/cuda/matrix_io.cuh"

namespace coat::kernels::cuda {

// Where item `index` of a Cover lies; rows beyond the last for items beyond the total.
struct Position {
  std::int64_t row = 0;
  std::int64_t col = 0;
};

__device__ inline Position position_of(const Cover& cover, std::int64_t index) {
  if (index <= 0xFFFFFFFF) {  // a 32-bit division is several times faster
    const auto small = static_cast<std::uint32_t>(index),
               width = static_cast<std::uint32_t>(cover.chunks_per_row);
    return {small / width, std::int64_t{small % width} * kChunk};
  }
  return {index / cover.chunks_per_row, index % cover.chunks_per_row * kChunk};
}

// Calls body(row, col) for every chunk of a cover, by whole warps over the grid.
template <typename Body>
__device__ inline void for_each_chunk(const Cover& cover, Body body) {
  const std::int64_t end = (cover.total() + kWarp - 1) / kWarp * kWarp;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < end; i += stride) {
    const Position at = position_of(cover, i);
    body(at.row, at.col);
  }
}

// The same over matrices of one row.
struct OneRow {
  std::int64_t chunks = 0;
  static constexpr int lanes_per_group = GroupedE4M3::group / kChunk;
};
inline OneRow one_row(const DeviceMatrix& m) { return {m.rows * m.cols / kChunk}; }
template <typename Body>
__device__ inline void for_each_chunk(const OneRow& cover, Body body) {
  const std::int64_t end = (cover.chunks + kWarp - 1) / kWarp * kWarp;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < end; i += stride) {
    body(std::int64_t{0}, i * kChunk);
  }
}

// Threads of a block, and its blocks, for for_chunks_at_once.
inline constexpr int kChunkThreads = 256;
template <int kAtOnce, typename Kernel>
unsigned chunk_blocks(Kernel* kernel, const OneRow& span) {
  constexpr std::int64_t kPerBlock = std::int64_t{kAtOnce} * kChunkThreads;
  const std::int64_t parts = (span.chunks + kPerBlock - 1) / kPerBlock;
  // Some more than run at once: they begin and end at different times, which keeps the memory busy.
  constexpr int kTurns = 12;
  const std::int64_t each = (parts + kTurns - 1) / kTurns;
  const std::int64_t blocks =
      std::int64_t{kTurns} * resident_blocks(reinterpret_cast<const void*>(kernel), kChunkThreads, each);
  return static_cast<unsigned>(blocks < parts ? blocks : parts);
}
template <int kAtOnce, typename Kernel>
unsigned chunk_blocks(Kernel*, const Cover& span) {
  return static_cast<unsigned>(blocks_for(span.total(), kChunkThreads));
}

// Calls fetch(row, col, further) for kAtOnce chunks of a thread, which start their loads, then
// work(row, col, fetched, inside) for each; `inside` is std::true_type where the chunk surely lies in the
// matrix.
template <int kAtOnce, typename Fetch, typename Work>
__device__ inline void for_chunks_at_once(const OneRow& span, Fetch fetch, Work work) {
  constexpr int kStep = kChunkThreads * kChunk;
  const std::int64_t end = span.chunks * kChunk, stride = std::int64_t{gridDim.x} * (kAtOnce * kStep);
  std::int64_t begin = std::int64_t{blockIdx.x} * (kAtOnce * kStep);
  for (; begin + kAtOnce * kStep <= end; begin += stride) {
    const std::int64_t col = begin + threadIdx.x * kChunk;
    decltype(fetch(0, col, 0)) fetched[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) fetched[i] = fetch(0, col, i * kStep);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) work(0, col + i * kStep, fetched[i], std::true_type{});
  }
  if (begin >= end) return;
#pragma unroll 1
  for (int i = 0; i < kAtOnce; ++i) {
    const std::int64_t at = begin + threadIdx.x * kChunk + i * kStep;
    decltype(fetch(0, at, 0)) fetched{};
    if (at < end) fetched = fetch(0, at, 0);
    work(0, at, fetched, std::false_type{});
  }
}
// The same by striding over a cover.
template <int kAtOnce, typename Fetch, typename Work>
__device__ inline void for_chunks_at_once(const Cover& span, Fetch fetch, Work work) {
  for_each_chunk(span, [&](std::int64_t row, std::int64_t col) {
    work(row, col, fetch(row, col, 0), std::false_type{});
  });
}

}  // namespace coat::kernels::cuda
