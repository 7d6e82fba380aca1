#include "worker/core/kernels/api/normal_distribution.h"
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Backward where `dy` is a matrix, else forward.
template <typename Span, typename X, typename Gradient, typename Out>
__global__ void __launch_bounds__(kThreads) gelu_kernel(X x, Gradient dy, Out out, Span cover, float* amax) {
  std::uint32_t largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    Values v = load(x, row, col);
    if constexpr (kCanExist<Gradient>) {
      const Values g = load(dy, row, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        v.x[i] = g.x[i] * (normal_cdf_f32(v.x[i]) + v.x[i] * normal_pdf_f32(v.x[i]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * normal_cdf_f32(v.x[i]);
    }
    largest = max(largest, store_rounded(out, row, col, v));
  });
  join_amax(amax, largest);
}

// The layouts of the recipes as one row, where `typed` says that dy_row fits; every other by asking.
template <typename Gradient, typename TypedGradient>
void run(const DeviceMatrix& x, const Gradient& dy, const TypedGradient& dy_row, bool typed,
         const DeviceMatrix& out, float* amax, const char* operation, cudaStream_t stream) {
  clear_amax(amax, operation, stream);
  if (x.rows == 0 || x.cols == 0) return;
  const Cover whole = cover(x.rows, x.cols, {});
  const int blocks = blocks_for(whole.total(), kThreads);
  const OneRow row = one_row(x);
  if (typed && is_bf16(out) && is_grouped(x)) {
    gelu_kernel<<<blocks, kThreads, 0, stream>>>(GroupedE4M3(as_one_row(x)), dy_row,
                                                 Bf16Matrix(as_one_row(out)), row, amax);
  } else if (typed && is_bf16(out) && is_bf16(x)) {
    gelu_kernel<<<blocks, kThreads, 0, stream>>>(Bf16Matrix(as_one_row(x)), dy_row,
                                                 Bf16Matrix(as_one_row(out)), row, amax);
  } else {
    gelu_kernel<<<blocks, kThreads, 0, stream>>>(x, dy, out, whole, amax);
  }
  check_launch(operation);
}

}  // namespace

void gelu_forward(const GeluForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "gelu_forward";
  const DeviceMatrix x = input(args.x, kName), y = bf16_output(args.y, kName);
  require_same_shape(x, y, kName);
  run(x, NoMatrix{}, NoMatrix{}, /*typed=*/true, y, args.amax_out, kName, stream);
}

void gelu_backward(const GeluBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "gelu_backward";
  const DeviceMatrix x = input(args.x, kName), dy = bf16_input(args.dy, kName),
                     dx = bf16_output(args.dx, kName);
  require_same_shape(x, dy, kName);
  require_same_shape(x, dx, kName);
  run(x, dy, Bf16Matrix(as_one_row(dy)), is_bf16(dy), dx, args.amax_out, kName, stream);
}

}  // namespace coat::kernels::cuda
