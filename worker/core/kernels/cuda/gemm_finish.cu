#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/gemm_finish.h"
#include "worker/core/kernels/cuda/matrix_io.cuh"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    finish_kernel(const float* staged, std::int64_t stride, DeviceMatrix out, bool accumulate, Cover cover) {
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    Values v{};
    if (row < out.rows) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = col + i < out.cols ? staged[row * stride + col + i] : 0.0f;
    }
    if (accumulate) {
      const Values previous = load(out, row, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] += previous.x[i];
    }
    store(out, row, col, v, cover.lanes_per_group);
  });
}

}  // namespace

void finish_product(const float* staged, std::int64_t stride, const DeviceMatrix& out, bool accumulate,
                    cudaStream_t stream) {
  const Cover whole = cover(out.rows, out.cols, out);
  finish_kernel<<<blocks_for(whole.total(), kThreads), kThreads, 0, stream>>>(staged, stride, out, accumulate,
                                                                              whole);
  check_launch("gemm");
}

}  // namespace coat::kernels::cuda
