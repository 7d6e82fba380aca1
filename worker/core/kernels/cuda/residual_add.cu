#include <stdexcept>

#include "worker/core/kernels/cuda/check.h"
#include "worker/core/kernels/cuda/chunk_loops.cuh"
#include "worker/core/kernels/cuda/fetched.cuh"
#include "worker/core/kernels/cuda/operations.h"
#include "worker/core/kernels/cuda/reduce.cuh"
#include "worker/core/kernels/cuda/scaling.h"

namespace coat::kernels::cuda {
namespace {

constexpr int kAtOnce = 2;

template <typename M>
struct Terms {
  Fetched<M> a, b;
};

template <typename Span, typename Plain, typename Quantized>
__global__ void __launch_bounds__(kChunkThreads)
    residual_add_kernel(Plain a, Plain b, Plain sum, Quantized quantized, Span span, float* amax) {
  std::uint32_t halves = 0;
  for_chunks_at_once<kAtOnce>(
      span,
      [&](std::int64_t row, std::int64_t col, int further) {
        return Terms<Plain>{fetch(a, row, col, further), fetch(b, row, col, further)};
      },
      [&](std::int64_t row, std::int64_t col, const Terms<Plain>& terms, auto inside) {
        Values v = decoded<Plain>(terms.a);
        const Values w = decoded<Plain>(terms.b);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] + w.x[i];
        if constexpr (kCanExist<Quantized>) {
          if (quantized.data != nullptr) store(quantized, row, col, v, span.lanes_per_group);
        }
        store_rounded<decltype(inside)::value>(sum, row, col, v, halves);
      });
  join_amax(amax, magnitude_of_halves(halves));
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
  if (a.rows == 0 || a.cols == 0) return clear_amax(args.amax_out, kName, stream);
  const auto launch = [&](const auto& from_a, const auto& from_b, const auto& to, const auto& codes,
                          const auto& span) {
    const auto kernel = residual_add_kernel<std::decay_t<decltype(span)>, std::decay_t<decltype(from_a)>,
                                            std::decay_t<decltype(codes)>>;
    kernel<<<chunk_blocks<kAtOnce>(kernel, span), kChunkThreads, 0, stream>>>(from_a, from_b, to, codes, span,
                                                                              args.amax_out);
  };
  if (is_bf16(a) && is_bf16(b) && is_bf16(sum) && (quantized.data == nullptr || is_grouped(quantized))) {
    const Bf16Matrix a_row(as_one_row(a)), b_row(as_one_row(b)), sum_row(as_one_row(sum));
    if (quantized.data == nullptr) {
      launch(a_row, b_row, sum_row, NoMatrix{}, one_row(a));
    } else {
      launch(a_row, b_row, sum_row, GroupedE4M3(as_one_row(quantized)), one_row(a));
    }
  } else {
    launch(a, b, sum, quantized, cover(a.rows, a.cols, quantized));
  }
  check_launch(kName);
}

}  // namespace coat::kernels::cuda
