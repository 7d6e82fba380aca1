#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/norm_backward.cuh"
#include "worker/core/kernels/cuda/norm_forward.cuh"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

// Rows whose weight gradients are added up before they are added to the others, in order; as the CPU does.
constexpr std::int64_t kSlabRows = 64;

template <typename W>
struct RmsNorm {
  W weight;
  static constexpr bool kCentred = false, kWeighted = true;
};

// A Norm whose weight is stored as that of run_norm_forward's other matrices.
auto with_weight(const float* data, std::int64_t cols, const char* operation) {
  return [weight = input({data, nullptr, {Format::kFp32, Scaling::kNone}, 1, cols}, operation)]<typename Y>(
             std::type_identity<Y>) {
    if constexpr (kIsTyped<Y>) {
      return RmsNorm<Fp32Matrix>{Fp32Matrix(weight)};
    } else {
      return RmsNorm<DeviceMatrix>{weight};
    }
  };
}

bool whole_chunks(const float* weight, std::int64_t cols) {
  return is_fp32(input({weight, nullptr, {Format::kFp32, Scaling::kNone}, 1, cols}, "rms_norm"));
}

// dweight[col] += partial[0, col] + partial[1, col] + ..., one after the other, 32 columns a block: its warps
// fetch 256 slabs at once, then one of them adds.
constexpr int kSlabsAtOnce = 256;
__global__ void __launch_bounds__(kRowThreads)
    add_slabs_kernel(const float* partial, std::int64_t slabs, std::int64_t cols, float* dweight) {
  constexpr int kSlabsOfWarp = kSlabsAtOnce / (kRowThreads / kWarp);
  __shared__ float tile[kSlabsAtOnce][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            first = static_cast<int>(threadIdx.x) / kWarp * kSlabsOfWarp;
  const std::int64_t col = std::int64_t{blockIdx.x} * kWarp + lane;
  const bool adds = first == 0 && col < cols;
  float sum = adds ? dweight[col] : 0.0f;
  for (std::int64_t base = 0; base < slabs; base += kSlabsAtOnce) {
#pragma unroll
    for (int i = 0; i < kSlabsOfWarp; ++i) {
      const std::int64_t slab = base + first + i;
      if (slab < slabs && col < cols) tile[first + i][lane] = partial[slab * cols + col];
    }
    __syncthreads();
    const int here = static_cast<int>(slabs - base < kSlabsAtOnce ? slabs - base : kSlabsAtOnce);
    if (adds) {
#pragma unroll 32
      for (int i = 0; i < here; ++i) sum += tile[i][lane];
    }
    __syncthreads();
  }
  if (adds) dweight[col] = sum;
}

}  // namespace

void rms_norm_forward(const RmsNormForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "rms_norm_forward";
  const DeviceMatrix x = input(args.x, kName), y = bf16_output(args.y, kName);
  require_same_shape(x, y, kName);
  if (x.rows == 0 || x.cols == 0) return clear_amax(args.amax_out, kName, stream);
  run_norm_forward(x, whole_chunks(args.weight, x.cols), with_weight(args.weight, x.cols, kName), args.eps, y,
                   nullptr, args.rstd, args.amax_out, stream);
  check_launch(kName);
}

void rms_norm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "rms_norm_backward";
  const DeviceMatrix x = input(args.x, kName), dy = bf16_input(args.dy, kName),
                     dx = bf16_output(args.dx, kName);
  require_same_shape(x, dy, kName);
  require_same_shape(x, dx, kName);
  if (x.rows == 0 || x.cols == 0) return;
  const std::int64_t slabs = (x.rows + kSlabRows - 1) / kSlabRows;
  float* sums = DeviceState::current().partial_sums().elements<float>(slabs * x.cols, kName);
  run_norm_backward(x, whole_chunks(args.weight, x.cols), with_weight(args.weight, x.cols, kName), nullptr,
                    args.rstd, dy, dx, kSlabRows, sums, stream);
  check_launch(kName);
  const auto column_blocks = static_cast<unsigned>((x.cols + kWarp - 1) / kWarp);
  add_slabs_kernel<<<column_blocks, kRowThreads, 0, stream>>>(sums, slabs, x.cols, args.dweight);
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
