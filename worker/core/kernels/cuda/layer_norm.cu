// One block a row, which is read once for each of its sums and once for its result: the first-level cache
// holds it.
#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/lane_sum.cuh"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

template <typename Body>
__device__ inline void for_chunks_of_row(std::int64_t cols, Body body) {
  for (std::int64_t col = threadIdx.x * kChunk; col < cols; col += blockDim.x * kChunk) body(col);
}

__device__ inline Values normalized(Values v, float mean, float rstd) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) v.x[i] = (v.x[i] - mean) * rstd;
  return v;
}

template <typename X, typename Y>
__global__ void __launch_bounds__(kRowThreads)
    forward_kernel(X x, float eps, Y y, float* means, float* rstds, float* amax) {
  std::uint32_t largest = 0;
  const auto width = static_cast<float>(x.cols);
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const float mean = lane_sum(x.cols, [&](std::int64_t col) { return load(x, row, col); }) / width;
    const float variance = lane_sum(x.cols,
                                    [&](std::int64_t col) {
                                      Values v = load(x, row, col);
#pragma unroll
                                      for (int i = 0; i < kChunk; ++i)
                                        v.x[i] = (v.x[i] - mean) * (v.x[i] - mean);
                                      return v;
                                    }) /
                           width;
    const float rstd = 1.0f / sqrtf(variance + eps);
    if (threadIdx.x == 0) {
      means[row] = mean;
      rstds[row] = rstd;
    }
    for_chunks_of_row(x.cols, [&](std::int64_t col) {
      Values v = normalized(load(x, row, col), mean, rstd);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = col + i < x.cols ? v.x[i] : 0.0f;
      largest = max(largest, store_rounded(y, row, col, v));
    });
  }
  join_amax(amax, largest);
}

template <typename X, typename Y>
__global__ void __launch_bounds__(kRowThreads)
    backward_kernel(X x, const float* means, const float* rstds, Y dy, Y dx) {
  const auto width = static_cast<float>(x.cols);
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const float rstd = rstds[row], x_mean = means[row];
    const auto row_of_x = [&](std::int64_t col) { return normalized(load(x, row, col), x_mean, rstd); };
    const float mean = lane_sum(x.cols, [&](std::int64_t col) { return load(dy, row, col); }) / width;
    const float slope = lane_sum(x.cols,
                                 [&](std::int64_t col) {
                                   Values v = row_of_x(col);
                                   const Values g = load(dy, row, col);
#pragma unroll
                                   for (int i = 0; i < kChunk; ++i) v.x[i] = g.x[i] * v.x[i];
                                   return v;
                                 }) /
                        width;
    for_chunks_of_row(x.cols, [&](std::int64_t col) {
      Values v = row_of_x(col);
      const Values g = load(dy, row, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = (g.x[i] - mean - v.x[i] * slope) * rstd;
      store(dx, row, col, v, 1);
    });
  }
}

// Calls run(x, y) with their types where they are stored as a recipe stores them, else as they are.
template <typename Run>
void with_types(const DeviceMatrix& x, bool typed, Run run) {
  if (typed && is_grouped(x)) return run(GroupedE4M3(x), [](const DeviceMatrix& m) { return Bf16Matrix(m); });
  if (typed && is_bf16(x)) return run(Bf16Matrix(x), [](const DeviceMatrix& m) { return Bf16Matrix(m); });
  run(x, [](const DeviceMatrix& m) { return m; });
}

}  // namespace

void layer_norm_forward(const LayerNormForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "layer_norm_forward";
  const DeviceMatrix x = input(args.x, kName), y = bf16_output(args.y, kName);
  require_same_shape(x, y, kName);
  clear_amax(args.amax_out, kName, stream);
  if (x.rows == 0 || x.cols == 0) return;
  with_types(x, is_bf16(y), [&](const auto& typed_x, const auto& as) {
    forward_kernel<<<blocks_for(x.rows, 1), row_threads(x.cols), 0, stream>>>(
        typed_x, args.eps, as(y), args.mean, args.rstd, args.amax_out);
  });
  check_launch(kName);
}

void layer_norm_backward(const LayerNormBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "layer_norm_backward";
  const DeviceMatrix x = input(args.x, kName), dy = bf16_input(args.dy, kName),
                     dx = bf16_output(args.dx, kName);
  require_same_shape(x, dy, kName);
  require_same_shape(x, dx, kName);
  if (x.rows == 0 || x.cols == 0) return;
  with_types(x, is_bf16(dy) && is_bf16(dx), [&](const auto& typed_x, const auto& as) {
    backward_kernel<<<blocks_for(x.rows, 1), row_threads(x.cols), 0, stream>>>(typed_x, args.mean, args.rstd,
                                                                               as(dy), as(dx));
  });
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
