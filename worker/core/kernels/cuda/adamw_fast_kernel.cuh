// The kernel of whole tiles and its launch, for the pairs of moment codes that adamw_fast_*.cu name: one
// source a pair, for the compiler's sake.
#pragma once

#include "worker/core/kernels/cuda/adamw_fast.cuh"
#include "worker/core/kernels/cuda/adamw_fast.h"
#include "worker/core/kernels/cuda/adamw_tile.cuh"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"

namespace coat::kernels::cuda::adamw_fast {

// Registers for about 80 a thread, and shared memory for one block of the largest tables.
inline constexpr int kThreads = 640;
inline constexpr int kWarps = kThreads / kWarp;

template <typename Tile>
struct BlockShared {
  typename Tile::Shared tables;
  Exchange exchanges[kWarps];
};

// A warp takes every n-th tile. What is left at a tensor's end, and tensors whose tiles are not aligned, are
// done by the general code, 128 elements at a time.
template <typename Tile>
__global__ void __launch_bounds__(kThreads, 1) fast_kernel(const __grid_constant__ AdamWLaunch launch) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<BlockShared<Tile>*>(memory);
  const float factor = gradient_factor(launch.scalars);
  if (isnan(factor)) return;
  shared.tables.load(launch.store1, launch.store2);
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  std::int64_t tile = std::int64_t{warp} * gridDim.x + blockIdx.x;
  for (int index = 0; index < launch.count; ++index) {
    const TensorEntry& t = launch.tensors[index];
    const std::int64_t end = t.first_tile + (t.elements + kTile - 1) / kTile;
    Tile whole(t, shared.tables, shared.exchanges[warp], launch, factor);
    for (; tile < end; tile += stride) {
      const std::int64_t first = (tile - t.first_tile) * kTile;
      if (t.aligned && t.elements - first >= kTile && whole.step(first)) continue;
      for (std::int64_t part = first; part < first + kTile && part < t.elements; part += kWarpElements) {
        step_quad<false>(launch, t, part + lane * kQuad, factor, nullptr, nullptr);
      }
    }
  }
}

template <WeightFormat kWeights, Format kGradient, typename Moment1, typename Moment2>
void launch_whole_tiles(const AdamWLaunch& launch, cudaStream_t stream) {
  using Tile = WholeTile<kWeights, kGradient, Moment1, Moment2>;
  constexpr int kBytes = static_cast<int>(sizeof(BlockShared<Tile>));
  const auto kernel = fast_kernel<Tile>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "adamw");
  kernel<<<DeviceState::current().multiprocessors(), kThreads, kBytes, stream>>>(launch);
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
