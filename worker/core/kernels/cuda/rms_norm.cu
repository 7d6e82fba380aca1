#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/device_state.h"
#include "worker/core/kernels/cuda/lane_sum.cuh"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kMaxThreads = 256;
// Rows whose weight gradients are added up before they are added to the others, in order; as the CPU does.
constexpr std::int64_t kSlabRows = 64;

__global__ void __launch_bounds__(kMaxThreads) forward_kernel(DeviceMatrix x, DeviceMatrix weight, float eps,
                                                              DeviceMatrix y, float* rstds, float* amax) {
  std::uint32_t largest = 0;
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const float squares = lane_sum(x.cols, [&](std::int64_t col) {
      Values v = load(x, row, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * v.x[i];
      return v;
    });
    const float rstd = 1.0f / sqrtf(squares / static_cast<float>(x.cols) + eps);
    if (threadIdx.x == 0) rstds[row] = rstd;
    for (std::int64_t col = threadIdx.x * kChunk; col < x.cols; col += blockDim.x * kChunk) {
      Values v = load(x, row, col);
      const Values w = load(weight, 0, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * rstd * w.x[i];
      store_codes(y, row, col, encode(Format::kBf16, v));
      largest = max(largest, largest_magnitude(rounded_to_bf16(v)));
    }
  }
  join_amax(amax, largest);
}

__global__ void __launch_bounds__(kMaxThreads)
    dx_kernel(DeviceMatrix x, DeviceMatrix weight, const float* rstds, DeviceMatrix dy, DeviceMatrix dx) {
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const float rstd = rstds[row];
    const float sum = lane_sum(x.cols, [&](std::int64_t col) {
      Values v = load(x, row, col);
      const Values w = load(weight, 0, col), g = load(dy, row, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * rstd * (w.x[i] * g.x[i]);
      return v;
    });
    const float mean = sum / static_cast<float>(x.cols);
    for (std::int64_t col = threadIdx.x * kChunk; col < x.cols; col += blockDim.x * kChunk) {
      Values v = load(x, row, col);
      const Values w = load(weight, 0, col), g = load(dy, row, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = (w.x[i] * g.x[i] - v.x[i] * rstd * mean) * rstd;
      store_codes(dx, row, col, encode(Format::kBf16, v));
    }
  }
}

// partial[slab, col]: the weight gradient of the slab's rows, added in order. One thread a slab and chunk.
__global__ void __launch_bounds__(kMaxThreads)
    dweight_slab_kernel(DeviceMatrix x, const float* rstds, DeviceMatrix dy, DeviceMatrix partial,
                        Cover cover) {
  for_each_chunk(cover, [&](std::int64_t slab, std::int64_t col) {
    if (slab >= partial.rows) return;
    const std::int64_t first = slab * kSlabRows;
    const std::int64_t last = first + kSlabRows < x.rows ? first + kSlabRows : x.rows;
    Values sum{};
    for (std::int64_t row = first; row < last; ++row) {
      const Values v = load(x, row, col), g = load(dy, row, col);
      const float rstd = rstds[row];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sum.x[i] += g.x[i] * (v.x[i] * rstd);
    }
    store_codes(partial, slab, col, encode(Format::kFp32, sum));
  });
}

__global__ void __launch_bounds__(kMaxThreads) add_slabs_kernel(DeviceMatrix partial, float* dweight) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= partial.cols) return;
  float sum = dweight[col];
  for (std::int64_t slab = 0; slab < partial.rows; ++slab) {
    sum += static_cast<const float*>(partial.data)[slab * partial.cols + col];
  }
  dweight[col] = sum;
}

DeviceMatrix fp32_matrix(const float* data, std::int64_t rows, std::int64_t cols, const char* operation) {
  return input({data, nullptr, {Format::kFp32, Scaling::kNone}, rows, cols}, operation);
}

}  // namespace

void rms_norm_forward(const RmsNormForwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "rms_norm_forward";
  const DeviceMatrix x = input(args.x, kName), y = bf16_output(args.y, kName);
  require_same_shape(x, y, kName);
  clear_amax(args.amax_out, kName, stream);
  if (x.rows == 0 || x.cols == 0) return;
  const DeviceMatrix weight = fp32_matrix(args.weight, 1, x.cols, kName);
  forward_kernel<<<row_blocks(x.rows), row_threads(x.cols), 0, stream>>>(x, weight, args.eps, y, args.rstd,
                                                                         args.amax_out);
  check_launch(kName);
}

void rms_norm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "rms_norm_backward";
  const DeviceMatrix x = input(args.x, kName), dy = bf16_input(args.dy, kName),
                     dx = bf16_output(args.dx, kName);
  require_same_shape(x, dy, kName);
  require_same_shape(x, dx, kName);
  if (x.rows == 0 || x.cols == 0) return;
  const DeviceMatrix weight = fp32_matrix(args.weight, 1, x.cols, kName);
  const std::int64_t slabs = (x.rows + kSlabRows - 1) / kSlabRows;
  float* sums = DeviceState::current().partial_sums().elements<float>(slabs * x.cols, kName);
  const DeviceMatrix partial = fp32_matrix(sums, slabs, x.cols, kName);
  const Cover slab_cover = cover(slabs, x.cols, {});
  // Weight gradients first: dx may be dy.
  dweight_slab_kernel<<<blocks_for(slab_cover.total(), kMaxThreads), kMaxThreads, 0, stream>>>(
      x, args.rstd, dy, partial, slab_cover);
  check_launch(kName);
  const auto column_blocks = static_cast<unsigned>((x.cols + kMaxThreads - 1) / kMaxThreads);
  add_slabs_kernel<<<column_blocks, kMaxThreads, 0, stream>>>(partial, args.dweight);
  check_launch(kName);
  dx_kernel<<<row_blocks(x.rows), row_threads(x.cols), 0, stream>>>(x, weight, args.rstd, dy, dx);
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
