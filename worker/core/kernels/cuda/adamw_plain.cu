#include "worker/core/kernels/cuda/adamw_parts.cuh"
#include "worker/core/kernels/cuda/adamw_plain.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"

namespace coat::kernels::cuda::adamw_plain {
namespace {

using namespace adamw_parts;

constexpr int kThreads = kTile / kQuad;

template <WeightFormat kWeights, Format kGradient>
__device__ void step_quad(const AdamWLaunch& launch, const TensorEntry& t, const Span& span, float factor) {
  Quad value = load_value(kWeights, t, span);
  const Quad gradient =
      kGradient == Format::kFp32 ? load_fp32(t.gradient, span) : load_bf16(t.gradient, span);
  const auto [m, v] = update(launch.scalars, factor, t.keep, gradient, value,
                             {load_fp32(t.moments[0].stored, span)}, {load_fp32(t.moments[1].stored, span)});
  RoundingBits random{};
  if (kWeights == WeightFormat::kBf16Stochastic) {
    random = rounding_bits({launch.scalars.seed, launch.scalars.step, t.id}, t.first_index + span.first);
  }
  store_value(kWeights, t, span, value, random);
  store_fp32(t.moments[0].stored, span, m);
  store_fp32(t.moments[1].stored, span, v);
}

// A block takes every n-th tile of the tensors, numbered through.
template <WeightFormat kWeights, Format kGradient>
__global__ void __launch_bounds__(kThreads) plain_kernel(const __grid_constant__ AdamWLaunch launch) {
  const float factor = gradient_factor(launch.scalars);
  if (isnan(factor)) return;
  int index = 0;
  for (std::int64_t tile = blockIdx.x; tile < launch.tiles; tile += gridDim.x) {
    while (index + 1 < launch.count && launch.tensors[index + 1].first_tile <= tile) ++index;
    const TensorEntry& t = launch.tensors[index];
    const std::int64_t first = (tile - t.first_tile) * kTile + std::int64_t{threadIdx.x} * kQuad;
    const std::int64_t left = t.elements - first;
    if (t.aligned && left >= kQuad) {
      step_quad<kWeights, kGradient>(launch, t, {first, kQuad, true}, factor);
    } else if (left > 0) {
      step_quad<kWeights, kGradient>(
          launch, t, {first, static_cast<int>(min(left, std::int64_t{kQuad})), false}, factor);
    }
  }
}

template <WeightFormat kWeights>
void launch_with(const AdamWLaunch& launch, cudaStream_t stream) {
  const std::int64_t most = std::int64_t{DeviceState::current().multiprocessors()} * 8;
  const auto blocks = static_cast<unsigned>(launch.tiles < most ? launch.tiles : most);
  if (launch.gradient == Format::kFp32) {
    plain_kernel<kWeights, Format::kFp32><<<blocks, kThreads, 0, stream>>>(launch);
  } else {
    plain_kernel<kWeights, Format::kBf16><<<blocks, kThreads, 0, stream>>>(launch);
  }
  check_launch("adamw");
}

}  // namespace

void launch(const AdamWLaunch& launch, cudaStream_t stream) {
  switch (launch.weights) {
    case WeightFormat::kFp32:
      return launch_with<WeightFormat::kFp32>(launch, stream);
    case WeightFormat::kBf16Stochastic:
      return launch_with<WeightFormat::kBf16Stochastic>(launch, stream);
    case WeightFormat::kBf16Residual:
      return launch_with<WeightFormat::kBf16Residual>(launch, stream);
  }
}

}  // namespace coat::kernels::cuda::adamw_plain
