// The backward of both norms. Device code only.
#pragma once

#include "worker/core/kernels/cuda/norm_rows.cuh"

namespace coat::kernels::cuda {

// Sums that backward needs of a row.
template <typename Norm>
inline constexpr int kBackwardSums = Norm::kCentred ? 2 : 1;

struct RowRange {
  std::int64_t first, last;  // last is beyond
};
__device__ inline RowRange rows_of_block(std::int64_t rows, std::int64_t rows_per_block) {
  const std::int64_t first = blockIdx.x * rows_per_block;
  return {first, first + rows_per_block < rows ? first + rows_per_block : rows};
}

// What backward needs of a row beside its elements.
struct RowStatistics {
  float mean = 0, rstd = 0;
};
template <typename Norm>
__device__ inline RowStatistics statistics_of(const float* means, const float* rstds, std::int64_t row) {
  return {Norm::kCentred ? means[row] : 0.0f, rstds[row]};
}

// x of a chunk becomes the normalized x, dy becomes dy times the weight; the sums of backward grow by them,
// and `dw` by dy times the normalized x.
template <typename Norm, int kSums, typename X>
__device__ inline void normalize_and_add(const X& m, std::int64_t col, const RowStatistics& of,
                                         const Values& w, Values& x, Values& dy, Values (&lanes)[kSums],
                                         Values& dw) {
  if constexpr (Norm::kCentred) x = centred(m, x, of.mean, col);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    x.x[i] = x.x[i] * of.rstd;
    if constexpr (Norm::kCentred) lanes[1].x[i] += dy.x[i];
    if constexpr (Norm::kWeighted) {
      dw.x[i] += dy.x[i] * x.x[i];
      dy.x[i] = w.x[i] * dy.x[i];
    }
    lanes[0].x[i] += x.x[i] * dy.x[i];
  }
}

// dx of a chunk after that; `sums` are those of the row.
template <typename Norm, int kSums>
__device__ inline Values slope_of(const Values& x, const Values& dy, const float (&sums)[kSums], float width,
                                  float rstd) {
  const float slope = sums[0] / width;
  Values v;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if constexpr (Norm::kCentred) {
      v.x[i] = (dy.x[i] - sums[kSums - 1] / width - x.x[i] * slope) * rstd;
    } else {
      v.x[i] = (dy.x[i] - x.x[i] * slope) * rstd;
    }
  }
  return v;
}

// dx of a block's rows and, where there are weights, their gradient of these rows, added in order:
// partial[block, col]. dx may be dy: each element is read before it is written, by the same thread.
template <typename K, typename Norm, typename X, typename Y>
__global__ void __launch_bounds__(kRowThreads, kIsTyped<X>&& K::chunks <= 2 ? 2 : 1)
    norm_backward_kernel(X x, Norm norm, const float* means, const float* rstds, Y dy, Y dx,
                         std::int64_t rows_per_block, float* partial) {
  constexpr int kSums = kBackwardSums<Norm>;
  __shared__ typename RowSums<kSums>::Places places;
  RowSums<kSums> row_sums(places);
  const auto [first, last] = rows_of_block(x.rows, rows_per_block);
  const auto width = static_cast<float>(x.cols);
  RowChunks<K> w, dw{};
  if constexpr (Norm::kWeighted) {
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) { w.chunk[c] = load(norm.weight, 0, col); });
  }
  // Two rows are on their way while one is worked on, where registers allow it: a row's work takes less time
  // than the memory's answer.
  constexpr int kAhead = K::full && K::chunks <= 2 ? 2 : 1;
  struct {
    FetchedRow<K, X> x;
    FetchedRow<K, Y> dy;
    RowStatistics of;
  } next[kAhead];
  const auto fetch_row = [&](auto& place, std::int64_t row) {
    if (row >= last) return;
    place.x.fetch_row(x, row);
    place.dy.fetch_row(dy, row);
    place.of = statistics_of<Norm>(means, rstds, row);
  };
  const auto work_on = [&](auto& place, std::int64_t row) {
    RowChunks<K> kept_x, kept_g;
    place.x.decode_row(x, kept_x);
    place.dy.decode_row(dy, kept_g);
    const RowStatistics of = place.of;
    fetch_row(place, row + kAhead);
    Values lanes[kSums] = {};
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      normalize_and_add<Norm>(x, col, of, w.chunk[c], kept_x.chunk[c], kept_g.chunk[c], lanes, dw.chunk[c]);
    });
    float sums[kSums];
    row_sums.add(lanes, sums);
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      store(dx, row, col, slope_of<Norm>(kept_x.chunk[c], kept_g.chunk[c], sums, width, of.rstd), 1);
    });
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) fetch_row(next[i], first + i);
  for (std::int64_t row = first; row < last; row += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (row + i < last) work_on(next[i], row + i);
    }
  }
  if constexpr (Norm::kWeighted) {
    for_own_chunks<K>(x.cols, [&](int c, std::int64_t col) {
      float* out = partial + std::int64_t{blockIdx.x} * x.cols + col;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if (col + i < x.cols) out[i] = dw.chunk[c].x[i];
      }
    });
  }
}

