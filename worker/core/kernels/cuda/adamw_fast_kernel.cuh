// The kernel of whole tiles and its launch, for the pairs of moment codes that adamw_fast_*.cu name: one
// source a pair, for the compiler's sake.
#pragma once

#include "worker/core/kernels/cuda/adamw_fast.cuh"
#include "worker/core/kernels/cuda/adamw_fast.h"
#include "worker/core/kernels/cuda/adamw_tile.cuh"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"

namespace coat::kernels::cuda::adamw_fast {

// One block a multiprocessor: as many warps as have about a hundred registers a thread, or as its shared
// memory holds beside 40 KB of first-level cache (with all of it, tables and FP32 weights made a step a fifth
// slower).
template <typename Tile>
struct BlockShared {
  static constexpr int kMost = 216 * 1024, kWanted = 20;
  static constexpr int kFitting =
      static_cast<int>((kMost - sizeof(typename Tile::Shared)) / sizeof(typename Tile::WarpShared));
  static constexpr int kWarps = kFitting < kWanted ? kFitting : kWanted;
  static constexpr int kThreads = kWarps * kWarp;
  typename Tile::Shared tables;
  typename Tile::WarpShared warps[kWarps];
};

// The tiles of a launch that one warp takes: every n-th.
class Walk {
 public:
  __device__ Walk(const AdamWLaunch& launch, std::int64_t tile, std::int64_t stride)
      : launch_(launch), tile_(tile), stride_(stride) {
    settle();
  }
  __device__ bool ended() const { return index_ >= launch_.count; }
  __device__ void advance() {
    tile_ += stride_;
    settle();
  }
  __device__ const TensorEntry& tensor() const { return launch_.tensors[index_]; }
  __device__ std::int64_t first_element() const { return (tile_ - first_tile_) * kTile; }
  __device__ std::uint32_t tile_of_tensor() const { return static_cast<std::uint32_t>(tile_ - first_tile_); }
  // Whether the tile is whole and suits 16-byte copies.
  __device__ bool is_whole() const {
    return !ended() && tensor().aligned_tiles && tensor().elements - first_element() >= kTile;
  }

 private:
  __device__ void settle() {
    while (tile_ >= end_ && ++index_ < launch_.count) {
      first_tile_ = tensor().first_tile;
      end_ = first_tile_ + (tensor().elements + kTile - 1) / kTile;
    }
  }

  const AdamWLaunch& launch_;
  std::int64_t tile_, stride_, first_tile_ = 0, end_ = 0;
  int index_ = -1;
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
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  Tile whole(shared.tables, shared.warps[warp], launch, factor);
  Walk next(launch, std::int64_t{warp} * gridDim.x + blockIdx.x,
            std::int64_t{gridDim.x} * BlockShared<Tile>::kWarps);
  bool fetched = next.is_whole();
  if (fetched) whole.fetch(next.tensor(), next.tile_of_tensor());
  while (!next.ended()) {
    const TensorEntry& t = next.tensor();
    const std::int64_t first = next.first_element();
    const std::uint32_t tile = next.tile_of_tensor();
    const bool had = fetched;
    const auto fetch_next = [&] {
      next.advance();
      fetched = next.is_whole();
      if (fetched) whole.fetch(next.tensor(), next.tile_of_tensor());
    };
    if (!had) fetch_next();
    if (had && whole.step(t, tile, fetch_next)) continue;
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
