#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/chunk_loops.cuh"
#include "worker/core/kernels/cuda/gemm_finish.h"
#include "worker/core/kernels/cuda/matrix_io.cuh"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// v, rounded and added to what is in `out` as the options say.
template <typename Out>
__device__ Values finished(Values v, const Out& out, std::int64_t row, std::int64_t col,
                           const FinishOptions& options) {
  if (options.round_product) v = rounded_to_bf16(v);
  if (options.accumulate) {
    const Values previous = load(out, row, col);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v.x[i] += previous.x[i];
  }
  return v;
}

// Rows side by side.
template <typename Out>
__global__ void __launch_bounds__(kThreads)
    finish_rows_kernel(Fp32Matrix staged, Out out, FinishOptions options, OneRow cover) {
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    store(out, row, col, finished(load(staged, row, col), out, row, col, options), cover.lanes_per_group);
  });
}

__global__ void __launch_bounds__(kThreads)
    finish_kernel(const float* staged, std::int64_t stride, DeviceMatrix out, FinishOptions options,
                  Cover cover) {
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    Values v{};
    if (row < out.rows) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v.x[i] = col + i < out.cols ? staged[row * stride + col + i] : 0.0f;
    }
    store(out, row, col, finished(v, out, row, col, options), cover.lanes_per_group);
  });
}

}  // namespace

void finish_product(const float* staged, std::int64_t stride, const DeviceMatrix& out,
                    const FinishOptions& options, cudaStream_t stream) {
  const Cover whole = cover(out.rows, out.cols, out);
  const int blocks = blocks_for(whole.total(), kThreads);
  const ConstMatrix source{staged, nullptr, {Format::kFp32, Scaling::kNone}, out.rows, out.cols};
  const Fp32Matrix in(as_one_row(input(source, "gemm")));
  const DeviceMatrix row = as_one_row(out);
  if (stride == out.cols && is_grouped(out)) {
    finish_rows_kernel<<<blocks, kThreads, 0, stream>>>(in, GroupedE4M3(row), options, one_row(out));
  } else if (stride == out.cols && is_bf16(out)) {
    finish_rows_kernel<<<blocks, kThreads, 0, stream>>>(in, Bf16Matrix(row), options, one_row(out));
  } else if (stride == out.cols && is_fp32(out)) {
    finish_rows_kernel<<<blocks, kThreads, 0, stream>>>(in, Fp32Matrix(row), options, one_row(out));
  } else {
    finish_kernel<<<blocks, kThreads, 0, stream>>>(staged, stride, out, options, whole);
  }
  check_launch("gemm");
}

}  // namespace coat::kernels::cuda
