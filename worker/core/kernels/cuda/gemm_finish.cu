#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/gemm_finish.h"
#include "worker/core/kernels/cuda/matrix_io.cuh"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Without accumulation, rows side by side.
template <typename Out>
__global__ void __launch_bounds__(kThreads) convert_kernel(Fp32Matrix staged, Out out, OneRow cover) {
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    store(out, row, col, load(staged, row, col), cover.lanes_per_group);
  });
}

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
  const int blocks = blocks_for(whole.total(), kThreads);
  if (is_grouped(out) && stride == out.cols && !accumulate) {
    const ConstMatrix source{staged, nullptr, {Format::kFp32, Scaling::kNone}, out.rows, out.cols};
    const Fp32Matrix in(as_one_row(input(source, "gemm")));
    convert_kernel<<<blocks, kThreads, 0, stream>>>(in, GroupedE4M3(as_one_row(out)), one_row(out));
  } else {
    finish_kernel<<<blocks, kThreads, 0, stream>>>(staged, stride, out, accumulate, whole);
  }
  check_launch("gemm");
}

}  // namespace coat::kernels::cuda