// The same for rows that no thread can keep.
template <typename Norm>
__global__ void __launch_bounds__(kRowThreads)
    norm_backward_by_reading_kernel(DeviceMatrix x, Norm norm, const float* means, const float* rstds,
                                    DeviceMatrix dy, DeviceMatrix dx, std::int64_t rows_per_block,
                                    float* partial) {
  constexpr int kSums = kBackwardSums<Norm>;
  __shared__ typename RowSums<kSums>::Places places;
  RowSums<kSums> row_sums(places);
  const auto [first, last] = rows_of_block(x.rows, rows_per_block);
  const auto width = static_cast<float>(x.cols);
  float* dweight = partial + std::int64_t{blockIdx.x} * x.cols;
  for (std::int64_t row = first; row < last; ++row) {
    const RowStatistics of = statistics_of<Norm>(means, rstds, row);
    const auto chunk = [&](std::int64_t col, Values& v, Values& g, Values(&lanes)[kSums], Values& dw) {
      Values w{};
      if constexpr (Norm::kWeighted) w = load(norm.weight, 0, col);
      v = load(x, row, col);
      g = load(dy, row, col);
      normalize_and_add<Norm>(x, col, of, w, v, g, lanes, dw);
    };
    Values v, g, lanes[kSums] = {};
    for_own_chunks<Kept<0>>(x.cols, [&](int, std::int64_t col) {
      Values dw{};
      if constexpr (Norm::kWeighted) {
        for (int i = 0; i < kChunk && row > first && col + i < x.cols; ++i) dw.x[i] = dweight[col + i];
      }
      chunk(col, v, g, lanes, dw);
      if constexpr (Norm::kWeighted) {
        for (int i = 0; i < kChunk && col + i < x.cols; ++i) dweight[col + i] = dw.x[i];
      }
    });
    float sums[kSums];
    row_sums.add(lanes, sums);
    for_own_chunks<Kept<0>>(x.cols, [&](int, std::int64_t col) {
      Values unused[kSums] = {}, dw{};
      chunk(col, v, g, unused, dw);
      store(dx, row, col, slope_of<Norm>(v, g, sums, width, of.rstd), 1);
    });
  }
}

// norm and means as in run_norm_forward(). rows_per_block == 0: as many as share the rows among the blocks
// that run at once.
template <typename MakeNorm>
void run_norm_backward(const DeviceMatrix& x, bool plain, MakeNorm norm, const float* means,
                       const float* rstds, const DeviceMatrix& dy, const DeviceMatrix& dx,
                       std::int64_t rows_per_block, float* partial, cudaStream_t stream) {
  const int threads = row_threads(x.cols);
  const auto blocks_of = [&](const auto kernel) {
    if (rows_per_block == 0) {
      const std::int64_t at_once = resident_blocks(reinterpret_cast<const void*>(kernel), threads, x.rows);
      rows_per_block = (x.rows + at_once - 1) / at_once;
    }
    return static_cast<unsigned>((x.rows + rows_per_block - 1) / rows_per_block);
  };
  plain = plain && is_bf16(dy) && is_bf16(dx);
  with_row_types(x, plain, [&]<typename X, typename Y>(const X& typed_x, std::type_identity<Y> type) {
    with_kept_chunks<kIsTyped<X>>(x.cols, [&]<typename K>(K) {
      if constexpr (K::chunks > 0) {
        const auto made = norm(type);
        const auto kernel = norm_backward_kernel<K, std::decay_t<decltype(made)>, X, Y>;
        kernel<<<blocks_of(kernel), threads, 0, stream>>>(typed_x, made, means, rstds, Y(dy), Y(dx),
                                                          rows_per_block, partial);
      } else {
        const auto made = norm(std::type_identity<DeviceMatrix>{});
        const auto kernel = norm_backward_by_reading_kernel<std::decay_t<decltype(made)>>;
        const unsigned blocks = blocks_of(kernel);
        kernel<<<blocks, threads, 0, stream>>>(x, made, means, rstds, dy, dx, rows_per_block, partial);
      }
    });
  });
}

}  // namespace coat::kernels::cuda
