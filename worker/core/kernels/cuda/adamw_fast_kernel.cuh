// The kernel of whole tiles and its launch, for the pairs of moment codes that adamw_fast_*.cu name: one
// source a pair, for the compiler's sake.
#pragma once

#include "worker/core/kernels/cuda/adamw_fast.cuh"
#include "worker/core/kernels/cuda/adamw_fast.h"
#include "worker/core/kernels/cuda/adamw_tile.cuh"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"

namespace coat::kernels::cuda::adamw_fast {

// One block a multiprocessor: as many warps as have 128 registers a thread (with 20 warps, of 96, most
// versions are slower), or as its shared memory holds beside 40 KB of first-level cache (with all of it,
// tables and FP32 weights made a step a fifth slower).
template <typename Tile>
struct BlockShared {
  static constexpr int kMost = 216 * 1024, kWanted = 16;
  static constexpr int kFitting =
      static_cast<int>((kMost - sizeof(typename Tile::Shared)) / sizeof(typename Tile::WarpShared));
  static constexpr int kWarps = kFitting < kWanted ? kFitting : kWanted;
  static constexpr int kThreads = kWarps * kWarp;
  typename Tile::Shared tables;
  typename Tile::WarpShared warps[kWarps];
};

// The tiles of a launch that one warp takes: every n-th. 2^31 tiles are more than a device's memory.
class Walk {
 public:
  __device__ Walk(const AdamWLaunch& launch, std::uint32_t tile)
      : launch_(launch), next_(launch.tensors), tile_(tile) {
    settle();
  }
  __device__ bool ended() const { return tile_ >= end_; }
  __device__ void advance(std::uint32_t tiles) {
    tile_ += tiles;
    settle();
  }
  __device__ const TensorEntry& tensor() const { return next_[-1]; }
  __device__ std::uint32_t tile_of_tensor() const { return tile_ - first_tile_; }
  // Whether whole-tile code takes it; never at the end.
  __device__ bool is_fast() const { return tile_ < fast_end_; }

 private:
  __device__ void settle() {
    while (tile_ >= end_ && next_ != launch_.tensors + launch_.count) {
      const TensorEntry& entry = *next_++;
      first_tile_ = static_cast<std::uint32_t>(entry.first_tile);
      fast_end_ = first_tile_ + static_cast<std::uint32_t>(entry.fast_tiles);
      end_ = first_tile_ + static_cast<std::uint32_t>((entry.elements + kTile - 1) / kTile);
    }
  }

  const AdamWLaunch& launch_;
  const TensorEntry* next_;
  std::uint32_t tile_, first_tile_ = 0, fast_end_ = 0, end_ = 0;
};

// What is left at a tensor's end, and tensors whose tiles are not aligned, are done by the general code, 128
// elements at a time.
template <typename Tile>
__global__ void __launch_bounds__(BlockShared<Tile>::kThreads, 1)
    fast_kernel(const __grid_constant__ AdamWLaunch launch) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<BlockShared<Tile>*>(memory);
  const float factor = gradient_factor(launch.scalars);
  if (isnan(factor)) return;
  shared.tables.load(launch.store1, launch.store2);
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = __shfl_sync(kWholeWarp, static_cast<int>(threadIdx.x) / kWarp, 0);
  Tile whole(shared.tables, shared.warps[warp], launch, factor);
  Walk next(launch, blockIdx.x * std::uint32_t{BlockShared<Tile>::kWarps} + static_cast<std::uint32_t>(warp));
  bool fetched = next.is_fast();
  if (fetched) whole.fetch(next.tensor(), next.tile_of_tensor());
  while (!next.ended()) {
    const TensorEntry& t = next.tensor();
    const std::uint32_t tile = next.tile_of_tensor();
    const bool had = fetched;
    const auto fetch_next = [&] {
      next.advance(gridDim.x * std::uint32_t{BlockShared<Tile>::kWarps});
      fetched = next.is_fast();
      if (fetched) whole.fetch(next.tensor(), next.tile_of_tensor());
    };
    if (!had) fetch_next();
    if (had && whole.step(t, tile, fetch_next)) continue;
    const std::int64_t first = std::int64_t{tile} * kTile;
    for (std::int64_t part = first; part < first + kTile && part < t.elements; part += kWarpElements) {
      step_quad<false>(launch, t, part + lane * kQuad, factor, nullptr, nullptr);
    }
  }
}

template <WeightFormat kWeights, Format kGradient, typename Moment1, typename Moment2>
void launch_whole_tiles(const AdamWLaunch& launch, cudaStream_t stream) {
  using Tile = WholeTile<kWeights, kGradient, Moment1, Moment2>;
  using Block = BlockShared<Tile>;
  constexpr int kBytes = static_cast<int>(sizeof(Block));
  const auto kernel = fast_kernel<Tile>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "adamw");
  kernel<<<DeviceState::current().multiprocessors(), Block::kThreads, kBytes, stream>>>(launch);
  check_launch("adamw");
}

template <typename Moment1, typename Moment2>
void launch_pair(const AdamWLaunch& launch, cudaStream_t stream) {
  const auto with_weights = [&]<Format kGradient>() {
    switch (launch.weights) {
      case WeightFormat::kFp32:
        return launch_whole_tiles<WeightFormat::kFp32, kGradient, Moment1, Moment2>(launch, stream);
      case WeightFormat::kBf16Stochastic:
        return launch_whole_tiles<WeightFormat::kBf16Stochastic, kGradient, Moment1, Moment2>(launch, stream);
      case WeightFormat::kBf16Residual:
        return launch_whole_tiles<WeightFormat::kBf16Residual, kGradient, Moment1, Moment2>(launch, stream);
    }
  };
  if (launch.gradient == Format::kFp32) return with_weights.template operator()<Format::kFp32>();
  with_weights.template operator()<Format::kBf16>();
}

}  // namespace coat::kernels::cuda::adamw_fast
