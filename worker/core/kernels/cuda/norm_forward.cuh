// The forward of both norms. Device code only.
#pragma once

#include "worker/core/kernels/cuda/norm_rows.cuh"

namespace coat::kernels::cuda {

// Blocks that a multiprocessor should hold.
template <typename K, typename X>
constexpr int blocks_for_kept() {
  if (!kIsTyped<X>) return 1;
  return K::chunks > 2 ? 2 : 4;
}

template <typename K, typename Norm, typename X, typename Y>
__global__ void __launch_bounds__(kRowThreads, blocks_for_kept<K, X>())
    norm_forward_kernel(X x, Norm norm, float eps, Y y, float* means, float* rstds, float* amax) {
  __shared__ RowSums<1>::Places places;
  RowSums<1> row_sums(places);
  const auto width = static_cast<float>(x.cols);
  std::uint32_t halves = 0;
  RowChunks<K> w;
  FetchedRow<K, X> next;
  if constexpr (K::chunks > 0) {
    next.fetch_row(x, blockIdx.x);
    if constexpr (Norm::kWeighted) {
      for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) { w.chunk[c] = load(norm.weight, 0, col); });
    }
  }
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    RowChunks<K> kept;
    if constexpr (K::chunks > 0) {
      next.decode_row(x, kept);
      if (row + gridDim.x < x.rows) next.fetch_row(x, row + gridDim.x);
    }
    float sum[1], mean = 0.0f;
    if constexpr (Norm::kCentred) {
      Values lanes[1] = {};
      for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
        const Values v = again(x, kept, c, row, col);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) lanes[0].x[i] += v.x[i];
      });
      row_sums.add(lanes, sum);
      mean = sum[0] / width;
      for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
        if constexpr (K::chunks > 0) kept.chunk[c] = centred(x, kept.chunk[c], mean, col);
      });
    }
    const auto values = [&](int c, std::int64_t col) {
      const Values v = again(x, kept, c, row, col);
      return Norm::kCentred && K::chunks == 0 ? centred(x, v, mean, col) : v;
    };
    Values lanes[1] = {};
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      const Values v = values(c, col);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const float square = v.x[i] * v.x[i];  // never -0, so the first needs no 0 before it
        lanes[0].x[i] = K::chunks > 0 && c == 0 ? square : lanes[0].x[i] + square;
      }
    });
    row_sums.add(lanes, sum);
    const float rstd = 1.0f / sqrtf(sum[0] / width + eps);
    if (threadIdx.x == 0) {
      rstds[row] = rstd;
      if constexpr (Norm::kCentred) means[row] = mean;
    }
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      Values v = times(values(c, col), rstd);
      if constexpr (Norm::kWeighted) {
        if constexpr (K::chunks == 0) w.chunk[0] = load(norm.weight, 0, col);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) v.x[i] = v.x[i] * w.chunk[c].x[i];
      }
      store_rounded<K::full>(y, row, col, v, halves);
    });
  }
  join_amax(amax, magnitude_of_halves(halves));
}

// norm(std::type_identity<Y>) makes the Norm for BF16 matrices of that type. means: nullptr without kCentred.
template <typename MakeNorm>
void run_norm_forward(const DeviceMatrix& x, bool plain, MakeNorm norm, float eps, const DeviceMatrix& y,
                      float* means, float* rstds, float* amax, cudaStream_t stream) {
  with_row_types(
      x, plain && is_bf16(y), [&]<typename X, typename Y>(const X& typed_x, std::type_identity<Y> type) {
        const auto made = norm(type);
        using Norm = std::decay_t<decltype(made)>;
        with_kept_chunks<kIsTyped<X>>(x.cols, [&]<typename K>(K) {
          const auto kernel = norm_forward_kernel<K, Norm, X, Y>;
          const int threads = row_threads(x.cols);
          const int blocks = resident_blocks(reinterpret_cast<const void*>(kernel), threads, x.rows);
          kernel<<<blocks, threads, 0, stream>>>(typed_x, made, eps, Y(y), means, rstds, amax);
        });
      });
}

}  // namespace coat::kernels::cuda
