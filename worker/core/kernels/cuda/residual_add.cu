#include <stdexcept>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Span, typename Plain, typename Quantized>
__global__ void __launch_bounds__(kThreads)
    residual_add_kernel(Plain a, Plain b, Plain sum, Quantized quantized, Span cover, float* amax) {
  std::uint32_t largest = 0;
  for_each_chunk(cover, [&](std::int64_t row, std::int64_t col) {
    Values v = load(a, row, col);
    const Values w = load(b, row, col);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] + w.x[i];
    if constexpr (kCanExist<Quantized>) {
      if (quantized.data != nullptr) store(quantized, row, col, v, cover.lanes_per_group);
    }
    largest = max(largest, store_rounded(sum, row, col, v));
  });
  join_amax(amax, largest);
}

}  // namespace

void residual_add(const ResidualAddArgs& args, cudaStream_t stream) {
  constexpr const char* kName = "residual_add";
  const DeviceMatrix a = bf16_input(args.a, kName), b = bf16_input(args.b, kName);
  const DeviceMatrix sum = bf16_output(args.sum, kName);
  const DeviceMatrix quantized =
      args.quantized.data != nullptr ? one_pass_output(args.quantized, kName) : DeviceMatrix{};
  require_same_shape(a, b, kName);
  require_same_shape(a, sum, kName);
  if (quantized.data != nullptr) require_same_shape(a, quantized, kName);
  clear_amax(args.amax_out, kName, stream);
  if (a.rows == 0 || a.cols == 0) return;
  const Cover whole = cover(a.rows, a.cols, quantized);
  const int blocks = blocks_for(whole.total(), kThreads);
  if (is_bf16(a) && is_bf16(b) && is_bf16(sum) && (quantized.data == nullptr || is_grouped(quantized))) {
    const Bf16Matrix a_row(as_one_row(a)), b_row(as_one_row(b)), sum_row(as_one_row(sum));
    const OneRow row = one_row(a);
    if (quantized.data == nullptr) {
      residual_add_kernel<<<blocks, kThreads, 0, stream>>>(a_row, b_row, sum_row, NoMatrix{}, row,
                                                           args.amax_out);
    } else {
      const GroupedE4M3 groups(as_one_row(quantized));
      residual_add_kernel<<<blocks, kThreads, 0, stream>>>(a_row, b_row, sum_row, groups, row, args.amax_out);
    }
  } else {
    residual_add_kernel<<<blocks, kThreads, 0, stream>>>(a, b, sum, quantized, whole, args.amax_out);
  }
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
